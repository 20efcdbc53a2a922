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
from advdrop.lab.data.readers.common import (
    CHUNK,
    UNREADABLE,
    Array,
    Bytes,
    Pair,
    examples,
    joined,
    label_range,
    unreadable,
)

CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_BATCH_RECORDS = 10_000


def read_cifar(path: Path) -> Pair:
    """CIFAR-10 from a folder or archive of its batches, in the binary or the Python layout.

    Args:
        path: a folder with ``data_batch_1.bin`` ... ``test_batch.bin`` or with ``data_batch_1`` ... ``test_batch``, or
            ``cifar-10-binary.tar.gz`` or ``cifar-10-python.tar.gz``. Archives are read in memory, never unpacked.

    Returns:
        images ``(N, 3, 32, 32)`` of uint8 with labels 0..9.
    """
    wanted = {name + suffix for name in CIFAR_BATCHES for suffix in ("", ".bin")}
    # A batch is 30.7 MB; the Python layout adds labels and file names.
    most = 2 * CIFAR_RECORD * CIFAR_BATCH_RECORDS
    batches = dict(_folder_files(path, wanted, most) if path.is_dir() else _tar_files(path, wanted, most))
    for suffix, parse in ((".bin", cifar_binary_batch), ("", cifar_python_batch)):
        names = [name + suffix for name in CIFAR_BATCHES]
        if all(name in batches for name in names):
            *train, test = (parse(path / name, batches[name]) for name in names)
            return joined(train), test
    raise DataError(
        f"{path}: needs {', '.join(CIFAR_BATCHES)} (all of them, or all with .bin), found "
        f"{', '.join(sorted(batches)) or 'none of them'}; get the archive again"
    )


def cifar_binary_batch(path: Path, content: bytes) -> Examples:
    """Examples from records of 3,073 bytes: a label, then 32×32 red, green and blue values row by row."""
    if not content or len(content) % CIFAR_RECORD:
        raise DataError(f"{path}: {len(content):,} bytes are not records of {CIFAR_RECORD:,}; get it again")
    records = np.frombuffer(content, np.uint8).reshape(-1, CIFAR_RECORD)
    return _cifar_examples(path, records[:, 1:], records[:, 0])


def cifar_python_batch(path: Path, content: bytes) -> Examples:
    """Examples from a pickled dictionary with ``data`` ``(N, 3072)`` and ``labels``; no code in it is ever run."""
    try:
        batch = _ArraysOnly(path, content).load()
        data, labels = batch[b"data"].values, np.asarray(batch[b"labels"])
    except DataError:
        raise
    except Exception as error:  # A broken pickle may raise anything.
        raise unreadable(path, error) from error
    if data.shape[1:] != (CIFAR_RECORD - 1,) or labels.shape != data.shape[:1] or labels.dtype.kind != "i":
        raise DataError(
            f"{path}: needs data (N, 3072) and N integer labels, got {data.shape} and {labels.dtype} of {labels.shape}"
        )
    return _cifar_examples(path, data, labels)


class _PickledArray:
    """Stands in for a numpy array of bytes while it is unpickled, so that numpy itself rebuilds nothing."""

    values: Bytes

    def __init__(self, *_: object) -> None:
        # What comes here is an empty array's shape and type; the real ones arrive as the state.
        pass

    def __setstate__(self, state: tuple[int, tuple[int, ...], object, bool, bytes]) -> None:
        _, shape, kind, fortran, content = state
        if not isinstance(kind, _PickledByteType):
            raise pickle.UnpicklingError(f"an array of {kind!r}")
        self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _PickledByteType:
    """Stands in for numpy's dtype, and is uint8 or nothing."""

    def __init__(self, code: bytes | str, *_: object) -> None:
        if code not in ("u1", b"u1"):
            raise pickle.UnpicklingError(f"numbers of type {code!r}")

    def __setstate__(self, state: object) -> None:
        pass


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that knows arrays of bytes and nothing else."""

    _allowed: Mapping[tuple[str, str], object] = {
        ("numpy.core.multiarray", "_reconstruct"): _PickledArray,
        ("numpy._core.multiarray", "_reconstruct"): _PickledArray,
        # Only ever handed to `_reconstruct`, so it need not be callable.
        ("numpy", "ndarray"): None,
        ("numpy", "dtype"): _PickledByteType,
        ("_codecs", "encode"): _latin1,
    }

    def __init__(self, path: Path, content: bytes) -> None:
        super().__init__(io.BytesIO(content), encoding="bytes")
        self._path = path

    def find_class(self, module: str, name: str) -> object:
        try:
            return self._allowed[module, name]
        except KeyError:
            raise DataError(
                f"{self._path}: asks for {module}.{name}, which no CIFAR-10 file does: it may be malicious; delete it"
            ) from None


def _cifar_examples(path: Path, pixels: Array, labels: Array) -> Examples:
    return examples(pixels.reshape(-1, 3, 32, 32), label_range(path, labels, 0, 9))


def _folder_files(folder: Path, wanted: set[str], most: int) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder / name for name in wanted if (folder / name).is_file()):
        _size_limit(path, path.stat().st_size, most)
        try:
            yield path.name, path.read_bytes()
        except OSError as error:
            raise unreadable(path, error) from error


def _tar_files(archive: Path, wanted: set[str], most: int) -> Iterator[tuple[str, bytes]]:
    """The wanted files of a gzipped tar. Nothing is written to disk, so no path in it can lead astray."""
    try:
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                for member in tar:
                    name = PurePosixPath(member.name).name
                    if name in wanted and member.isfile():
                        _size_limit(archive / name, member.size, most)
                        yield name, cast(io.BufferedReader, tar.extractfile(member)).read()
            # The checksum comes last in a gzip file, behind the padding where the tar reader stops.
            while stream.read(CHUNK):
                pass
    except (*UNREADABLE, tarfile.TarError) as error:
        raise unreadable(archive, error) from error


def _size_limit(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(f"{path}: holds {size:,} bytes, no CIFAR-10 batch has more than {most:,}; get it again")
