import pytest
import torch
from hypothesis import settings

from advdrop.objectives import Passes

# Two xdist workers share two cores: more threads would only fight.
torch.set_num_threads(1)

settings.register_profile("advdrop", deadline=None, derandomize=True, max_examples=100, database=None)
settings.load_profile("advdrop")


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def generator():
    return torch.Generator().manual_seed(0)


@pytest.fixture
def apart(monkeypatch):
    """Every pass by itself, so that two networks of which one could run them together draw the same noise."""
    monkeypatch.setattr(Passes, "_on_their_own", lambda passes: False)
