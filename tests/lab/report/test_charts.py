import base64
import re
import subprocess
import sys
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from advdrop.lab.report.charts import COLORS, STYLE, Line, chart, standalone, tiled, unpacked
from advdrop.lab.report.study_figures import feature_square
from pixels import pictures

EVIL = '<script>alert(1)</script> & "quotes" \'single\' ]]> $x$ \\frac #0072b2 id="a"'
POSITIVE = st.floats(1e-4, 100.0)


def drawn(*lines, **options):
    return chart(lines, "A chart", "updates", "error %", **options)


def curve(svg, style):
    """The points of the line of a color."""
    path = re.search(rf'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: var\(--s{style}\)', svg)[1]
    return [tuple(map(float, point.split()[:2])) for point in re.findall(r"[ML] ([^MLz]+)", path)]


def axes(svg):
    """The left, lower, right and upper edge of the axes."""
    corners = re.search(r'<clipPath id="[^"]+"><rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', svg)
    x, y, width, height = map(float, corners.groups())
    return x, y + height, x + width, y


def test_points_are_where_the_numbers_say():
    svg = drawn(Line("a", [0.0, 50.0, 100.0], [0.0, 10.0, 5.0], style=3)).svg
    left, bottom, _, _ = axes(svg)
    first, middle, last = curve(svg, 3)
    assert first == (pytest.approx(left), pytest.approx(bottom))
    assert middle[0] - left == pytest.approx((last[0] - left) / 2, abs=0.01)
    assert bottom - last[1] == pytest.approx((bottom - middle[1]) / 2, abs=0.01)


def test_a_logarithmic_axis_has_equal_distances_for_equal_factors():
    low, middle, high = (y for _, y in curve(drawn(Line("a", [0.0, 1.0, 2.0], [1.0, 10.0, 100.0]), log=True).svg, 0))
    assert low - middle == pytest.approx(middle - high, abs=0.01)
    assert low > middle > high


def test_charts_with_one_scale_have_equal_axes():
    one, other = (drawn(Line("a", [0.0, 1.0], [0.0, y]), within=(-5.0, 5.0)).svg for y in (1.0, 4.0))
    assert curve(one, 0)[0] == curve(other, 0)[0]


@pytest.mark.parametrize("log", [False, True])
@settings(max_examples=8, deadline=None)
@given(
    rows=st.lists(st.tuples(st.floats(0, 1e6), POSITIVE, st.floats(0, 50)), min_size=1, unique_by=lambda row: row[0])
)
def test_every_point_is_inside_the_axes(log, rows):
    x, y, spread = zip(*sorted(rows), strict=True)
    low, high = ([mean + side * by for mean, by in zip(y, spread, strict=True)] for side in (-1, 1))
    svg = drawn(Line("a", x, y, low, high), log=log).svg
    left, bottom, right, top = axes(svg)
    assert all(left - 1 <= x <= right + 1 and top - 1 <= y <= bottom + 1 for x, y in curve(svg, 0))


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("x", "y"), [(0.0, 5.0), (40.0, 5.0), (40.0, 100.0), (1e-9, 0.01)])
def test_a_chart_of_one_point(x, y, log):
    ElementTree.fromstring(standalone(drawn(Line("a", [x], [y]), log=log)))


def test_a_chart_of_nothing_but_zeros():
    ElementTree.fromstring(standalone(drawn(Line("a", [0.0, 0.0], [0.0, 0.0]))))


def test_colors_are_those_of_the_style_sheet_and_follow_the_mode():
    light, dark = STYLE.read_text().split("@media")
    for number, color in enumerate(COLORS):
        short = f"#{color[1::2]}"
        assert re.search(rf"--s{number}: ({color}|{short});", light)
        assert f"--s{number}: " in dark
    svg = drawn(*(Line(str(n), [1.0, 2.0], [2.0, 1.0], [1.0, 0.5], [3.0, 1.5], n) for n in range(10))).svg
    assert all(f"stroke: var(--s{number})" in svg for number in range(10))
    assert set(re.findall(": (#[0-9a-f]{6})", svg)) <= {"#000000"}  # the strokes of ticks of no length
    assert "currentColor" in STYLE.read_text()


def test_text_is_text_and_nothing_is_loaded():
    svg = drawn(Line("Π model", [1.0, 46_800.0], [2.0, 0.25])).svg
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", svg)
    assert {"A chart", "updates", "error %", "Π model", "40,000"} <= set(texts)
    assert not re.search(r"https?:|font-family|<metadata|<!--|<style", svg)
    assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)', svg))


def test_the_text_alternative_says_what_a_reader_would_see():
    svg = drawn(Line("a", [1.0, 2.0], [9.0, 5.123]), Line("b", [1.0], [4.0])).svg
    assert 'role="img" aria-label="A chart. error % against updates. a ends at 5.12; b ends at 4."' in svg


def test_every_text_is_escaped_and_stays_as_it_is():
    svg = chart([Line(EVIL, [1.0], [2.0])], "t", EVIL, EVIL).svg
    root = ElementTree.fromstring(svg)
    assert "<script" not in svg
    assert root.get("aria-label") == f"t. {EVIL} against {EVIL}. {EVIL} ends at 2."
    assert [shown.text for shown in root.iter("text")].count(EVIL) == 3


def test_the_same_numbers_make_the_same_file_whatever_the_user_has_set():
    import matplotlib

    line = Line("a", [0.0, 1.0], [1.0, 2.0])
    before = standalone(drawn(line))
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": True}):
        assert standalone(drawn(line)) == before
        assert matplotlib.rcParams["font.size"] == 30
    assert not re.search(r"20\d\d-\d\d-\d\d", before)


def test_ids_of_two_charts_differ():
    ids = [re.findall(r' id="([^"]+)"', drawn(Line("a", [0.0, 1.0], [1.0, y])).svg) for y in (2.0, 3.0)]
    assert ids[0]
    assert not set(ids[0]) & set(ids[1])


def test_matplotlib_is_imported_when_something_is_drawn():
    code = "import advdrop.lab.report.formats, sys; assert not {'matplotlib', 'PIL', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_tiles_are_side_by_side_with_nothing_between():
    gap = np.nan
    expected = [[gap] * 7, [gap, 1, 2, gap, 3, 4, gap], [gap] * 7, [gap, 5, 6, gap, gap, gap, gap], [gap] * 7]
    np.testing.assert_array_equal(tiled([1, 2, 3, 4, 5, 6], 1, 2), expected)


@pytest.mark.parametrize("dead", [0, 2])
def test_the_dead_are_crossed_out_and_signs_have_their_colors(dead):
    svg = feature_square("a < b", [31, -31, 0, 15] * 5, (1, 2, 2), dead)
    assert svg.count("stroke-opacity: 0.5") == 2 * dead
    assert 'aria-label="a &lt; b"' in svg
    (picture,) = pictures(svg)
    assert picture.size == (10, 7)  # five tiles, three across
    positive, negative, zero, gray = (picture.getpixel(place) for place in ((1, 1), (2, 1), (1, 2), (0, 0)))
    assert positive == (196, 90, 0)
    assert negative == (0, 90, 170)
    assert min(zero) >= 253
    assert gray == (128, 128, 128)


def test_an_unpacked_picture_stays_within_its_steps():
    text = base64.b85encode(zlib.compress(bytes([31, 225, 3]))).decode()
    assert unpacked(text, 4.0).tolist() == [31, -31, 12]
