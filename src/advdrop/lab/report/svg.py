"""Line charts as SVG, drawn here.

A plotting library would bring megabytes, colors that cannot follow a reader's dark mode and text as outlines. These
charts take their colors from the page's style sheet (classes ``s0`` to ``s9``), and their text is text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE = Path(__file__).with_name("figure.css")
"""The colors and lines of all figures, in light and dark; a page and a file of its own have the same."""
WIDTH, HEIGHT = 480, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 12, 46


@dataclass(frozen=True)
class Figure:
    """A chart, what it shows and the names of its lines with the numbers of their colors."""

    title: str
    svg: str
    legend: Sequence[tuple[str, int]]
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A curve, with a band around it if there is one.

    Args:
        name: for the legend and the text alternative.
        x: ascending.
        y: as many.
        low: the lower edge of the band.
        high: the upper edge.
        style: the number of its color.
        dots: whether every point is marked, and not the last one alone.
        dashed: whether the line is.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: int = 0
    dots: bool = False
    dashed: bool = False


def chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    log: bool = False,
    within: tuple[float, float] | None = None,
) -> str:
    """A line chart that is as wide as the place it is put in.

    Args:
        lines: at least one, with at least one point.
        title: what it shows; the text alternative begins with it.
        x_label: below.
        y_label: at the left.
        log: whether y has a logarithmic scale; all values must be positive then.
        within: values that the y axis must reach at least, so that several charts have one scale.
    """
    xs = [x for line in lines for x in line.x]
    ys = [y for line in lines for y in (*line.y, *line.low, *line.high)] + list(within or ())
    floor = max(min(y for line in lines for y in line.y) / 2, 1e-300)  # a band may reach below zero
    ys = [max(y, floor) for y in ys] if log else [*ys, 0.0]
    x_ticks = ticks(min(*xs, 0.0), max(xs))
    y_ticks = log_ticks(min(ys), max(ys)) if log else ticks(min(ys), max(ys))
    x_of = _scale(x_ticks[0], x_ticks[-1], LEFT, WIDTH - RIGHT)
    low, high = (math.log(y_ticks[0]), math.log(y_ticks[-1])) if log else (y_ticks[0], y_ticks[-1])
    linear = _scale(low, high, HEIGHT - BOTTOM, TOP)

    def y_of(y: float) -> float:
        return linear(math.log(max(y, y_ticks[0]))) if log else linear(y)

    parts = [
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" height="{HEIGHT - TOP - BOTTOM}"/>'
    ]
    for tick in x_ticks:
        parts.append(
            f'<text x="{x_of(tick):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{number(tick)}</text>'
        )
    for tick in y_ticks:
        y = y_of(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(tick)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_label)}</text>')
    turned = f'transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)"'
    parts.append(f'<text {turned} text-anchor="middle">{escape(y_label)}</text>')
    for line in lines:
        if line.low:
            edge = [*zip(line.x, line.high, strict=True), *reversed(list(zip(line.x, line.low, strict=True)))]
            points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in edge)
            parts.append(f'<polygon class="band s{line.style}" points="{points}"/>')
    for line in lines:
        points = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in zip(line.x, line.y, strict=True))
        kind = "curve dashed" if line.dashed else "curve"
        shape = f'<polyline class="{kind} s{line.style}" points="{points}"/>'
        marked = range(len(line.x)) if line.dots else [-1]
        dots = "".join(
            f'<circle class="dot s{line.style}" cx="{x_of(line.x[i]):.1f}" cy="{y_of(line.y[i]):.1f}" r="3"/>'
            for i in marked
        )
        parts.append(f"<g><title>{escape(line.name)}</title>{shape}{dots}</g>")
    ends = "; ".join(f"{line.name} ends at {line.y[-1]:.3g}" for line in lines)
    said = escape(f"{title}. {y_label} against {x_label}. {ends}.", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers that enclose a range.

    >>> ticks(0.0, 9.3)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    >>> ticks(1.0, 1.0)
    [0.4, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6]
    """
    if high - low < 1e-300:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / count
    digits = math.floor(math.log10(rough))
    power = 10.0**digits
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(place * step, 2 - digits) for place in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten that enclose a range; powers alone if that is too many.

    >>> log_ticks(0.9, 6.0)
    [0.5, 1.0, 2.0, 5.0, 10.0]
    """
    span = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 2)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        marks = [factor * 10.0**power for power in span for factor in factors]
        below = max(mark for mark in marks if mark <= low * 1.0001)
        above = min(mark for mark in marks if mark >= high * 0.9999)
        found = [mark for mark in marks if below <= mark <= above]
        if len(found) <= 8:
            break
    return [float(f"{mark:.6g}") for mark in found] if len(found) > 1 else [found[0], found[0] * 10]


def number(value: float) -> str:
    """A short number.

    >>> number(2000.0), number(0.05), number(2.5)
    ('2,000', '0.05', '2.5')
    """
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:g}"


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    return lambda value: start + (value - low) / (high - low) * (end - start)


def standalone(svg: str, title: str, legend: Sequence[tuple[str, int]] = ()) -> str:
    """A figure as a file of its own: with its title, its legend and its style.

    Args:
        svg: as it would be in a page.
        title: above it.
        legend: names and the numbers of their colors.
    """
    found = re.match(r'<svg viewBox="0 0 (\S+) (\S+)"', svg)
    assert found is not None
    width, height = float(found[1]), float(found[2])
    scale = max(1.0, width / (2 * WIDTH))
    edge = 12 * scale
    x, y, parts = edge, height + 48 * scale, []
    for name, style in legend:
        length = (len(name) * 7.4 + 36) * scale
        if x > edge and x + length > width + edge:
            x, y = edge, y + 20 * scale
        parts.append(f'<path class="curve s{style}" d="M{x:.0f} {y - 4 * scale:.0f}h{14 * scale:.0f}"/>')
        parts.append(f'<text x="{x + 20 * scale:.0f}" y="{y:.0f}" {_size(scale)}>{escape(name)}</text>')
        x += length
    total = y + edge if legend else height + 28 * scale + edge
    head = f'<text class="title" x="{edge:.0f}" y="{20 * scale:.0f}" {_size(scale)}>{escape(title)}</text>'
    place = f'x="{edge:.0f}" y="{28 * scale:.0f}" width="{width:g}" height="{height:g}"'
    rules = f"<style>{STYLE.read_text(encoding='utf-8')}</style>"
    box = f'viewBox="0 0 {width + 2 * edge:g} {total:.0f}" width="{width + 2 * edge:g}" height="{total:.0f}"'
    paper = '<rect class="paper" width="100%" height="100%"/>'
    drawn = svg.replace("<svg ", f"<svg {place} ", 1)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>{rules}{paper}{head}{drawn}{"".join(parts)}</svg>\n'


def _size(scale: float) -> str:
    return f'style="font-size:{13 * scale:.0f}px"'
