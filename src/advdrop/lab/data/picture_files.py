"""Many picture files as one array: a size and a color for all, odd files skipped, and one summary of what was done."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from advdrop.lab.choices import Color
from advdrop.lab.data.examples import Array, DataError, check_memory, shortened
from advdrop.lab.data.pictures import is_gray, opened, pixels

LARGEST = 64
"""The most pixels of a side that are chosen without being asked. Larger images take hours on a CPU."""
SMALLEST = 16
"""The fewest pixels of a side that images of different sizes get. The poolings of the networks need them."""
NAMED = 3
"""How many of the skipped files the summary names."""
ORIENTATION, TURNED = 0x0112, (5, 6, 7, 8)  # the EXIF tag, and its values for pictures that lie on their side

Size = tuple[int, int]
"""Height and width."""


class Header(NamedTuple):
    """What the first bytes of a picture file say."""

    size: Size
    mode: str
    gray: bool


@dataclass(frozen=True)
class Pictures:
    """The pixels of picture files."""

    x: Array  # (N, C, H, W) of uint8, of the N files that could be read
    read: NDArray[np.bool_]  # which of the files could be read
    notes: tuple[str, ...]  # what was chosen, and what was done


def read_pictures(
    where: Path,
    files: Sequence[Path],
    names: Sequence[str],
    *,
    size: Size | None = None,
    color: Color | None = None,
    progress: bool = False,
) -> Pictures:
    """Read picture files as images of one shape. Those that cannot be read are skipped, unless it is most of them.

    Args:
        where: what errors about all of them name.
        files: the files.
        names: what the summary calls them.
        size: height and width; by default see `choose`.
        color: by default see `choose`.
        progress: show progress if it takes more than two seconds.
    """
    every = 0.5 if sys.stderr.isatty() else 30.0  # seconds
    headers: list[Header | str] = []
    with tqdm(
        total=2 * len(files), desc="reading images", delay=2, leave=False, mininterval=every, disable=not progress
    ) as bar:
        for file in files:
            headers.append(header(file))
            bar.update()
        good = [found for found in headers if isinstance(found, Header)]
        if not good:
            raise DataError(f"{where}: none of {len(files):,} images can be read ({_listed(names, headers)})")
        shape = choose(good, size, color)
        check_memory(where, len(good) * int(np.prod(shape)))
        x, kept = np.empty((len(good), *shape), np.uint8), 0
        for number, found in enumerate(headers):
            if isinstance(found, Header):
                try:
                    with opened(files[number]) as image:
                        x[kept] = pixels(image, shape)
                    kept += 1
                except DataError as error:
                    headers[number] = reason(error)
            bar.update()
    skipped = [found for found in headers if isinstance(found, str)]
    if 2 * len(skipped) > len(files):
        raise DataError(
            f"{where}: {len(skipped):,} of {len(files):,} images cannot be read ({_listed(names, headers)}), and what "
            "is left may not be what you mean; repair them or leave them out"
        )
    good = [found for found in headers if isinstance(found, Header)]
    notes = (described(good, shape), summary(good, shape, len(skipped), _listed(names, headers)))
    return Pictures(x[:kept], np.array([isinstance(found, Header) for found in headers], np.bool_), notes)


def header(file: Path) -> Header | str:
    """Return what a file says about its picture without reading the pixels, or why it cannot be read."""
    try:
        if not file.is_file():  # to open a pipe would wait forever
            return "not a file" if file.exists() or file.is_symlink() else "no such file"
        with opened(file) as image:
            # A PNG file may have EXIF data after its pixels, which would have to be read first. The size that Pillow
            # gives for a TIFF file is that of the picture that was turned.
            turned = image.format not in ("PNG", "TIFF") and image.getexif().get(ORIENTATION) in TURNED
            size = (image.width, image.height) if turned else (image.height, image.width)
            return Header(size, image.mode, is_gray(image))
    except DataError as error:
        return reason(error)
    except OSError as error:  # of a name that is too long, or in a folder that is closed
        return error.strerror or type(error).__name__


def reason(error: DataError) -> str:
    """Return in a few words why a picture cannot be read."""
    cause = error.__cause__
    match type(cause).__name__:
        case "UnidentifiedImageError":
            return "not an image"
        case "DecompressionBombWarning" | "DecompressionBombError":
            return "too many pixels"
        case "DataError":
            return str(cause).partition(";")[0]
    return str(cause or error).partition("\n")[0][:60] or type(cause).__name__


def choose(headers: Sequence[Header], size: Size | None = None, color: Color | None = None) -> tuple[int, int, int]:
    """Return the shape ``(C, H, W)`` for pictures.

    Pictures that all have one size of at most `LARGEST` pixels a side keep it. Others become squares: the median of all
    widths and heights, rounded to a multiple of 4, from `SMALLEST` to `LARGEST`. A square is the one shape that fits
    pictures of both orientations, and every network takes it. If any picture has color, all are RGB: a gray picture
    loses nothing by it.

    >>> choose([Header((20, 30), "L", True), Header((60, 90), "L", True)])
    (1, 44, 44)
    """
    channels = 3 if color == "rgb" or (color is None and not all(each.gray for each in headers)) else 1
    sizes = {each.size for each in headers}
    if size is None and len(sizes) == 1 and max(max(sizes)) <= LARGEST:
        size = headers[0].size
    if size is None:
        side = 4 * round(median(side for each in headers for side in each.size) / 4)
        size = (min(max(side, SMALLEST), LARGEST),) * 2
    return channels, *size


def described(headers: Sequence[Header], shape: tuple[int, int, int]) -> str:
    """Return the shape in words, and the sizes of the pictures if they are not of this size."""
    channels, height, width = shape
    kind = "in color" if channels == 3 else "gray"
    if {each.size for each in headers} == {(height, width)}:
        return f"images of {width}×{height} pixels, {kind}"
    low, high = (f(headers, key=lambda each: each.size[0] * each.size[1]).size for f in (min, max))
    found = f"{low[1]}×{low[0]}" if low == high else f"{low[1]}×{low[0]} to {high[1]}×{high[0]}"
    return f"images of {found} pixels become {width}×{height}, {kind} (--size and --color choose otherwise)"


def summary(headers: Sequence[Header], shape: tuple[int, int, int], skipped: int, which: str) -> str:
    """Return in one line what was read, changed and skipped."""
    mode = "RGB" if shape[0] == 3 else "L"
    changes = {
        "resized": sum(each.size != shape[1:] for each in headers),
        f"converted to {'RGB' if mode == 'RGB' else 'gray'}": sum(each.mode != mode for each in headers),
        f"skipped ({which})": skipped,
    }
    done = ", ".join(f"{count:,} {what}" for what, count in changes.items() if count)
    of = f" of {len(headers) + skipped:,}" if skipped else ""
    return f"read {len(headers):,}{of} images" + (f": {done}" if done else "")


def _listed(names: Sequence[str], headers: Sequence[Header | str]) -> str:
    """Return the first skipped files with the reasons."""
    skipped = [f"{name}: {found}" for name, found in zip(names, headers, strict=True) if isinstance(found, str)]
    return shortened(skipped, NAMED)
