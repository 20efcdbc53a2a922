"""Pictures made of pixels: a PNG within an SVG, so that a page needs no other file."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, sqrt

from advdrop.lab.records.measurement import LEVELS

GAP = 1
"""Pixels between two tiles."""
Color = tuple[int, int, int]
BLUE, WHITE, ORANGE = (0, 90, 170), (255, 255, 255), (196, 90, 0)


@dataclass(frozen=True)
class Tiles:
    """The features of one model.

    Args:
        title: what they are, for those who cannot see them.
        steps: from −31 to 31, tile after tile.
        shape: of one tile: ``(height, width)``, or ``(1, height, width)``.
        dead: how many of the last tiles to cross out.
    """

    title: str
    steps: Sequence[int]
    shape: Sequence[int]
    dead: int


def unpacked(picture: str, factor: float) -> list[int]:
    """The steps of a packed picture, on a scale that is ``1 / factor`` times its own.

    >>> unpacked(base64.b85encode(zlib.compress(bytes([31, 225, 0]))).decode(), 0.5)
    [16, -16, 0]
    """
    levels = [min(LEVELS, max(-LEVELS, round((b - 256 if b > 127 else b) * factor))) for b in range(256)]
    return [levels[byte] for byte in zlib.decompress(base64.b85decode(picture))]


def square(model: Tiles, size: int = 460) -> str:
    """The tiles of a model in a square; at 460 pixels those of 28 pixels across are near their own size."""
    tall, wide = model.shape[-2:]
    count = len(model.steps) // (tall * wide)
    across = ceil(sqrt(count))
    pixel = size / (across * (wide + GAP) + GAP)
    parts = [image(tiled(model.steps, tall, wide, across), DIVERGING, size)]
    for tile in range(count - model.dead, count):
        x, y = ((tile % across) * (wide + GAP) + GAP) * pixel, ((tile // across) * (tall + GAP) + GAP) * pixel
        w, h = wide * pixel, tall * pixel
        cross = f"M{x:.1f} {y:.1f}l{w:.1f} {h:.1f}M{x + w:.1f} {y:.1f}l{-w:.1f} {h:.1f}"
        parts.append(f'<path class="cross" d="{cross}"/>')
    said, height = escape(model.title, quote=True), ceil(count / across) * (tall + GAP) * pixel + GAP * pixel
    return f'<svg viewBox="0 0 {size} {height:g}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def png(picture: Sequence[Sequence[int]], palette: Sequence[Color]) -> bytes:
    """A PNG of rows of places in a palette of 256 colors at most."""
    raw = b"".join(b"\0" + bytes(line) for line in picture)
    header = struct.pack(">IIBBBBB", len(picture[0]), len(picture), 8, 3, 0, 0, 0)
    colors = b"".join(bytes(color) for color in palette)
    parts = [(b"IHDR", header), (b"PLTE", colors), (b"IDAT", zlib.compress(raw, 9)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts
    )


def image(picture: Sequence[Sequence[int]], palette: Sequence[Color], width: float) -> str:
    """A PNG as an element of an SVG."""
    height = width * len(picture) / len(picture[0])
    data = base64.b64encode(png(picture, palette)).decode()
    return (
        f'<image width="{width:g}" height="{height:.2f}" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def tiled(steps: Sequence[int], tall: int, wide: int, across: int) -> list[list[int]]:
    """Tiles of steps side by side, as places in the palette ``DIVERGING``; between them is gray."""
    count = len(steps) // (tall * wide)
    columns, lines = across * (wide + GAP) + GAP, ceil(count / across) * (tall + GAP) + GAP
    picture = [[0] * columns for _ in range(lines)]
    for tile in range(count):
        top, left = (tile // across) * (tall + GAP) + GAP, (tile % across) * (wide + GAP) + GAP
        for line in range(tall):
            start = (tile * tall + line) * wide
            picture[top + line][left : left + wide] = [step + LEVELS + 1 for step in steps[start : start + wide]]
    return picture


def _color(value: float) -> Color:
    """From −1, blue, over 0, white, to 1, orange."""
    end, share = (ORANGE, value) if value > 0 else (BLUE, -value)
    red, green, blue = (round(w + (e - w) * share) for w, e in zip(WHITE, end, strict=True))
    return red, green, blue


DIVERGING = [(128, 128, 128), *(_color(step / LEVELS) for step in range(-LEVELS, LEVELS + 1))]
"""Gray, then from −31, blue, over 0, white, to 31, orange."""
