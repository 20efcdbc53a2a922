import io
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.pictures import is_gray, opened, pixels


def one_pixel(mode, value):
    return Image.new(mode, (2, 1), value)


@pytest.mark.parametrize(
    ("mode", "value", "gray", "rgb"),
    [
        ("1", 1, [255], [255] * 3),
        ("L", 9, [9], [9] * 3),
        ("LA", (9, 255), [9], [9] * 3),
        ("LA", (9, 0), [255], [255] * 3),  # all of it is transparent: white
        ("RGB", (255, 0, 0), [76], [255, 0, 0]),  # luma of ITU-R 601: 0.299 R + 0.587 G + 0.114 B
        ("RGBA", (1, 2, 3, 255), [2], [1, 2, 3]),
        ("RGBA", (0, 0, 0, 51), [204], [204] * 3),  # a fifth of black on white
        ("CMYK", (0, 0, 0, 255), [0], [0] * 3),
        ("I", 257 * 7, [7], [7] * 3),
        ("I", 255, [255], [255] * 3),  # 32 bits that hold what fits into 8
        ("I", 256, [0], [0] * 3),
        ("I;16", 255, [0], [0] * 3),  # nearly black
        ("I;16", 65535, [255], [255] * 3),
    ],
)
def test_every_mode_becomes_gray_and_rgb(mode, value, gray, rgb):
    for channels, expected in ((1, gray), (3, rgb)):
        found = pixels(one_pixel(mode, value), (channels, 1, 2))
        assert found.dtype == np.uint8
        assert found[:, 0, 1].tolist() == expected


def test_palettes_become_their_colors():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([4, 5, 6])
    assert not is_gray(image)
    assert pixels(image, (3, 1, 2))[:, 0, 0].tolist() == [4, 5, 6]
    image.info["transparency"] = b"\x00"  # the first color is transparent
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pixels(image, (3, 1, 2))[:, 0, 0].tolist() == [255, 255, 255]


@pytest.mark.parametrize("mode", ["1", "L", "LA", "I", "I;16", "F"])
def test_modes_without_color(mode):
    assert is_gray(Image.new(mode, (1, 1)))


@pytest.mark.parametrize("value", [-1, 65536])
def test_numbers_without_a_known_scale_are_refused(value):
    with pytest.raises(DataError, match="save it with 8 or 16 bits"):
        pixels(one_pixel("I", value), (1, 1, 2))


def test_floats_are_refused():
    with pytest.raises(DataError, match="floating-point numbers"):
        pixels(one_pixel("F", 0.5), (1, 1, 2))


def turned(orientation):
    """A picture of 1, 2 over 3, 4 that is stored so that this orientation shows it upright."""
    upright = np.array([[10, 20], [30, 40], [50, 60]], np.uint8)
    undo = {1: upright, 3: upright[::-1, ::-1], 6: np.rot90(upright), 8: np.rot90(upright, -1), 2: upright[:, ::-1]}
    image = Image.fromarray(np.ascontiguousarray(undo[orientation]))
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    image.save(file, "tiff", exif=exif)
    return file, upright


@pytest.mark.parametrize("orientation", [1, 2, 3, 6, 8])
def test_pictures_are_turned_as_their_exif_data_say(orientation, tmp_path):
    file, upright = turned(orientation)
    (tmp_path / "a.tif").write_bytes(file.getvalue())
    for source in (file, tmp_path / "a.tif"):
        with opened(source) as image:
            assert np.array_equal(pixels(image, (1, 3, 2))[0], upright)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.integers(0, 2**32 - 1))
def test_a_picture_that_fits_is_not_changed(height, width, channels, seed):
    stored = np.random.default_rng(seed).integers(0, 256, (channels, height, width), np.uint8)
    image = Image.fromarray(stored[0] if channels == 1 else stored.transpose(1, 2, 0))
    assert np.array_equal(pixels(image, stored.shape), stored)


def test_a_smaller_picture_is_the_mean_of_its_parts():
    stored = np.kron(np.array([[0, 100], [200, 40]], np.uint8), np.ones((8, 8), np.uint8))
    found = pixels(Image.fromarray(stored), (1, 1, 1))
    assert abs(int(found[0, 0, 0]) - stored.mean()) <= 1


def test_a_large_jpeg_file_is_read_smaller_and_is_the_same_but_for_a_level_or_two():
    ramp = np.tile(np.linspace(0, 255, 512).astype(np.uint8), (512, 1))
    file = io.BytesIO()
    Image.fromarray(ramp).save(file, "jpeg", quality=95)
    with opened(file) as image:
        found = pixels(image, (1, 16, 16))[0].astype(int)
        assert image.size == (64, 64)  # most of the pixels were not even computed
    expected = ramp.reshape(16, 32, 16, 32).mean((1, 3))
    assert abs(found - expected)[:, 1:-1].max() <= 2


def test_only_pictures_are_opened_whatever_their_name_says(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr("subprocess.check_call", lambda *args, **_: ran.append(args))
    path = tmp_path / "a.png"
    Image.new("L", (4, 3)).save(path, "EPS")
    for content in (path.read_bytes(), b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"", b"text"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"a\.png: cannot be read .UnidentifiedImageError"), opened(path):
            pass
    assert ran == []


def test_too_many_pixels_are_refused_before_they_are_read(monkeypatch):
    file = io.BytesIO()
    Image.new("L", (30, 30)).save(file, "png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 800)
    with pytest.raises(DataError, match=r"the image: cannot be read .DecompressionBombWarning"), opened(file):
        pass


def test_the_first_picture_of_an_animation_is_read():
    frames, file = [Image.new("L", (4, 3), value) for value in (7, 200)], io.BytesIO()
    frames[0].save(file, "tiff", save_all=True, append_images=frames[1:])
    with opened(file) as image:
        assert set(pixels(image, (1, 3, 4)).flat) == {7}


def test_damaged_metadata_are_no_reason_to_complain():
    file = io.BytesIO()
    Image.new("L", (4, 3)).save(file, "jpeg", exif=b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\xff\xff garbage")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with opened(file) as image:
            assert pixels(image, (1, 3, 4)).shape == (1, 3, 4)
