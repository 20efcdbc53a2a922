import itertools
import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advdrop.lab.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Line, chart, log_ticks, number, ticks

EVIL = "<script>alert(1)</script> & \"quotes\" 'single' ]]>"
VALUES = st.floats(-1e9, 1e9).filter(lambda value: value == 0 or abs(value) > 1e-9)
POSITIVE = st.floats(1e-4, 100.0)


def drawn(*lines, **options):
    return ElementTree.fromstring(chart(lines, "A chart", "updates", "error %", **options))


def points(svg):
    for shape in (*svg.iter("polyline"), *svg.iter("polygon")):
        for pair in shape.get("points").split():
            x, y = map(float, pair.split(","))
            yield x, y
    for dot in svg.iter("circle"):
        yield float(dot.get("cx")), float(dot.get("cy"))


def inside(svg):
    found = list(points(svg))
    return bool(found) and all(
        LEFT - 0.1 <= x <= WIDTH - RIGHT + 0.1 and TOP - 0.1 <= y <= HEIGHT - BOTTOM + 0.1 for x, y in found
    )


def rising(values):
    return all(one < other for one, other in itertools.pairwise(values))


@given(VALUES, st.floats(1e-6, 1e9))
def test_ticks_enclose_their_range_in_few_equal_steps(low, width):
    low = low if abs(low) < 1e6 * width else 0.0  # a chart begins at zero, or far from the end of the digits
    high = low + width
    found = ticks(low, high)
    step = (found[-1] - found[0]) / (len(found) - 1)
    assert all(math.isfinite(tick) for tick in found)
    assert 3 <= len(found) <= 8
    assert rising(found)
    assert found[0] <= low + 1e-6 * step
    assert found[-1] >= high - 1e-6 * step
    assert found[1] > low - 1e-6 * step  # none too many
    assert found[-2] < high + 1e-6 * step
    assert all(other - one == pytest.approx(step, rel=1e-6) for one, other in itertools.pairwise(found))


@pytest.mark.parametrize("high", [1e-12, 1e-30, 3e-8, 1e15])
def test_ticks_of_a_tiny_or_a_huge_range_are_apart(high):
    found = ticks(0.0, high)
    assert rising(found)
    assert found[0] == 0.0
    assert found[-1] >= high * (1 - 1e-9)


@given(st.floats(-1e6, 1e6))
def test_ticks_of_a_single_value_have_it_in_the_middle(value):
    found = ticks(value, value)
    assert rising(found)
    assert found[0] < value < found[-1]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1000.0, [0.0, 200.0, 400.0, 600.0, 800.0, 1000.0]),
        (0.0, 0.3, [0.0, 0.1, 0.2, 0.3]),
        (0.0, 46_800.0, [0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0, 50_000.0]),
        (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
    ],
)
def test_ticks_are_round_numbers(low, high, expected):
    assert ticks(low, high) == expected


@given(POSITIVE, POSITIVE)
def test_logarithmic_ticks_enclose_their_range(one, other):
    low, high = sorted((one, other))
    found = log_ticks(low, high)
    assert all(math.isfinite(tick) and tick > 0 for tick in found)
    assert 2 <= len(found) <= 8
    assert rising(found)
    assert found[0] <= low * 1.0002
    assert found[-1] >= high * 0.9998
    assert {f"{tick:.6e}"[0] for tick in found} <= set("1235")


@pytest.mark.parametrize("value", [1.0, 5.0, 0.03, 10.0, 0.7])
def test_logarithmic_ticks_of_a_single_value_are_two_at_least(value):
    found = log_ticks(value, value)
    assert len(found) >= 2
    assert found[0] <= value * 1.0001
    assert found[-1] >= value


@pytest.mark.parametrize(
    ("value", "text"), [(0.0, "0"), (46_800.0, "46,800"), (0.25, "0.25"), (-3.0, "-3"), (1e-7, "1e-07")]
)
def test_a_number_is_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize("log", [False, True])
@given(
    lines=st.lists(
        st.lists(
            st.tuples(st.floats(0, 1e6), POSITIVE, st.floats(0, 50)), min_size=1, max_size=6, unique_by=lambda p: p[0]
        ),
        min_size=1,
        max_size=3,
    )
)
def test_every_point_is_inside_the_frame(log, lines):
    made = []
    for style, rows in enumerate(lines):
        x, y, spread = zip(*sorted(rows), strict=True)
        low = [mean - by for mean, by in zip(y, spread, strict=True)]
        high = [mean + by for mean, by in zip(y, spread, strict=True)]
        made.append(Line(f"line {style}", x, y, low, high, style))
    svg = drawn(*made, log=log)
    assert inside(svg)
    assert len(list(svg.iter("polyline"))) == len(lines)


def test_points_are_where_the_numbers_say():
    svg = drawn(Line("a", [0.0, 50.0, 100.0], [0.0, 10.0, 5.0]))
    (curve,) = svg.iter("polyline")
    # Both axes begin at zero and end at the last value: 52 to 456 across, 254 up to 12.
    assert curve.get("points") == "52.0,254.0 254.0,12.0 456.0,133.0"


def test_a_logarithmic_axis_has_equal_distances_for_equal_factors():
    svg = drawn(Line("a", [0.0, 1.0, 2.0], [1.0, 10.0, 100.0]), log=True)
    (curve,) = svg.iter("polyline")
    low, middle, high = (float(pair.split(",")[1]) for pair in curve.get("points").split())
    assert low - middle == pytest.approx(middle - high, abs=0.11)
    assert low > middle > high


def test_a_band_that_reaches_below_zero_stays_in_a_logarithmic_frame():
    svg = drawn(Line("a", [1.0, 2.0], [1.0, 0.5], low=[-3.0, 0.0], high=[5.0, 1.0]), log=True)
    assert inside(svg)
    assert len(list(svg.iter("polygon"))) == 1


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("x", "y"), [(0.0, 5.0), (40.0, 5.0), (40.0, 100.0), (1e-9, 0.01)])
def test_a_chart_of_one_point(x, y, log):
    assert inside(drawn(Line("a", [x], [y]), log=log))


@pytest.mark.parametrize("log", [False, True])
def test_a_chart_of_equal_values(log):
    assert inside(drawn(Line("a", [1.0, 2.0, 3.0], [5.0] * 3), Line("b", [1.0, 2.0, 3.0], [5.0] * 3), log=log))


def test_a_chart_of_nothing_but_zeros():
    assert inside(drawn(Line("a", [0.0, 0.0], [0.0, 0.0])))


def test_lines_have_their_names_and_the_classes_of_their_colors():
    svg = drawn(Line("Π model", [1.0], [2.0], style=3), Line("VAdD", [1.0], [1.0], [0.5], [1.5], style=7))
    assert [title.text for title in svg.iter("title")] == ["Π model", "VAdD"]
    assert [curve.get("class") for curve in svg.iter("polyline")] == ["curve s3", "curve s7"]
    assert [band.get("class") for band in svg.iter("polygon")] == ["band s7"]


def test_the_text_alternative_says_what_a_reader_would_see():
    svg = drawn(Line("a", [1.0, 2.0], [9.0, 5.123]), Line("b", [1.0], [4.0]))
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == "A chart. error % against updates. a ends at 5.12; b ends at 4."


def test_every_text_is_escaped():
    text = chart([Line(EVIL, [1.0], [2.0])], EVIL, EVIL, EVIL)
    svg = ElementTree.fromstring(text)
    assert "<script" not in text
    assert svg.get("aria-label") == f"{EVIL}. {EVIL} against {EVIL}. {EVIL} ends at 2."
    assert next(svg.iter("title")).text == EVIL
    assert [shown.text for shown in svg.iter("text")].count(EVIL) == 2
    assert {element.tag for element in svg.iter()} == {
        "svg",
        "rect",
        "text",
        "line",
        "g",
        "title",
        "polyline",
        "circle",
    }


def test_nothing_is_loaded_and_no_color_is_fixed():
    text = chart([Line("a", [1.0, 2.0], [2.0, 1.0], [1.0, 0.5], [3.0, 1.5])], "t", "x", "y")
    assert not re.search(r"https?:|href|style=|fill=|stroke=|url\(", text)
