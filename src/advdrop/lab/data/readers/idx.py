"""idx files, gzipped or not: MNIST and Fashion-MNIST."""

from __future__ import annotations

import gzip
import math
from pathlib import Path

import numpy as np

from advdrop.lab.data.examples import DataError, Examples
from advdrop.lab.data.readers.common import CHUNK, UNREADABLE, Bytes, examples, label_range, unreadable


def read_idx(path: Path) -> Bytes:
    """The bytes of an idx file, gzipped or not, in the shape its header gives.

    The memory depends on the bytes that are there, never on the header.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as stream:
            magic = stream.read(4)
            rank = magic[3] if len(magic) == 4 and magic[:3] == b"\0\0\x08" else 0
            if not 1 <= rank <= 32:  # numpy has no more axes
                raise DataError(f"{path}: not an idx file of bytes, it starts with {magic!r}; download it again")
            header = stream.read(4 * rank)
            shape = tuple(int(size) for size in np.frombuffer(header[: len(header) // 4 * 4], ">u4"))
            expected = math.prod(shape)
            if len(shape) < rank or expected == 0:
                raise DataError(f"{path}: its header gives the shape {shape} for {rank} axes; download it again")
            body = bytearray()
            while len(body) <= expected and (chunk := stream.read(CHUNK)):
                body += chunk
    except UNREADABLE as error:
        raise unreadable(path, error) from error
    if len(body) != expected:
        found = "more" if len(body) > expected else f"{len(body):,}"
        raise DataError(f"{path}: needs {expected:,} bytes for the shape {shape}, it holds {found}; download it again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path) -> Examples:
    """Images ``(N, 1, H, W)`` and their labels 0..9, from two idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3:
        raise DataError(f"{images}: must hold images (N, H, W), got shape {x.shape}; is it another file of the set?")
    if y.shape != x.shape[:1]:
        raise DataError(f"{labels}: must hold {len(x):,} labels for {images.name}, got shape {y.shape}")
    return examples(x[:, None], label_range(labels, y, 0, 9))
