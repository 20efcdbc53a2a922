"""CIFAR-10, in the binary and in the Python layout."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import cast

import numpy as np

from advdrop.lab.data.examples import DataError, Examples
from advdrop.lab.data.readers import common
from advdrop.lab.data.readers.common import Array, Bytes, Pair, unreadable

CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
RECORD = 1 + 3 * 32 * 32
LARGEST = 2 * RECORD * 10_000
"""A batch has 10,000 records of 3,073 bytes; the Python layout adds labels and file names."""


def read_cifar(path: Path) -> Pair:
    """CIFAR-10 from a folder or archive of its batches, in the binary or the Python layout.

    Args:
        path: a folder with ``data_batch_1.bin`` ... ``test_batch.bin`` or with ``data_batch_1`` ... ``test_batch``, or
            ``cifar-10-binary.tar.gz`` or ``cifar-10-python.tar.gz``. Archives are read in memory, never unpacked.

    Returns:
        images ``(N, 3, 32, 32)`` of uint8 with labels 0..9.
    """
    wanted = {name + suffix for name in CIFAR_BATCHES for suffix in ("", ".bin")}
    batches = dict(_folder_files(path, wanted) if path.is_dir() else _tar_files(path, wanted))
    for suffix, parse in ((".bin", _binary_batch), ("", _python_batch)):
        names = [name + suffix for name in CIFAR_BATCHES]
        if all(name in batches for name in names):
            *train, test = (_examples(path / name, *parse(path / name, batches[name])) for name in names)
            return common.joined(train), test
    raise DataError(
        f"{path}: needs {', '.join(CIFAR_BATCHES)} (all of them, or all with .bin), found "
        f"{', '.join(sorted(batches)) or 'none of them'}; download the archive again"
    )


def _examples(path: Path, pixels: Array, labels: Array) -> Examples:
    return common.examples(pixels.reshape(-1, 3, 32, 32), common.label_range(path, labels, 0, 9))


def _folder_files(folder: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder / name for name in wanted if (folder / name).is_file()):
        _check_size(path, path.stat().st_size)
        try:
            yield path.name, path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error


def _tar_files(archive: Path, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a gzipped tar. Nothing is written to disk, so no path in it can do harm."""
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    name = PurePosixPath(member.name).name
                    if name in wanted and member.isfile():
                        _check_size(archive / name, member.size)
                        yield name, cast(io.BufferedReader, tar.extractfile(member)).read()
            # The checksum comes last in a gzip file, after the padding where the tar reader stops.
            while stream.read(common.CHUNK):
                pass
    except (*common.UNREADABLE, tarfile.TarError) as error:
        raise unreadable(archive, error) from error


def _check_size(path: Path, size: int) -> None:
    if size > LARGEST:
        raise DataError(f"{path}: holds {size:,} bytes, a CIFAR-10 batch at most {LARGEST:,}; download it again")


def _binary_batch(path: Path, content: bytes) -> tuple[Array, Array]:
    """Pixels and labels from records of 3,073 bytes: a label, then 32×32 red, green and blue values row by row."""
    if not content or len(content) % RECORD:
        raise DataError(f"{path}: {len(content):,} bytes are not records of {RECORD:,}; download it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, RECORD)
    return records[:, 1:], records[:, 0]


def _python_batch(path: Path, content: bytes) -> tuple[Array, Array]:
    """Pixels and labels from a pickled dictionary with ``data`` ``(N, 3072)`` and ``labels``; runs no code in it."""
    try:
        batch = _ArraysOnly(path, content).load()
        data, labels = batch[b"data"].values, np.asarray(batch[b"labels"])
    except DataError:
        raise
    except Exception as error:  # a broken pickle may raise anything
        raise unreadable(path, error) from error
    if data.shape[1:] != (RECORD - 1,) or labels.shape != data.shape[:1] or labels.dtype.kind != "i":
        found = f"{data.shape} and {labels.dtype} of {labels.shape}"
        raise DataError(f"{path}: needs data (N, 3072) and N integer labels, got {found}")
    return data, labels


class _PickledArray:
    """Replaces a numpy array of bytes while it is unpickled, so that numpy itself rebuilds nothing."""

    values: Bytes

    def __init__(self, *_: object) -> None:
        """Ignore the shape and type of an empty array; the real ones come with the state."""

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes]) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _PickledByteType):
            raise pickle.UnpicklingError(f"an array of {kind!r}")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _PickledByteType:
    """Replaces numpy's dtype, and accepts uint8 only."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"numbers of type {code!r}")

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order, which bytes do not have."""


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that accepts arrays of bytes and nothing else."""

    _allowed: Mapping[tuple[str, str], object] = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy", "ndarray"): None,  # an argument of `_reconstruct`, never called
        ("numpy", "dtype"): _PickledByteType,
        ("_codecs", "encode"): _latin1,
    }

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in self._allowed:
            raise DataError(
                f"{self._path}: asks for {module}.{name}, which no CIFAR-10 file does; it may be malicious, delete it"
            )
        return self._allowed[module, name]
