import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.picture_files import Header, choose, described, header, read_pictures, summary


def headers(*sizes, gray=True):
    return [Header(size, "L" if gray else "RGB", gray) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "shape"),
    [
        ([(28, 28)] * 3, (28, 28)),
        ([(4, 3)], (4, 3)),  # one size: as it is, also if it is small and no square
        ([(64, 20)] * 2, (64, 20)),
        ([(65, 20)] * 2, (44, 44)),  # (65 + 20) / 2 = 42.5
        ([(480, 640)] * 2, (64, 64)),
        ([(4, 4), (5, 5)], (16, 16)),
        ([(30, 30), (32, 32), (99, 99)], (32, 32)),
        ([(33, 34), (35, 36)], (36, 36)),  # the median is 34.5
    ],
)
def test_the_size_that_is_chosen(sizes, shape):
    assert choose(headers(*sizes)) == (1, *shape)


def test_one_picture_with_color_makes_all_rgb():
    mixed = headers((8, 8), (8, 8)) + headers((8, 8), gray=False)
    assert choose(mixed) == (3, 8, 8)
    assert choose(mixed, color="gray") == (1, 8, 8)
    assert choose(headers((8, 8)), color="rgb") == (3, 8, 8)
    assert choose(mixed, size=(5, 6)) == (3, 5, 6)


def test_what_was_chosen_and_done_in_words():
    found = [*headers((8, 9), (8, 9)), *headers((99, 120), gray=False)]
    assert described(found, (3, 16, 16)) == (
        "images of 9×8 to 120×99 pixels become 16×16, in color (--size and --color choose otherwise)"
    )
    assert described(found[:2], (1, 8, 9)) == "images of 9×8 pixels, gray"
    assert summary(found[:2], (1, 8, 9), 0, "") == "read 2 images"
    said = "read 3 of 5 images: 3 resized, 2 converted to RGB, 2 skipped (a: b)"
    assert summary(found, (3, 16, 16), 2, "a: b") == said


def huge_png(path, side=60_000):
    """A PNG file of a few bytes whose header promises 3.6 gigapixels."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))  # noqa: E731
    head = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b""))


def odd_files(folder):
    """Files that cannot be read, and why."""
    huge_png(folder / "huge.png")
    (folder / "drawing.png").write_text("<svg xmlns='http://www.w3.org/2000/svg' width='4' height='3'/>")
    (folder / "empty.jpg").touch()
    Image.new("L", (40, 40)).save(folder / "cut.png")
    whole = (folder / "cut.png").read_bytes()
    (folder / "cut.png").write_bytes(whole[:-30])
    Image.new("F", (4, 4)).save(folder / "floats.tif")
    os.mkfifo(folder / "pipe.png")
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "gone.png").symlink_to(folder / "nothing")
    return {
        "huge.png": "too many pixels",
        "drawing.png": "not an image",
        "empty.jpg": "not an image",
        "cut.png": "image file is truncated",
        "floats.tif": "it holds floating-point numbers",
        "pipe.png": "not a file",
        "loop.png": "not a file",
        "gone.png": "not a file",
        "never.png": "no such file",
        f"{300 * 'x'}.png": "File name too long",
    }


def test_odd_files_are_skipped_with_a_reason(tmp_path):
    reasons = odd_files(tmp_path)
    for name, reason in reasons.items():
        if name not in ("cut.png", "floats.tif"):  # their headers are good
            assert header(tmp_path / name) == reason
    good = [f"good{number}.png" for number in range(len(reasons))]
    for number, name in enumerate(good):
        Image.new("L", (6, 5), number).save(tmp_path / name)
    names = sorted([*reasons, *good])
    found = read_pictures(tmp_path, [tmp_path / name for name in names], names, size=(5, 6), color="gray")
    assert found.read.tolist() == [name in good for name in names]
    assert found.x[:, 0, 0, 0].tolist() == list(range(len(good)))
    assert "read 10 of 20 images: 10 skipped (cut.png: image file is truncated" in found.notes[1]
    assert found.notes[1].endswith("drawing.png: not an image, empty.jpg: not an image, 7 more)")


def test_if_most_files_cannot_be_read_that_is_an_error(tmp_path):
    names = ["a.png", "b.png", "c.png"]
    for name in names:
        (tmp_path / name).write_text("no picture")
    files = [tmp_path / name for name in names]
    with pytest.raises(DataError, match=r"none of 3 images can be read \(a\.png: not an image, b"):
        read_pictures(tmp_path, files, names)
    Image.new("L", (6, 5)).save(files[0])
    with pytest.raises(DataError, match="2 of 3 images cannot be read"):
        read_pictures(tmp_path, files, names)
    Image.new("L", (6, 5)).save(files[1])
    assert read_pictures(tmp_path, files, names).x.shape == (2, 1, 5, 6)


@pytest.mark.parametrize("name", ["a.jpg", "a.tif"])
def test_a_picture_on_its_side_counts_as_it_is_seen(name, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("L", (6, 5)).save(tmp_path / name, exif=exif)
    assert header(tmp_path / name) == Header((6, 5), "L", True)
    assert read_pictures(tmp_path, [tmp_path / name], ["a"]).x.shape == (1, 1, 6, 5)


def test_images_that_would_fill_the_memory_are_refused(tmp_path, monkeypatch):
    Image.new("L", (6, 5)).save(tmp_path / "a.png")
    monkeypatch.setattr("psutil.virtual_memory", lambda: type("Memory", (), {"available": 2 * 30 - 1}))
    with pytest.raises(DataError, match=f"{tmp_path.name}: needs .* of memory"):
        read_pictures(tmp_path, [tmp_path / "a.png"], ["a"])


def test_progress_is_shown_of_what_takes_long(tmp_path, monkeypatch, capsys):
    Image.new("L", (6, 5)).save(tmp_path / "a.png")
    real = __import__("tqdm").tqdm
    monkeypatch.setattr(
        "advdrop.lab.data.picture_files.tqdm", lambda **options: real(**(options | {"delay": 0, "mininterval": 0}))
    )
    for progress in (False, True):
        read_pictures(tmp_path, [tmp_path / "a.png"] * 3, ["a"] * 3, progress=progress)
        assert ("reading images: 100%" in capsys.readouterr().err) == progress


def test_pixels_are_those_of_the_files(tmp_path):
    draw = np.random.default_rng(0)
    stored = [draw.integers(0, 256, (7, 9, 3), np.uint8) for _ in range(4)]
    files = [tmp_path / f"{number}.png" for number in range(4)]
    for file, array in zip(files, stored, strict=True):
        Image.fromarray(array).save(file)
    found = read_pictures(tmp_path, files, [file.name for file in files])
    assert np.array_equal(found.x.transpose(0, 2, 3, 1), np.stack(stored))
    assert found.notes == ("images of 9×7 pixels, in color", "read 4 images")
