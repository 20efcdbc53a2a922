"""Folders of images, a folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from advdrop.lab.data.examples import DataError, DataSet
from advdrop.lab.data.readers.arrays import RawPart, build
from advdrop.lab.data.readers.common import Array, Bytes, unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def read_images(root: Path) -> DataSet:
    """A data set from a folder of images, a folder for each class.

    ``ROOT/train/CLASS/*`` and ``ROOT/test/CLASS/*``, or ``ROOT/CLASS/*`` of which `every_fifth` is held out as test;
    images in ``ROOT/unlabeled`` join the training examples. Files are taken in the order of their names; hidden ones
    and those that are no images are left out.

    All must have one size, and be gray ``(N, 1, H, W)`` or color ``(N, 3, H, W)``: bilevel images count as gray,
    palettes and other color spaces as color, transparency is dropped. More than 8 bits a channel are refused.
    """
    unlabeled = [file for name in ("unlabeled", "unlabelled") for file in _image_files(root / name)]
    if (root / "train").is_dir():
        train, test = _class_files(root / "train"), _class_files(root / "test")
    else:
        found = _class_files(root, leave_out=("unlabeled", "unlabelled"))
        held_out = every_fifth(np.unique([label for _, label in found], return_inverse=True)[1])
        train = [pair for pair, out in zip(found, held_out, strict=True) if not out]
        test = [pair for pair, out in zip(found, held_out, strict=True) if out]
    for part, pairs in (("training", train), ("test", test)):
        if not pairs:
            raise DataError(
                f"{root}: no {part} images; it needs train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png with five "
                "or more images a class"
            )
    pixels = read_image_files([file for file, _ in (*train, *test)] + unlabeled)
    ends = np.cumsum([len(train), len(test)])
    x_train, x_test, x_unlabeled = np.split(pixels, ends)
    return build(
        root.resolve().name,
        RawPart(f"{root}: training", x_train, np.array([label for _, label in train])),
        RawPart(f"{root}: test", x_test, np.array([label for _, label in test])),
        {f"{root}: unlabeled": x_unlabeled} if unlabeled else {},
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
    """Image files of one size and kind as ``(N, C, H, W)``, with C of 1 (gray) or 3 (color)."""
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
                one, other = ("gray", "in color") if len(pixels) == 1 else ("in color", "gray")
                raise DataError(f"is {one}, {like[0]} is {other}: they must be alike; convert them first")
    except DataError as error:
        raise DataError(f"{file} {error}") from error
    except Exception as error:  # A broken image may raise anything in Pillow.
        raise unreadable(file, error) from error
    return pixels


def image_pixels(image: Image) -> Bytes:
    """The pixels ``(1 or 3, H, W)`` of a Pillow image."""
    if image.mode.startswith(("I", "F")):
        raise DataError(f"has the mode {image.mode}, more than 8 bits a channel; convert it to 8 bits first")
    if image.mode in ("1", "L", "LA", "La"):
        gray: Bytes = np.asarray(image.convert("L"))
        return gray[None]
    if image.mode in ("P", "PA"):
        # Pillow warns when the transparency of a palette is dropped in one step.
        image = image.convert("RGBA")
    color: Bytes = np.asarray(image.convert("RGB"))
    return color.transpose(2, 0, 1)


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
