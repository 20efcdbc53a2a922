import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch):
    """A test does not outlast a power cut, and its small runs save at every update."""
    monkeypatch.setattr(os, "fsync", lambda file: None)
