"""Pictures read back: by an own decoder of PNG, pixel by pixel."""

import base64
import re
import struct
import zlib

import pytest

from advdrop.report.pictures import DIVERGING, LEVELS, Tiles, grid, png, tiled, unpacked


def decoded(data):
    """Rows of colours."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, place = {}, 8
    while place < len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + length]
        assert struct.unpack(">I", data[place + 8 + length : place + 12 + length])[0] == zlib.crc32(kind + body)
        chunks[kind], place = body, place + 12 + length
    width, height, depth, colour = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, colour) == (8, 3)
    raw, palette = zlib.decompress(chunks[b"IDAT"]), chunks[b"PLTE"]
    lines = [raw[y * (width + 1) : (y + 1) * (width + 1)] for y in range(height)]
    assert all(line[0] == 0 for line in lines)
    return [[tuple(palette[3 * place : 3 * place + 3]) for place in line[1:]] for line in lines]


def test_a_png_has_the_colours_it_was_given():
    palette = [(1, 2, 3), (4, 5, 6)]
    assert decoded(png([[0, 1], [1, 1]], palette)) == [[palette[0], palette[1]], [palette[1], palette[1]]]


def test_zero_is_white_and_signs_have_their_colours():
    assert len(DIVERGING) == 2 * LEVELS + 2
    assert DIVERGING[LEVELS + 1] == (255, 255, 255)
    negative, positive = DIVERGING[1], DIVERGING[-1]
    assert negative[2] > negative[0]  # blue
    assert positive[0] > positive[2]  # orange
    brightness = [sum(colour) for colour in DIVERGING[1:]]
    assert brightness[:LEVELS] == sorted(brightness[:LEVELS])
    assert brightness[LEVELS:] == sorted(brightness[LEVELS:], reverse=True)


def test_tiles_are_side_by_side_with_grey_between():
    grey = -LEVELS - 1
    found = [[place - LEVELS - 1 for place in line] for line in tiled([1, 2, 3, 4, 5, 6], 1, 2, 2)]
    assert found == [
        [grey] * 7,
        [grey, 1, 2, grey, 3, 4, grey],
        [grey] * 7,
        [grey, 5, 6, grey, grey, grey, grey],
        [grey] * 7,
    ]


@pytest.mark.parametrize("dead", [0, 2])
def test_the_dead_are_crossed_out(dead):
    drawn = grid([Tiles("a < b", [0] * 20, (1, 2, 2), dead)], "Features")
    assert drawn.count('class="cross"') == dead
    assert "a &lt; b" in drawn
    assert 'aria-label="Features. a &lt; b."' in drawn
    (data,) = re.findall(r"base64,([^\"]+)", drawn)
    assert len(decoded(base64.b64decode(data))) == 2 * 3 + 1  # five tiles, three across


def test_an_unpacked_picture_stays_within_its_steps():
    text = base64.b85encode(zlib.compress(bytes([31, 225, 3]))).decode()
    assert unpacked(text, 4.0) == [31, -31, 12]
