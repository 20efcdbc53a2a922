"""The seal of a run: a digest of its configuration and its split, on which the digests of its other files depend."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from advdrop.lab.data.batches import LabelSplit

MACHINE = {"accelerator", "devices", "nodes", "checkpoint_seconds", "tensorboard"}
"""The settings of the engine that may be edited before a run is resumed, as may the places of the data."""


def digest_of(value: Any) -> str:
    """Return the SHA-256 of nested mappings, sequences, tensors, bytes, texts and numbers.

    >>> digest_of({"a": 1, "b": [2, 3]}) == digest_of({"b": (2, 3), "a": 1}) != digest_of({"a": 1, "b": [2, 4]})
    True
    """
    digest = hashlib.sha256()

    def add(value: Any) -> None:
        if isinstance(value, Mapping):
            add(sorted(([key, value[key]] for key in value), key=lambda pair: repr(pair[0])))
        elif isinstance(value, list | tuple):
            digest.update(f"{len(value)}[".encode())
            for each in value:
                add(each)
        elif isinstance(value, Tensor):
            digest.update(f"{value.dtype}{list(value.shape)}".encode())
            if value.numel():
                digest.update(value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data)
        else:
            digest.update(value if isinstance(value, bytes) else f"{value!r},".encode(errors="surrogatepass"))

    add(value)
    return digest.hexdigest()


def seal_of(values: Mapping[str, Any], split: LabelSplit) -> str:
    """Return the seal of a run from the values of its configuration that its results depend on, and its split."""
    kept = {key: value for key, value in values.items() if key not in ("dataset", "data_dir", "unlabeled")}
    if isinstance(start := values.get("start"), Mapping):
        kept["start"] = {key: value for key, value in start.items() if key != "run"}
    if isinstance(engine := values.get("engine"), Mapping):  # the section may be cut off
        kept["engine"] = {key: value for key, value in engine.items() if key not in MACHINE}
    return digest_of([kept, split.dataset, split.labeled, split.unlabeled, split.validation])
