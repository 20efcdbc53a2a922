"""The mask search on one example as a figure."""

from __future__ import annotations

from math import ceil, sqrt
from typing import TYPE_CHECKING, Any

from advdrop.lab.report.charts import COLORS, DIVERGING, WIDTH, Figure, drawing, plain, show, tiled

if TYPE_CHECKING:  # reports are made without torch
    from matplotlib.axes import Axes

    from advdrop.analysis.explain import Explanation

PALE, DARK = "#f2f2f2", "#3c3c3c"
BARS = ("no dropout", "sampled mask", "adversarial mask")
"""The names of the bars, in the order of their colors."""


def figure(found: Explanation) -> Figure:
    """Draw the image, εs, J, εadv, and the class probabilities before and after."""
    largest, flips = max(map(abs, found.jacobian)) or 1.0, set(found.flips)
    slopes = [slope / largest for slope in found.jacobian]
    changes = [(2 * kept - 1.0) * (unit in flips) for unit, kept in enumerate(found.sampled)]
    panels: list[tuple[str, Any, tuple[str, ...], float]] = []
    if found.image:
        panels += [("The image", found.image, ("#000000", "#ffffff"), 0.0)]
    panels += [
        ("Sampled mask: dark is kept", tiled(found.sampled, *_tile(found)), (PALE, DARK), 0.0),
        ("Jacobian: orange raises D", tiled(slopes, *_tile(found)), DIVERGING, -1.0),
        ("Flipped: orange lost, blue revived", tiled(changes, *_tile(found)), (DIVERGING[0], PALE, DIVERGING[2]), -1.0),
    ]
    heights = [WIDTH, 30 + 34 * len(found.classes)]
    with drawing(found.title, sum(heights), BARS) as (drawn, save):
        top, bottom = drawn.subfigures(2, 1, height_ratios=heights, squeeze=False).flat
        places = list(top.subplots(2, 2).flat)
        for axes, (title, pixels, colors, low) in zip(places, panels, strict=False):
            show(axes, pixels, colors, low, 1.0)
            axes.set_title(title, fontsize=10)
        places[-1].set_axis_off()
        # Ten of 2,048 pixels are hard to see without rings around them.
        for change, color in ((1, COLORS[2]), (-1, COLORS[1])):
            y, x = (tiled(changes, *_tile(found)) == change).nonzero()
            places[len(panels) - 1].scatter(x, y, s=60, facecolors="none", edgecolors=color)
        _bars(bottom.subplots(), found)
        return Figure(found.title, save(f"{found.title}. {found.summary}"), found.summary)


def _tile(found: Explanation) -> tuple[int, int]:
    """Return the height and width of a tile: one tile for each channel, or one for all units."""
    shape = found.shape
    if len(shape) == 3 and shape[1] * shape[2] > 1:
        return shape[1], shape[2]
    side = ceil(sqrt(len(found.sampled)))
    return ceil(len(found.sampled) / side), side


def _bars(axes: Axes, found: Explanation) -> None:
    """Draw the class probabilities, and write down those under the adversarial mask."""
    places = range(len(found.classes))
    for style, (name, values) in enumerate(zip(BARS, (found.whole, found.before, found.after), strict=True)):
        heights = [place + 0.25 * (style - 1) for place in places]
        axes.barh(heights, values, height=0.22, color=COLORS[style], label=name)
    for place in places:
        axes.text(1.02, place, f"{100 * found.after[place]:.1f} %", va="center")
    axes.set(xlim=(0, 1.2), title="Class probabilities", yticks=places, xticks=[], ylim=(len(places) - 0.5, -0.5))
    axes.set_yticklabels([plain(label, 28) for label in found.classes])
    axes.spines[:].set_visible(False)
