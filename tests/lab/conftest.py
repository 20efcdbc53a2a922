import os

import pytest

from advdrop.lab.engine import train
from runs import squares, tiny


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """A test does not outlast a power cut, and its small runs save at every update."""
    monkeypatch.setattr(os, "fsync", lambda file: None)


@pytest.fixture(scope="session")
def image_run(tmp_path_factory):
    """The directory of a run on small color images, with whitening and a companion, and its data. Do not change it."""
    data, path = squares(), tmp_path_factory.mktemp("runs") / "squares"
    config = tiny("data.zca=true", "data.standardize=true", "training.updates=40", data=data, preset="robust")
    train(config, path, data=data, progress=False)
    return path, data
