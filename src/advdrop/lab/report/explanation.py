"""The mask search on one example as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import ceil, sqrt
from typing import TYPE_CHECKING

from advdrop.lab.records.measurement import LEVELS
from advdrop.lab.report.pictures import DIVERGING, Color, image, tiled
from advdrop.lab.report.svg import Figure

if TYPE_CHECKING:  # reports are made without torch
    from advdrop.analysis.explain import Explanation

PANEL, MARGIN, HEAD = 224, 16, 22
BAR = 17
GRAYS: list[Color] = [(level, level, level) for level in range(256)]
MASKS: list[Color] = [(128, 128, 128), (242, 242, 242), (60, 60, 60), (0, 90, 170), (196, 90, 0)]
"""The colors between tiles, and of units that are dropped, kept, revived by the adversary, dropped by the adversary."""
DROPPED, KEPT, REVIVED, LOST = 1, 2, 3, 4
LEGEND = [("no dropout", 0), ("sampled mask", 1), ("adversarial mask", 2)]
"""The names and colors of the bars."""


def figure(found: Explanation) -> Figure:
    """Draw the image, εs, J, εadv, and the class probabilities before and after."""
    panels = [
        ("The image", image(_gray(found.image), GRAYS, PANEL) if found.image else ""),
        ("Sampled mask: dark is kept", _mask(found)),
        ("Jacobian: orange raises D", _jacobian(found)),
        ("Flipped: orange lost, blue revived", _flips(found)),
    ]
    parts = []
    for number, (title, drawn) in enumerate(panel for panel in panels if panel[1]):
        x, y = number % 2 * (PANEL + MARGIN), number // 2 * (PANEL + HEAD + MARGIN)
        parts.append(f'<text x="{x}" y="{y + 15}">{escape(title)}</text>')
        parts.append(f'<g transform="translate({x} {y + HEAD})">{drawn}</g>')
    top = 2 * (PANEL + HEAD + MARGIN)
    bars, height = _bars(found, top)
    label = escape(f"{found.title}. {found.summary}", quote=True)
    width = 2 * PANEL + MARGIN
    svg = f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{label}">{"".join(parts)}{bars}</svg>'
    return Figure(found.title, svg, LEGEND, found.summary)


def _tiles(found: Explanation) -> tuple[int, int, int]:
    """Return the height and width of a tile and the tiles per row: one tile for each channel, or one for all units."""
    units, shape = len(found.sampled), found.shape
    if len(shape) == 3 and shape[1] * shape[2] > 1:
        return shape[1], shape[2], ceil(sqrt(shape[0]))
    side = ceil(sqrt(units))
    return ceil(units / side), side, 1


def _placed(found: Explanation, colors: Sequence[int]) -> list[list[int]]:
    """Arrange the color numbers of the units as pixels."""
    tall, wide, across = _tiles(found)
    steps = [color - LEVELS - 1 for color in colors]
    return tiled([*steps, *[-LEVELS - 1] * (-len(steps) % (tall * wide))], tall, wide, across)


def _mask(found: Explanation) -> str:
    return image(_placed(found, [KEPT if kept else DROPPED for kept in found.sampled]), MASKS, PANEL)


def _jacobian(found: Explanation) -> str:
    largest = max(map(abs, found.jacobian)) or 1.0
    colors = [round(LEVELS * slope / largest) + LEVELS + 1 for slope in found.jacobian]
    return image(_placed(found, colors), DIVERGING, PANEL)


def _flips(found: Explanation) -> str:
    """Draw the flipped units with rings around them, since ten of 2,048 pixels are hard to see; all others pale."""
    tall, wide, across = _tiles(found)
    flips = set(found.flips)
    kinds = [(REVIVED, LOST)[kept] if unit in flips else DROPPED for unit, kept in enumerate(found.sampled)]
    pixels = _placed(found, kinds)
    size = PANEL / len(pixels[0])
    rings = []
    for unit in flips:
        tile, inner = divmod(unit, tall * wide)
        x = ((tile % across) * (wide + 1) + 1 + inner % wide + 0.5) * size
        y = ((tile // across) * (tall + 1) + 1 + inner // wide + 0.5) * size
        style = 2 if found.sampled[unit] else 1
        rings.append(f'<circle class="ring s{style}" cx="{x:.1f}" cy="{y:.1f}" r="{max(5.0, size):.1f}"/>')
    return image(pixels, MASKS, PANEL) + "".join(rings)


def _bars(found: Explanation, top: int) -> tuple[str, int]:
    """Draw the class probabilities from ``top`` on, and return the height of the whole figure with it."""
    name = 12 + 7 * max(len(label) for label in found.classes)
    room, parts = 2 * PANEL + MARGIN - name - 56, []
    each = 3 * BAR // 2
    parts.append(f'<text x="0" y="{top + 12}">Class probabilities</text>')
    top += 22
    for place, label in enumerate(found.classes):
        y = top + place * (each + 10)
        parts.append(f'<text x="{name - 8}" y="{y + each / 2 + 5:.0f}" text-anchor="end">{escape(label)}</text>')
        for style, values in enumerate((found.whole, found.before, found.after)):
            width = max(0.5, room * values[place])
            parts.append(
                f'<rect class="bar s{style}" x="{name}" y="{y + style * BAR / 2:.1f}" width="{width:.1f}" '
                f'height="{BAR / 2 - 1:.1f}"/>'
            )
        parts.append(f'<text x="{name + room + 6}" y="{y + each / 2 + 5:.0f}">{100 * found.after[place]:.1f} %</text>')
    return "".join(parts), top + len(found.classes) * (each + 10)


def _gray(picture: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[round(255 * min(1.0, max(0.0, value))) for value in line] for line in picture]
