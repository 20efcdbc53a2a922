"""Folders of images, a folder for each class."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from advdrop.lab.data.examples import DataError, DataSet
from advdrop.lab.data.readers.arrays import RawPart, build
from advdrop.lab.data.readers.common import Bytes, every_fifth, unreadable

if TYPE_CHECKING:
    from PIL.Image import Image

IMAGE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


def read_images(root: Path) -> DataSet:
    """A data set from a folder of images, a folder for each class.

    ``ROOT/train/CLASS/*`` and ``ROOT/test/CLASS/*``, or ``ROOT/CLASS/*`` of which `every_fifth` is held out as test.
    Images in ``ROOT/unlabeled`` are added to the training examples. Files are sorted by name. Hidden files, and files
    that are not images, are ignored.

    All images must have one size, and be gray ``(N, 1, H, W)`` or color ``(N, 3, H, W)``: bilevel images count as gray,
    palettes and other color spaces as color. Transparency is dropped. More than 8 bits a channel are refused.
    """
    unlabeled = _image_files(root / "unlabeled")
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
    pixels = read_image_files([file for file, _ in (*train, *test)] + unlabeled)
    x_train, x_test, x_unlabeled = np.split(pixels, np.cumsum([len(train), len(test)]))
    return build(
        root.resolve().name,
        RawPart(f"{root}: training", x_train, np.array([label for _, label in train])),
        RawPart(f"{root}: test", x_test, np.array([label for _, label in test])),
        (f"{root}: unlabeled", x_unlabeled) if unlabeled else None,
    )


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
    """The pixels ``(1 or 3, H, W)`` of a file, which must have the shape of another file."""
    from PIL import Image

    try:
        with Image.open(file) as image:
            size = (image.height, image.width)
            if like and size != like[1][1:]:  # checked before it is unpacked: the image may be very large
                shown, other = (f"{width}×{height}" for height, width in (size, like[1][1:]))
                raise DataError(f"has the size {shown}, {like[0]} has {other}; resize them to one size first")
            pixels = image_pixels(image)
            if like and len(pixels) != like[1][0]:
                kind, other = ("gray", "in color") if len(pixels) == 1 else ("in color", "gray")
                raise DataError(f"is {kind}, {like[0]} is {other}; convert them to one kind first")
            return pixels
    except DataError as error:
        raise DataError(f"{file} {error}") from error
    except Exception as error:  # a broken image may raise anything in Pillow
        raise unreadable(file, error) from error


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


def _class_files(folder: Path) -> list[tuple[Path, str]]:
    """The images below each folder in ``folder``, with its name; a folder without images is not a class."""
    classes = sorted(path for path in folder.glob("*") if path.is_dir() and not path.name.startswith("."))
    return [(file, path.name) for path in classes for file in _image_files(path)]


def _image_files(folder: Path) -> list[Path]:
    def wanted(path: Path) -> bool:
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        return path.suffix.lower() in IMAGE_SUFFIXES and path.is_file() and not hidden

    return sorted(filter(wanted, folder.rglob("*")))
