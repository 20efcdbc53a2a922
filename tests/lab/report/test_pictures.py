"""Pictures read back: by an own decoder of PNG, pixel by pixel."""

import base64
import re
import zlib

import pytest

from advdrop.lab.report.pictures import DIVERGING, LEVELS, Tiles, png, square, tiled, unpacked
from png import decoded


def test_a_png_has_the_colors_it_was_given():
    palette = [(1, 2, 3), (4, 5, 6)]
    assert decoded(png([[0, 1], [1, 1]], palette)) == [[palette[0], palette[1]], [palette[1], palette[1]]]


def test_zero_is_white_and_signs_have_their_colors():
    assert len(DIVERGING) == 2 * LEVELS + 2
    assert DIVERGING[LEVELS + 1] == (255, 255, 255)
    negative, positive = DIVERGING[1], DIVERGING[-1]
    assert negative[2] > negative[0]  # blue
    assert positive[0] > positive[2]  # orange
    brightness = [sum(color) for color in DIVERGING[1:]]
    assert brightness[:LEVELS] == sorted(brightness[:LEVELS])
    assert brightness[LEVELS:] == sorted(brightness[LEVELS:], reverse=True)


def test_tiles_are_side_by_side_with_gray_between():
    gray = -LEVELS - 1
    found = [[place - LEVELS - 1 for place in line] for line in tiled([1, 2, 3, 4, 5, 6], 1, 2, 2)]
    assert found == [
        [gray] * 7,
        [gray, 1, 2, gray, 3, 4, gray],
        [gray] * 7,
        [gray, 5, 6, gray, gray, gray, gray],
        [gray] * 7,
    ]


@pytest.mark.parametrize("dead", [0, 2])
def test_the_dead_are_crossed_out(dead):
    drawn = square(Tiles("a < b", [0] * 20, (1, 2, 2), dead))
    crosses = [tuple(map(float, corner)) for corner in re.findall(r'class="cross" d="M([\d.]+) ([\d.]+)l', drawn)]
    tile, pixel = 460 * 3 / 10, 460 / 10
    assert crosses == [pytest.approx((place % 3 * tile + pixel, tile + pixel)) for place in (3, 4)][:dead]
    assert 'viewBox="0 0 460 322"' in drawn  # seven of ten pixels high
    assert 'aria-label="a &lt; b"' in drawn
    (data,) = re.findall(r"base64,([^\"]+)", drawn)
    assert len(decoded(base64.b64decode(data))) == 2 * 3 + 1  # five tiles, three across


def test_an_unpacked_picture_stays_within_its_steps():
    text = base64.b85encode(zlib.compress(bytes([31, 225, 3]))).decode()
    assert unpacked(text, 4.0) == [31, -31, 12]
