"""Your own data: arrays in npz files, and folders of images."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unicodedata import category
from zipfile import is_zipfile

import numpy as np
from numpy.typing import NDArray

from advdrop.lab.data.examples import (
    UNLABELED,
    Array,
    DataError,
    DataSet,
    Examples,
    check_memory,
    every_fifth,
    reading,
)

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})
IMAGE_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What an image file may hold, whatever its name is. Pillow knows others too, and runs Ghostscript for one of them."""


class RawPart(NamedTuple):
    """Examples before their labels are numbered: where they are from, for errors, their array and their labels."""

    where: str
    x: Array
    y: Array


def read_npz(path: Path) -> DataSet:
    """Read a data set from an npz file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``, in any case.

    See `features` for the arrays and `build` for the labels.
    """
    with reading(path):
        if not is_zipfile(path):  # numpy would speak of pickles
            raise ValueError("it is not an npz file, or its end is missing")
        return _read_npz(path)


def _read_npz(path: Path) -> DataSet:
    # Opened here, because numpy does not close a file that it cannot read.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        names = {key.lower(): key for key in content}
        missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in names]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(sorted(names)) or 'nothing'}")
        check_memory(path, sum(member.file_size for member in content.zip.infolist()))  # never more is unpacked

        def part(name: str) -> RawPart:
            x, y = (np.asarray(content[names[f"{kind}_{name}"]]) for kind in "xy")  # a member may be no array
            return RawPart(f"{path}: x_{name}", x, y)

        return build(path.stem, part("train"), part("test"))


def features(where: str, x: Array) -> Array:
    """Return an array as examples: uint8 images ``(N, C, H, W)``, or float32 features ``(N, ...)``.

    uint8 of ``(N, H, W)``, ``(N, H, W, 1 or 3)`` or ``(N, 1 or 3, H, W)`` are images; an array that could be either
    of the last two is refused. All other numbers, and uint8 of ``(N, F)``, are features and must be finite.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{where} must hold numbers (N, ...), got {x.dtype} of shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim > 2:
        return _channels_first(where, x)
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, which is found below
        values = x.astype(np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(1)
    if not finite.all():
        raise DataError(
            f"{where} has a NaN or an infinity in row {int(finite.argmin())} ({int((~finite).sum())} rows in all); "
            "fill it in or leave the row out"
        )
    return values


def _channels_first(where: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        what = "could have its channels first or last" if first else "is not a shape of images"
        shapes = "(N, H, W), (N, H, W, 3) or (N, 3, H, W)"
        raise DataError(f"{where}: uint8 of {x.shape} {what}; save images as {shapes}, features as float32")
    return x if first else x.transpose(0, 3, 1, 2)


def build(name: str, train: RawPart, test: RawPart) -> DataSet:
    """Build a data set from arrays; a label becomes its position among the sorted labels of the training examples.

    Labels are integers or text. ``-1`` and the empty text mean no label, which only training examples may have.
    """
    (known, y_train), (asked, y_test) = _labels(train), _labels(test)
    if y_train.dtype.kind != y_test.dtype.kind:
        raise DataError(f"{test.where} has labels of {y_test.dtype}, training of {y_train.dtype}; use one type")
    classes = np.unique(y_train[known])
    if len(classes) < 2:
        shown = ", ".join(map(str, classes)) or "none"
        raise DataError(f"{train.where} needs labels of at least two classes, got {shown} (-1 or '' means unlabeled)")
    if not asked.all():
        raise DataError(f"{test.where} has no label in row {int(asked.argmin())}; every test example needs one")
    unknown = sorted(set(y_test.tolist()) - set(classes.tolist()))
    if unknown:
        raise DataError(f"{test.where} has the class {unknown[0]!r}, which no training example has")
    names = tuple(map(str, classes))
    if odd := [name for name in names if any(category(letter) in ("Cc", "Cs") for letter in name)]:
        raise DataError(f"{train.where} has the class {odd[0]!a}, a name with control characters or broken text")
    positions = np.where(known, np.searchsorted(classes, y_train), UNLABELED)
    train_examples = Examples.of(features(train.where, train.x), positions)
    test_examples = Examples.of(features(test.where, test.x), np.searchsorted(classes, y_test))
    return DataSet(name, train_examples, test_examples, names)


def _labels(part: RawPart) -> tuple[NDArray[np.bool_], Array]:
    """Return which examples have a label, and the labels ``(N,)`` as int64 or text."""
    y = part.y[:, 0] if part.y.ndim == 2 and part.y.shape[1] == 1 else part.y
    if y.dtype.kind not in "biuUS" or y.shape != part.x.shape[:1]:
        found = f"{y.dtype} of shape {y.shape}"
        raise DataError(f"{part.where} {part.x.shape} needs as many labels, integers or text, got {found}")
    if y.dtype.kind in "US":
        y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        return y != "", y
    if y.dtype == np.uint64 and y.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(
            f"{part.where} has labels up to {y.max()}, more than an int64 can hold; number the classes anew"
        )
    y = y.astype(np.int64)
    return y != UNLABELED, y


def read_images(root: Path) -> DataSet:
    """Read a data set from a folder of images, a folder for each class.

    ``ROOT/train/CLASS/*`` and ``ROOT/test/CLASS/*``, or ``ROOT/CLASS/*`` of which `every_fifth` is held out as test.
    Images in ``ROOT/unlabeled`` are added to the training examples. Files are sorted by name. Hidden files, and files
    that are not images by their name, are ignored.

    All images must have one size, and be gray ``(N, 1, H, W)`` or color ``(N, 3, H, W)``: bilevel images count as gray,
    palettes and other color spaces as color. Transparency is dropped. More than 8 bits a channel are refused. Of an
    animation the first picture is read, and a rotation by EXIF is not applied.
    """
    with reading(root, advice="rename or repair it"):
        return _read_images(root)


def _read_images(root: Path) -> DataSet:
    if (root / "train").is_dir():
        train, test = _class_files(root / "train"), _class_files(root / "test")
    else:
        found = [(file, label) for file, label in _class_files(root) if label != "unlabeled"]
        held_out = every_fifth(np.array([label for _, label in found]))
        train = [pair for pair, out in zip(found, held_out, strict=True) if not out]
        test = [pair for pair, out in zip(found, held_out, strict=True) if out]
    if not train or not test:
        raise DataError(
            f"{root}: no {'test' if train else 'training'} images; it needs train/CLASS/*.png and test/CLASS/*.png, or "
            "CLASS/*.png with five or more images a class"
        )
    train += [(file, "") for file in _image_files(root / "unlabeled")]
    pixels = _read_image_files([file for file, _ in (*train, *test)])
    labels = np.array([label for _, label in (*train, *test)])
    (x_train, x_test), (y_train, y_test) = (np.split(array, [len(train)]) for array in (pixels, labels))
    first, second = RawPart(f"{root}: training", x_train, y_train), RawPart(f"{root}: test", x_test, y_test)
    return build(root.resolve().name, first, second)


def _class_files(folder: Path) -> list[tuple[Path, str]]:
    """Return the images below each folder in ``folder``, with its name; a folder without images is not a class."""
    folders = folder.iterdir() if folder.is_dir() else ()
    classes = sorted(path for path in folders if path.is_dir() and not path.name.startswith("."))
    return [(file, path.name) for path in classes for file in _image_files(path)]


def _image_files(folder: Path) -> list[Path]:
    """Return the images in a folder and below; one that cannot be opened is not left out in silence."""

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for base, folders, names in os.walk(folder, onerror=refuse) if folder.is_dir() else ():
        folders[:] = [name for name in folders if not name.startswith(".")]
        found += [Path(base, name) for name in names if not name.startswith(".")]
    images = sorted(path for path in found if path.suffix.lower() in IMAGE_SUFFIXES)
    if odd := [path for path in images if not path.is_file()]:  # to open a pipe would wait forever
        raise DataError(f"{odd[0]} is a link to nothing, a pipe or a device, not an image; remove it")
    return images


def _read_image_files(files: Sequence[Path]) -> Array:
    """Read image files of one size and kind as ``(N, C, H, W)``, with C of 1 (gray) or 3 (color)."""
    from PIL import Image

    pixels: Array = np.empty(0)
    with warnings.catch_warnings():
        # Pillow only warns of images that unpack to gigabytes.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        for number, file in enumerate(files):
            with reading(file), Image.open(file, formats=IMAGE_FORMATS) as image:
                if number and (image.height, image.width) != pixels.shape[2:]:  # an image may be too large to unpack
                    shown, other = f"{image.width}×{image.height}", f"{pixels.shape[3]}×{pixels.shape[2]}"
                    raise DataError(f"{file} has the size {shown}, {files[0]} has {other}; resize them to one size")
                found = image_pixels(image, file)
            if not number:
                check_memory(file.parent, len(files) * found.size)
                pixels = np.empty((len(files), *found.shape), np.uint8)
            elif len(found) != pixels.shape[1]:
                kind, other = ("gray", "in color") if len(found) == 1 else ("in color", "gray")
                raise DataError(f"{file} is {kind}, {files[0]} is {other}; convert them to one kind first")
            pixels[number] = found
    return pixels


def image_pixels(image: Image, file: Path) -> Array:
    """Return the pixels ``(1 or 3, H, W)`` of a Pillow image from a file."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"{file} has the mode {image.mode}, more than 8 bits a channel; convert it to 8 bits first")
    if image.mode in ("1", "L", "LA", "La"):
        return np.asarray(image.convert("L"))[None]
    if image.mode in ("P", "PA"):
        # Pillow warns when the transparency of a palette is dropped in one step.
        image = image.convert("RGBA")
    return np.asarray(image.convert("RGB")).transpose(2, 0, 1)
