"""From files to examples: idx, CIFAR-10, SVHN, npz and folders of images.

Every function is pure, trusts nothing in the file, and allocates no more than the file really holds. What cannot be
used is a `DataError` that names the file.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray

from advdrop.data.examples import UNLABELLED, DataError, DataSet, Examples

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
Bytes = NDArray[np.uint8]
Pair = tuple[Examples, Examples]
"""Training and test examples."""

CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
CIFAR_RECORD = 1 + 3 * 32 * 32
CIFAR_BATCH_RECORDS = 10_000

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})

_CHUNK = 1 << 20
_UNREADABLE = (OSError, EOFError, zlib.error)
"""What a missing, truncated or corrupt file raises; gzip's own error is an OSError."""


# --------------------------------------------------------------------------------------------------------------- idx


def read_idx(path: Path) -> Bytes:
    """The bytes of an idx file, gzipped or not, in the shape its header gives.

    Memory grows with what is really read, never with what the header promises.
    """
    try:
        with path.open("rb") as file:
            zipped = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if zipped else path.open("rb") as stream:
            magic = stream.read(4)
            rank = magic[3] if len(magic) == 4 and magic[:3] == b"\0\0\x08" else 0
            # More axes than numpy has could only be a broken header.
            if not 1 <= rank <= 32:
                raise DataError(f"{path}: not an idx file of bytes, it starts with {magic!r}; get it again")
            header = stream.read(4 * rank)
            shape = tuple(int(size) for size in np.frombuffer(header[: len(header) // 4 * 4], ">u4"))
            expected = math.prod(shape)
            if len(shape) < rank or expected == 0:
                raise DataError(f"{path}: its header gives the shape {shape} for {rank} axes; get it again")
            body = bytearray()
            while len(body) <= expected and (chunk := stream.read(_CHUNK)):
                body += chunk
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if len(body) != expected:
        found = "more" if len(body) > expected else f"{len(body):,}"
        raise DataError(f"{path}: its header promises {expected:,} bytes for {shape}, it holds {found}; get it again")
    return np.frombuffer(body, np.uint8).reshape(shape)


def read_idx_pair(images: Path, labels: Path, classes: int = 10) -> Examples:
    """Images ``(N, 1, H, W)`` and their labels, from two idx files."""
    x, y = read_idx(images), read_idx(labels)
    if x.ndim != 3:
        raise DataError(f"{images}: must hold images (N, H, W), got shape {x.shape}; is it another file of the set?")
    if y.shape != x.shape[:1]:
        raise DataError(f"{labels}: must hold {len(x):,} labels for {images.name}, got shape {y.shape}")
    return _examples(x[:, None], _label_range(labels, y, 0, classes - 1))


# ---------------------------------------------------------------------------------------------------------- CIFAR-10


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
            return _joined(train), test
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
        raise _unreadable(path, error) from error
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
    return _examples(pixels.reshape(-1, 3, 32, 32), _label_range(path, labels, 0, 9))


def _folder_files(folder: Path, wanted: set[str], most: int) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder / name for name in wanted if (folder / name).is_file()):
        _size_limit(path, path.stat().st_size, most)
        try:
            yield path.name, path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from error


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
            while stream.read(_CHUNK):
                pass
    except (*_UNREADABLE, tarfile.TarError) as error:
        raise _unreadable(archive, error) from error


# -------------------------------------------------------------------------------------------------------------- SVHN


def read_svhn(path: Path) -> Examples:
    """Images ``(N, 3, 32, 32)`` from an SVHN ``.mat`` file with ``X`` ``(32, 32, 3, N)`` and ``y`` ``(N, 1)``.

    The file calls the digit zero 10; here it is 0.
    """
    from scipy.io import loadmat

    try:
        content = loadmat(path, variable_names=["X", "y"])
        x, y = content["X"], content["y"]
    except KeyError as error:
        raise DataError(f"{path}: has no variable {error}; get the cropped digits, such as train_32x32.mat") from error
    except Exception as error:  # A broken file may raise anything in scipy.
        raise _unreadable(path, error) from error
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3) or x.ndim != 4 or y.shape != (x.shape[3], 1):
        raise DataError(
            f"{path}: needs X (32, 32, 3, N) of uint8 and y (N, 1), got {x.dtype} of {x.shape} and {y.shape}"
        )
    return _examples(x.transpose(3, 2, 0, 1), _label_range(path, y[:, 0], 1, 10) % 10)


# ------------------------------------------------------------------------------------------------ arrays and npz files


class RawPart(NamedTuple):
    """Examples before their labels are numbered: where they are from, for errors, their array and their labels."""

    where: str
    x: Array
    y: Array


def read_npz(path: Path) -> DataSet:
    """A data set from one npz file, or a folder of them; upper and lower case of the keys are the same.

    One file has ``x_train``, ``y_train``, ``x_test``, ``y_test`` and perhaps ``x_unlabelled``. A folder has
    ``train.npz`` and ``test.npz``, each with ``x`` and ``y``, and perhaps ``unlabelled.npz`` with ``x``.
    `features` says what becomes of the arrays, `build` what of the labels.
    """
    if path.is_dir():
        parts = {part: path / f"{part}.npz" for part in ("train", "test", "unlabelled", "unlabeled")}
        files = {part: _arrays(file) for part, file in parts.items() if file.exists() or part in ("train", "test")}
        arrays = {f"{key}_{part}": value for part, file in files.items() for key, value in file.items()}
    else:
        arrays = _arrays(path)
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(sorted(arrays)) or 'nothing'}")
    return build(
        path.stem if path.is_file() else path.resolve().name,
        RawPart(f"{path}: x_train", arrays["x_train"], arrays["y_train"]),
        RawPart(f"{path}: x_test", arrays["x_test"], arrays["y_test"]),
        {f"{path}: {key}": arrays[key] for key in ("x_unlabelled", "x_unlabeled") if key in arrays},
    )


def features(where: str, x: Array) -> Array:
    """An array as examples: uint8 images ``(N, C, H, W)``, or float32 features ``(N, ...)``.

    uint8 of ``(N, H, W)``, ``(N, H, W, 1 or 3)`` or ``(N, 1 or 3, H, W)`` are images; an array that could be either
    of the last two is refused. All other numbers, and uint8 of ``(N, F)``, are features and must be finite.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{where} must hold numbers (N, ...), got {x.dtype} of shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim > 2:
        return _channels_first(where, x)
    # A float64 beyond float32 becomes an infinity, which is found below.
    with np.errstate(over="ignore"):
        values = x.astype(np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(1)
    if not finite.all():
        row = int(finite.argmin())
        raise DataError(
            f"{where} has a NaN or an infinity in row {row} ({len(x) - int(finite.sum())} rows in all); "
            "fill it in or leave the row out"
        )
    return values


def build(name: str, train: RawPart, test: RawPart, unlabelled: Mapping[str, Array] = MappingProxyType({})) -> DataSet:
    """A data set from arrays, its labels numbered by their place among the sorted labels of the training examples.

    Labels are integers or text; ``-1`` and the empty text stand for none, which only training examples may have.
    """
    (known, y_train), (asked, y_test) = _labels(train), _labels(test)
    if y_train.dtype.kind != y_test.dtype.kind:
        raise DataError(f"{test.where} has labels of {y_test.dtype}, training of {y_train.dtype}; save them alike")
    classes = np.unique(y_train[known])
    if len(classes) < 2:
        shown = ", ".join(map(str, classes)) or "none"
        raise DataError(f"{train.where} needs labels of two classes at least, got {shown} (-1 or '' means unlabelled)")
    if not asked.all():
        raise DataError(f"{test.where} has no label in row {int(asked.argmin())}; every test example needs one")
    strange = sorted(set(y_test.tolist()) - set(classes.tolist()))
    if strange:
        raise DataError(f"{test.where} has the class {strange[0]!r}, which no training example has")
    places = np.where(known, np.searchsorted(classes, y_train), UNLABELLED)
    parts = [_examples(features(train.where, train.x), places)]
    for where, array in unlabelled.items():
        x = features(where, array)
        if x.shape[1:] != parts[0].x.shape[1:] or x.dtype != parts[0].x.numpy().dtype:
            raise DataError(
                f"{where} holds {x.dtype} of {x.shape[1:]}, the training examples are {parts[0].x.dtype} of "
                f"{tuple(parts[0].x.shape[1:])}: they must be alike"
            )
        parts.append(_examples(x, np.full(len(x), UNLABELLED)))
    test_examples = _examples(features(test.where, test.x), np.searchsorted(classes, y_test))
    return DataSet(name, _joined(parts), test_examples, tuple(map(str, classes)))


def _arrays(path: Path) -> dict[str, Array]:
    try:
        # Opened here, because numpy leaves a file that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            arrays = {key.lower(): content[key] for key in content}
    except (*_UNREADABLE, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise _unreadable(path, error) from error
    return arrays


def _channels_first(where: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    first, last = x.ndim == 4 and x.shape[1] in (1, 3), x.ndim == 4 and x.shape[3] in (1, 3)
    if first == last:
        what = "could be channels first or last" if first else "is no shape of images"
        raise DataError(
            f"{where}: uint8 of {x.shape} {what}; save images as (N, H, W), (N, H, W, 3) or (N, 3, H, W), "
            "features as float32"
        )
    return x if first else x.transpose(0, 3, 1, 2)


def _labels(part: RawPart) -> tuple[NDArray[np.bool_], Array]:
    """Which examples have a label, and the labels ``(N,)`` as int64 or text."""
    y = part.y
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.dtype.kind not in "biuUS" or y.shape != part.x.shape[:1]:
        raise DataError(
            f"{part.where} {part.x.shape} needs as many labels, integers or text, got {y.dtype} of shape {y.shape}"
        )
    if y.dtype.kind in "US":
        y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        return y != "", y
    y = y.astype(np.int64)
    return y != UNLABELLED, y


# -------------------------------------------------------------------------------------------------- folders of images


def read_images(root: Path) -> DataSet:
    """A data set from a folder of images, a folder for each class.

    ``ROOT/train/CLASS/*`` and ``ROOT/test/CLASS/*``, or ``ROOT/CLASS/*`` of which `every_fifth` is held out as test;
    images in ``ROOT/unlabelled`` join the training examples. Files are taken in the order of their names; hidden ones
    and those that are no images are left out.

    All must have one size, and be grey ``(N, 1, H, W)`` or colour ``(N, 3, H, W)``: bilevel images count as grey,
    palettes and other colour spaces as colour, transparency is dropped. More than 8 bits a channel are refused.
    """
    unlabelled = [file for name in ("unlabelled", "unlabeled") for file in _image_files(root / name)]
    if (root / "train").is_dir():
        train, test = _class_files(root / "train"), _class_files(root / "test")
    else:
        found = _class_files(root, leave_out=("unlabelled", "unlabeled"))
        held_out = every_fifth(np.unique([label for _, label in found], return_inverse=True)[1])
        train = [pair for pair, out in zip(found, held_out, strict=True) if not out]
        test = [pair for pair, out in zip(found, held_out, strict=True) if out]
    for part, pairs in (("training", train), ("test", test)):
        if not pairs:
            raise DataError(
                f"{root}: no {part} images; it needs train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png with five "
                "or more images a class"
            )
    pixels = read_image_files([file for file, _ in (*train, *test)] + unlabelled)
    ends = np.cumsum([len(train), len(test)])
    x_train, x_test, x_unlabelled = np.split(pixels, ends)
    return build(
        root.resolve().name,
        RawPart(f"{root}: training", x_train, np.array([label for _, label in train])),
        RawPart(f"{root}: test", x_test, np.array([label for _, label in test])),
        {f"{root}: unlabelled": x_unlabelled} if unlabelled else {},
    )


def every_fifth(labels: Array) -> NDArray[np.bool_]:
    """Which examples are held out as test: in each class the fifth, the tenth, and so on, in the order they come.

    It needs no seed, so no seed and no version of a library can change which examples are test examples.

    >>> every_fifth(np.array([0, 0, 0, 1, 0, 0, 0])).astype(int)
    array([0, 0, 0, 0, 0, 1, 0])
    """
    held_out = np.zeros(len(labels), np.bool_)
    for label in np.unique(labels):
        held_out[np.flatnonzero(labels == label)[4::5]] = True
    return held_out


def read_image_files(files: Sequence[Path]) -> Bytes:
    """Image files of one size and kind as ``(N, C, H, W)``, with C of 1 (grey) or 3 (colour)."""
    from PIL import Image

    with warnings.catch_warnings():
        # Pillow only warns of images that unpack to gigabytes.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        first = _read_image(files[0])
        pixels = np.empty((len(files), *first.shape), np.uint8)
        for slot, file in zip(pixels, files, strict=True):
            slot[...] = _read_image(file, (files[0], first.shape))
    return pixels


def _read_image(file: Path, like: tuple[Path, tuple[int, ...]] | None = None) -> Bytes:
    """The pixels ``(1 or 3, H, W)`` of a file, which must be ``like`` another one."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            height, width = image.height, image.width
            # Before it is unpacked: an odd image may be a very large one.
            if like and (height, width) != like[1][1:]:
                raise DataError(
                    f"has the size {width}×{height}, {like[0]} has {like[1][2]}×{like[1][1]}: they must be alike; "
                    "resize them first"
                )
            pixels = image_pixels(image)
            if like and pixels.shape != like[1]:
                one, other = ("grey", "in colour") if len(pixels) == 1 else ("in colour", "grey")
                raise DataError(f"is {one}, {like[0]} is {other}: they must be alike; convert them first")
    except DataError as error:
        raise DataError(f"{file} {error}") from error
    except Exception as error:  # A broken image may raise anything in Pillow.
        raise _unreadable(file, error) from error
    return pixels


def image_pixels(image: Image) -> Bytes:
    """The pixels ``(1 or 3, H, W)`` of a Pillow image."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"has the mode {image.mode}, more than 8 bits a channel; convert it to 8 bits first")
    if image.mode in ("1", "L", "LA", "La"):
        grey: Bytes = np.asarray(image.convert("L"))
        return grey[None]
    if image.mode in ("P", "PA"):
        # Pillow warns when the transparency of a palette is dropped in one step.
        image = image.convert("RGBA")
    colour: Bytes = np.asarray(image.convert("RGB"))
    return colour.transpose(2, 0, 1)


def _class_files(folder: Path, leave_out: Iterable[str] = ()) -> list[tuple[Path, str]]:
    """The images below each folder in ``folder``, with its name; folders without images are no classes."""
    if not folder.is_dir():
        return []
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and path.name not in leave_out)
    return [(file, path.name) for path in classes if not _hidden(path.name) for file in _image_files(path)]


def _image_files(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.rglob("*")
        if path.suffix.lower() in IMAGE_SUFFIXES
        and path.is_file()
        and not any(map(_hidden, path.relative_to(folder).parts))
    )


def _hidden(name: str) -> bool:
    return name.startswith(".")


# ------------------------------------------------------------------------------------------------------------- shared


def _unreadable(path: Path, error: Exception) -> DataError:
    first = str(error).partition("\n")[0] or "nothing is said of why"
    return DataError(f"{path}: cannot be read ({type(error).__name__}: {first}); get it again")


def _size_limit(path: Path, size: int, most: int) -> None:
    if size > most:
        raise DataError(f"{path}: holds {size:,} bytes, no CIFAR-10 batch has more than {most:,}; get it again")


def _label_range(path: Path, labels: Array, least: int, most: int) -> Array:
    if len(labels) and not (least <= labels.min() and labels.max() <= most):
        raise DataError(
            f"{path}: labels must be in {least}..{most}, got values from {labels.min()} to {labels.max()}; get it again"
        )
    return labels


def _examples(x: Array, y: Array) -> Examples:
    # Torch wants memory that may be written to and, to be fast later, in order; only what is neither is copied.
    return Examples(torch.from_numpy(np.require(x, requirements=["C", "W"])), torch.from_numpy(y.astype(np.int64)))


def _joined(parts: Sequence[Examples]) -> Examples:
    if len(parts) == 1:
        return parts[0]
    return Examples(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))
