"""Charts and pictures as SVG, drawn by matplotlib.

Text stays text, and colors are variables of ``figure.css``, so that a chart follows the reader's light or dark mode.
matplotlib is imported when something is drawn.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advdrop.lab.records.measurement import LEVELS
from advdrop.lab.report.text_table import line as one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

STYLE = Path(__file__).with_name("figure.css")
COLORS = ("#555555", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7a3fb0", "#b00020")
"""The colors ``--s0`` to ``--s9`` of the style sheet in light mode."""
RULE = "#d8d8d8"
DIVERGING = ("#005aaa", "#ffffff", "#c45a00")
"""Blue for negative, white for zero, orange for positive."""
VARIABLES = {color: f"var(--s{number})" for number, color in enumerate(COLORS)} | {RULE: "var(--rule)"}
WIDTH, HEIGHT = 420, 270
"""The size of a chart without title and legend, in points. Text of 12 points is readable on a screen of 400 pixels."""
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "advdrop",
    "font.size": 12,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "axes.axisbelow": True,
    "grid.color": RULE,
    "legend.frameon": False,
    "lines.linewidth": 2,
    "lines.markersize": 6,
}


@dataclass(frozen=True)
class Figure:
    """A drawing for a page, its title, and what has to be known to read it."""

    title: str
    svg: str
    note: str = ""


@dataclass(frozen=True)
class Line:
    """A curve, with a band from ``low`` to ``high`` if these are given."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    style: int = 0  # the number of the color
    dots: bool = False  # mark every point, not only the last one
    dashed: bool = False  # and leave it out of the legend


def chart(
    lines: Sequence[Line],
    title: str,
    x_label: str,
    y_label: str,
    *,
    log: bool = False,
    within: tuple[float, float] | None = None,
    note: str = "",
) -> Figure:
    """Draw lines; ``within`` has values that the y axis must include, so that several charts have the same scale."""
    names = [line.name for line in lines if not line.dashed]
    with drawing(title, HEIGHT, names) as (figure, save):
        axes = figure.subplots()
        for line in lines:
            color, marked = COLORS[line.style], slice(None) if line.dots else [-1]
            dashes: Any = (0, (5, 4)) if line.dashed else "solid"
            label = "_" if line.dashed else plain(line.name)
            axes.plot(line.x, line.y, color=color, linestyle=dashes, marker="o", markevery=marked, label=label)
            if line.low:
                axes.fill_between(line.x, line.low, line.high, color=color, alpha=0.16, linewidth=0)
        scale(axes, lines, log, within)
        axes.set(xlabel=plain(x_label), ylabel=plain(y_label))
        ends = "; ".join(f"{line.name} ends at {line.y[-1]:.3g}" for line in lines)
        return Figure(title, save(f"{title}. {y_label} against {x_label}. {ends}."), note)


def scale(axes: Axes, lines: Sequence[Line], log: bool, within: tuple[float, float] | None) -> None:
    """Set limits, ticks and grid: a plain axis includes zero, a logarithmic one has a part of a decade at least."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    values = [y for line in lines for y in line.y]
    axes.margins(x=0.03)
    axes.set_xlim(left=min(0.0, *(x for line in lines for x in line.x)))
    if log:
        axes.set_yscale("log")
        axes.set_ylim(min(values) / 1.5, max(max(line.high or line.y) for line in lines) * 1.2)
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        edges = [*values, *(y for line in lines for y in (*line.low, *line.high)), *(within or ()), 0.0]
        room = 0.05 * (max(edges) - min(edges) or 1.0)
        axes.set_ylim(min(edges) - room * (min(edges) < 0), max(edges) + room)
        axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.grid(axis="y")


def _columns(names: Sequence[str]) -> int:
    """Return the number of columns of a legend: two if the names are short."""
    return 2 if len(names) > 1 and max(map(len, names)) < 26 else 1


@contextmanager
def drawing(title: str, height: float, names: Sequence[str] = ()) -> Iterator[tuple[Drawing, Callable[[str], str]]]:
    """Yield an empty drawing, and a function from a text alternative to the SVG. ``names`` get a legend below it."""
    import matplotlib
    from matplotlib.figure import Figure as Drawing

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # the user's own settings must not change a figure
        matplotlib.rcParams.update(SETTINGS)
        words = textwrap.wrap(plain(title), WIDTH // 8)
        height += 17 * len(words) + 19 * ceil(len(names) / _columns(names) if names else 0)
        figure = Drawing(figsize=(WIDTH / 72, height / 72), layout="constrained")
        figure.patch.set_visible(False)
        figure.suptitle("\n".join(words), x=0.01, ha="left", fontsize=13, fontweight="bold")

        def save(said: str) -> str:
            if names:
                figure.legend(loc="outside lower left", ncols=_columns(names))
            text = io.StringIO()
            with warnings.catch_warnings():  # text stays text: the reader's fonts may have what matplotlib's lacks
                warnings.filterwarnings("ignore", "Glyph .* missing")
                figure.savefig(text, format="svg", metadata={"Date": None})
            return inline(text.getvalue(), said)

        yield figure, save


def plain(text: str, most: int = 100) -> str:
    """Return a text on one line, cut after this many letters, in which matplotlib finds no formula."""
    text = one_line(text)
    return (text if len(text) <= most else f"{text[: most - 1]}…").replace("$", r"\$")


def inline(svg: str, said: str) -> str:
    """Turn a file of matplotlib into an element of a page: no addresses, colors as variables, ids of its own."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r">\s+<", "><", svg.strip())
    svg = re.sub(r'base64,([^"]+)', lambda found: f"base64,{_fewer_colors(found[1])}", svg)
    used, own = set(re.findall(r"#(\w+)", svg)), hashlib.sha256(svg.encode()).hexdigest()[:8]

    def tag(found: re.Match[str]) -> str:
        text = " ".join(found[0].split()).replace("xlink:href", "href")
        text = re.sub(r" font-family: [^;\"]+;", "", text)
        text = re.sub(r' id="(\w*)"', lambda name: name[0] if name[1] in used else "", text)
        text = re.sub(r'(id="|href="#|url\(#)(?=\w)', rf"\1f{own}-", text)
        return re.sub("#[0-9a-f]{6}", lambda color: VARIABLES.get(color[0], color[0]), text)

    svg = re.sub("<[^>]+>", tag, svg)
    box = svg.split('viewBox="')[1].split('"')[0]
    return re.sub(
        "<svg[^>]*>", lambda _: f'<svg viewBox="{box}" role="img" aria-label="{escape(one_line(said))}">', svg, count=1
    )


def _fewer_colors(picture: str) -> str:
    """Make a PNG smaller: 256 colors are all that a color map has."""
    from PIL import Image

    small = io.BytesIO()
    Image.open(io.BytesIO(base64.b64decode(picture))).convert("RGB").quantize().save(small, "png", optimize=True)
    return base64.b64encode(small.getvalue()).decode()


def standalone(figure: Figure) -> str:
    """Make a file of a figure: with the style sheet and the background of a page."""
    style = f'<style>{STYLE.read_text(encoding="utf-8")}</style><rect class="paper" width="100%" height="100%"/>'
    head, _, rest = figure.svg.partition(">")
    width, height = head.split('viewBox="0 0 ')[1].split('"')[0].split()
    head = head.replace("<svg ", f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" ', 1)
    return f"{head}>{style}{rest}\n"


def unpacked(picture: str, factor: float) -> Any:
    """Return the steps, from -31 to 31, of a packed picture on a scale that is ``1 / factor`` times its own.

    >>> unpacked(base64.b85encode(zlib.compress(bytes([31, 225, 0]))).decode(), 0.5).tolist()
    [16.0, -16.0, 0.0]
    """
    import numpy as np

    steps = np.frombuffer(zlib.decompress(base64.b85decode(picture)), dtype=np.int8)
    return (steps * factor).round().clip(-LEVELS, LEVELS)


def tiled(values: Sequence[float], tall: int, wide: int) -> Any:
    """Arrange tiles in a square with a line of missing values around each: an array of pixels.

    >>> tiled([1, 2, 3, 4], 1, 2).tolist()
    [[nan, nan, nan, nan, nan, nan, nan], [nan, 1.0, 2.0, nan, 3.0, 4.0, nan], [nan, nan, nan, nan, nan, nan, nan]]
    """
    import numpy as np

    count = ceil(len(values) / (tall * wide))
    across = ceil(sqrt(count))
    down = ceil(count / across)
    tiles = np.full(down * across * tall * wide, np.nan)
    tiles[: len(values)] = values
    tiles = np.pad(tiles.reshape(down, across, tall, wide), ((0, 0), (0, 0), (1, 0), (1, 0)), constant_values=np.nan)
    pixels = tiles.swapaxes(1, 2).reshape(down * (tall + 1), across * (wide + 1))
    return np.pad(pixels, ((0, 1), (0, 1)), constant_values=np.nan)


def show(axes: Axes, pixels: Any, colors: Sequence[str], low: float, high: float) -> None:
    """Draw pixels in colors from the first at ``low`` to the last at ``high``. Missing values are gray."""
    from matplotlib.colors import LinearSegmentedColormap

    shades = LinearSegmentedColormap.from_list("shades", list(colors)).with_extremes(bad="#808080")
    axes.imshow(pixels, cmap=shades, vmin=low, vmax=high, interpolation="none")
    axes.set_axis_off()
