"""Algorithm 1 on one image, as one figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, sqrt

from advdrop.report.pictures import DIVERGING, LEVELS, Colour, image, tiled

PANEL, MARGIN, HEAD = 224, 16, 22
BAR = 17
GREYS: list[Colour] = [(level, level, level) for level in range(256)]
MASKS: list[Colour] = [(128, 128, 128), (242, 242, 242), (60, 60, 60), (0, 90, 170), (196, 90, 0)]
"""Between tiles, dropped, kept, revived by the adversary, dropped by the adversary."""
DROPPED, KEPT, REVIVED, LOST = 1, 2, 3, 4


@dataclass(frozen=True)
class Explanation:
    """What Algorithm 1 does with one example.

    Args:
        title: which example, of which run.
        image: its pixels from 0 to 1, ``(rows, columns)``, or none if it is no image.
        shape: of the units of the layer, such as ``(128, 4, 4)``.
        sampled: εs, unit by unit.
        jacobian: J at ε0 = 1, unit by unit.
        adversarial: εadv, unit by unit.
        budget: the flips that were allowed.
        target: what the divergence is from.
        classes: their names.
        whole: the probabilities without dropout.
        before: those under εs.
        after: those under εadv.
        divergence: D under εs and under εadv.
    """

    title: str
    image: Sequence[Sequence[float]]
    shape: Sequence[int]
    sampled: Sequence[int]
    jacobian: Sequence[float]
    adversarial: Sequence[int]
    budget: int
    target: str
    classes: Sequence[str]
    whole: Sequence[float]
    before: Sequence[float]
    after: Sequence[float]
    divergence: tuple[float, float]

    @property
    def flips(self) -> list[int]:
        """The units that were flipped, the largest gain first."""
        pairs = enumerate(zip(self.sampled, self.adversarial, strict=True))
        changed = [unit for unit, (before, after) in pairs if before != after]
        return sorted(changed, key=lambda unit: -abs(self.jacobian[unit]))

    @property
    def words(self) -> str:
        """What happened, in a few sentences."""
        units, flips = len(self.sampled), self.flips
        lost = sum(self.sampled[unit] for unit in flips)
        guesses = [max(range(len(p)), key=lambda c: p[c]) for p in (self.before, self.after)]
        pairs = zip(guesses, (self.before, self.after), strict=True)
        old, new = (f"{self.classes[guess]} ({100 * p[guess]:.1f} %)" for guess, p in pairs)
        same = guesses[0] == guesses[1]
        change = f"The prediction stays {old}, now {new}." if same else f"The prediction changes from {old} to {new}."
        return (
            f"{units} units, {sum(self.sampled)} of them kept by the sampled mask. Of {self.budget} flips allowed, "
            f"{len(flips)} were made: {lost} dropped, {len(flips) - lost} revived. The divergence from {self.target} "
            f"goes from {self.divergence[0]:.4g} to {self.divergence[1]:.4g}. {change}"
        )

    def svg(self) -> str:
        """The figure: the image, εs, J, εadv, and the class probabilities before and after."""
        panels = [
            ("The image", image(_grey(self.image), GREYS, PANEL) if self.image else ""),
            ("Sampled mask: dark is kept", self._mask(self.sampled)),
            ("Jacobian: orange raises D", self._slopes()),
            ("Flipped: orange lost, blue revived", self._flipped()),
        ]
        parts = []
        for number, (title, drawn) in enumerate(panel for panel in panels if panel[1]):
            x, y = number % 2 * (PANEL + MARGIN), number // 2 * (PANEL + HEAD + MARGIN)
            parts.append(f'<text x="{x}" y="{y + 15}">{escape(title)}</text>')
            parts.append(f'<g transform="translate({x} {y + HEAD})">{drawn}</g>')
        top = 2 * (PANEL + HEAD + MARGIN)
        bars, height = self._bars(top)
        said = escape(f"{self.title}. {self.words}", quote=True)
        width = 2 * PANEL + MARGIN
        return f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{said}">{"".join(parts)}{bars}</svg>'

    @property
    def legend(self) -> list[tuple[str, int]]:
        """The colours of the bars."""
        return [("no dropout", 0), ("sampled mask", 1), ("adversarial mask", 2)]

    def _tiles(self) -> tuple[int, int, int]:
        """The height and width of a tile, and how many are side by side: a tile a channel, or one of all units."""
        units = len(self.sampled)
        if len(self.shape) == 3 and self.shape[1] * self.shape[2] > 1:
            return self.shape[1], self.shape[2], ceil(sqrt(self.shape[0]))
        side = ceil(sqrt(units))
        return ceil(units / side), side, 1

    def _places(self, places: Sequence[int]) -> list[list[int]]:
        """A place in a palette for each unit, where the unit is drawn."""
        tall, wide, across = self._tiles()
        steps = [place - LEVELS - 1 for place in places]
        return tiled([*steps, *[-LEVELS - 1] * (-len(steps) % (tall * wide))], tall, wide, across)

    def _mask(self, mask: Sequence[int]) -> str:
        return image(self._places([KEPT if kept else DROPPED for kept in mask]), MASKS, PANEL)

    def _flipped(self) -> str:
        """All units pale, but for the flipped ones, with rings around them: ten of 2,048 are hard to see."""
        tall, wide, across = self._tiles()
        flips = set(self.flips)
        kinds = [(REVIVED, LOST)[kept] if unit in flips else DROPPED for unit, kept in enumerate(self.sampled)]
        places = self._places(kinds)
        pixel = PANEL / len(places[0])
        rings = []
        for unit in flips:
            tile, inner = divmod(unit, tall * wide)
            x = ((tile % across) * (wide + 1) + 1 + inner % wide + 0.5) * pixel
            y = ((tile // across) * (tall + 1) + 1 + inner // wide + 0.5) * pixel
            style = 2 if self.sampled[unit] else 1
            rings.append(f'<circle class="ring s{style}" cx="{x:.1f}" cy="{y:.1f}" r="{max(5.0, pixel):.1f}"/>')
        return image(places, MASKS, PANEL) + "".join(rings)

    def _slopes(self) -> str:
        largest = max(map(abs, self.jacobian)) or 1.0
        places = [round(LEVELS * slope / largest) + LEVELS + 1 for slope in self.jacobian]
        return image(self._places(places), DIVERGING, PANEL)

    def _bars(self, top: int) -> tuple[str, int]:
        name = 12 + 7 * max(len(label) for label in self.classes)
        room, parts = 2 * PANEL + MARGIN - name - 56, []
        each = 3 * BAR // 2
        parts.append(f'<text x="0" y="{top + 12}">Class probabilities</text>')
        top += 22
        for place, label in enumerate(self.classes):
            y = top + place * (each + 10)
            parts.append(f'<text x="{name - 8}" y="{y + each / 2 + 5:.0f}" text-anchor="end">{escape(label)}</text>')
            for row, (style, values) in enumerate(enumerate((self.whole, self.before, self.after))):
                width = max(0.5, room * values[place])
                parts.append(
                    f'<rect class="bar s{style}" x="{name}" y="{y + row * BAR / 2:.1f}" width="{width:.1f}" '
                    f'height="{BAR / 2 - 1:.1f}"/>'
                )
            parts.append(
                f'<text x="{name + room + 6}" y="{y + each / 2 + 5:.0f}">{100 * self.after[place]:.1f} %</text>'
            )
        return "".join(parts), top + len(self.classes) * (each + 10)


def _grey(picture: Sequence[Sequence[float]]) -> list[list[int]]:
    return [[round(255 * min(1.0, max(0.0, value))) for value in line] for line in picture]
