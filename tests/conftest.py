import signal

import pytest
import torch
from hypothesis import settings

from advdrop.step.passes import Passes
from processes import kill_the_rest, server_address

# Two xdist workers share two cores: more threads would only fight.
torch.set_num_threads(1)

# A shell that runs the tests in the background ignores these, and so would the commands that the tests stop by them.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

settings.register_profile("advdrop", deadline=None, derandomize=True, max_examples=100, database=None)
settings.load_profile("advdrop")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    torch.set_flush_denormal(False)  # some libraries switch it on when they are loaded, and small numbers become 0


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def apart(monkeypatch):
    """Every pass by itself, so that two networks of which one could run them together draw the same noise."""
    monkeypatch.setattr(Passes, "_separable", lambda passes, network: ([], []))


@pytest.fixture
def quick_processes():
    """What Dask would spawn is forked from a server instead, and killed at the end if it is still there."""
    import dask
    import distributed  # noqa: F401  its settings have to be there before one of them is changed

    server_address()
    with dask.config.set({"distributed.worker.multiprocessing-method": "forkserver"}):
        yield
    kill_the_rest()
