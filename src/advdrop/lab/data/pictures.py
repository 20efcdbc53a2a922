"""Pictures as people have them: any size, any mode, any orientation, turned into pixels of one shape.

Training and prediction use the same functions, so a picture gives the same pixels in both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from advdrop.lab.data.examples import Array, DataError, reading

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
"""What a picture may be, whatever its name is. Pillow knows others too, and runs Ghostscript for one of them."""
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".ppm", ".pgm"})


@contextmanager
def opened(source: Path | IO[bytes]) -> Iterator[Image]:
    """Open a picture from a path or an open binary file. More pixels than Pillow's limit are refused."""
    from PIL import Image

    where = source if isinstance(source, Path) else Path("the image")
    with warnings.catch_warnings(), reading(where, advice="repair it or leave it out"):
        warnings.simplefilter("ignore", UserWarning)  # of metadata that are damaged
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        # Pillow maps a TIFF file that it opens by its path to memory, and scrambles one that lies on its side.
        with (
            source.open("rb") if isinstance(source, Path) else nullcontext(source) as file,
            Image.open(file, formats=FORMATS) as image,
        ):
            yield image


def is_gray(image: Image) -> bool:
    """Return True if a picture has no color by its mode. Palettes count as color."""
    return image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")


def pixels(image: Image, shape: tuple[int, int, int]) -> Array:
    """Return the pixels of a picture as uint8 of ``shape``, which is ``(1 or 3, H, W)``.

    The picture is turned as its EXIF data say, put on white where it is transparent, converted to gray or RGB, and
    stretched to the size, smoothly if that shrinks it. 16 and 32 bits a channel become 8, see `_eight_bits`. A picture
    that fits already is not changed. Of an animation the first picture is taken.
    """
    from PIL import Image, ImageOps

    channels, height, width = shape
    image.draft(None, (2 * max(height, width),) * 2)  # a large JPEG file is read at a half, a quarter or an eighth
    image = _eight_bits(ImageOps.exif_transpose(image))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("L" if channels == 1 else "RGB")
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    found = np.array(image, np.uint8)
    return found[None] if channels == 1 else found.transpose(2, 0, 1)


def _eight_bits(image: Image) -> Image:
    """Return a picture of 16 or 32 bits a channel with 8 of them.

    0 to 65535 become 0 to 255. 32 bits have no scale of their own: numbers up to 255 are kept, and those up to 65535
    are taken for 16 bits.
    """
    from PIL import Image

    if image.mode == "F":
        raise DataError("it holds floating-point numbers; save it with 8 or 16 bits a channel")
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image, np.int64)
    if values.min() < 0 or values.max() > 65535:
        raise DataError(f"it holds numbers from {values.min()} to {values.max()}; save it with 8 or 16 bits a channel")
    kept = image.mode == "I" and values.max() <= 255
    return Image.fromarray((values if kept else values // 257).astype(np.uint8))
