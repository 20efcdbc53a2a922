"""Whatever people call an image becomes one shape, or is refused in words."""

import os

import numpy as np
import pytest
import torch
from PIL import Image

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.inputs import stored_batches, stored_image
from advdrop.lab.data.pictures import pixels

GRAY, COLOR = (1, 6, 5), (3, 6, 5)


def noise(*shape):
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def stored(examples, shape):
    return np.concatenate([part.numpy() for part in stored_batches(examples, shape, torch.uint8, 2)])


@pytest.mark.parametrize(
    ("given", "shape", "count"),
    [
        ((6, 5), GRAY, 1), ((6, 5, 1), GRAY, 1), ((1, 6, 5), GRAY, 1), ((7, 6, 5), GRAY, 7), ((7, 1, 6, 5), GRAY, 7),
        ((7, 6, 5, 1), GRAY, 7), ((9, 8, 3), GRAY, 1), ((2, 9, 8, 4), GRAY, 2), ((2, 3, 9, 8), GRAY, 2),
        ((6, 5), COLOR, 1), ((6, 5, 3), COLOR, 1), ((3, 6, 5), COLOR, 1), ((7, 3, 6, 5), COLOR, 7),
        ((7, 6, 5, 3), COLOR, 7), ((9, 8, 4), COLOR, 1), ((3, 9, 8), COLOR, 1), ((1, 9, 8), COLOR, 1),
        ((0, 3, 6, 5), COLOR, 0),
    ],
)  # fmt: skip
def test_the_shapes_of_arrays(given, shape, count):
    found = list(stored_batches(noise(*given), shape, torch.uint8, 2))
    assert sum(map(len, found)) == count
    assert all(part.dtype == torch.uint8 and part.shape[1:] == shape for part in found)


def test_channels_first_and_last_are_the_same_picture():
    last = noise(9, 8, 3)
    assert np.array_equal(stored(last, COLOR), stored(last.transpose(2, 0, 1), COLOR))
    assert np.array_equal(stored(last, COLOR)[0], pixels(Image.fromarray(last), COLOR))
    fitting = noise(4, *COLOR)
    assert np.array_equal(stored(fitting, COLOR), fitting)
    assert np.array_equal(stored(fitting.transpose(0, 2, 3, 1), COLOR), fitting)
    assert np.array_equal(stored(fitting[:, 0], GRAY), fitting[:, :1])
    assert np.array_equal(stored(torch.from_numpy(fitting), COLOR), fitting)


@pytest.mark.parametrize(
    ("given", "shape", "said"),
    [
        (noise(3, 6, 5), GRAY, r"\(3, 6, 5\) could be one color image or three gray ones"),
        (noise(7, 6, 5), COLOR, r"\(7, 6, 5\) is not the shape of an image"),
        (noise(3, 9, 3), COLOR, r"\(3, 9, 3\) could have its channels first or last"),
        (noise(2, 6, 5, 7), COLOR, r"\(6, 5, 7\) is not the shape of an image"),
        (noise(2, 2, 3, 6, 5), COLOR, r"\(2, 3, 6, 5\) is not an image"),
        (noise(5), COLOR, r"\(5,\) is not an image"),
        (noise(0, 5), COLOR, "is not an image"),
        (np.zeros((6, 5)), GRAY, r"must be uint8 from 0 to 255, got float64; if they are from 0 to 1, multiply by 255"),
        (torch.zeros(1, 3, 6, 5), COLOR, "got float32"),
        ([np.zeros((6, 5), np.int64)], GRAY, "got int64"),
        (7, GRAY, "must be a path, a Pillow image, an array or a tensor, got int"),
        ([[1, 2]], GRAY, "got list"),
        ("nothing.png", GRAY, r"nothing\.png does not exist"),
        (Image.new("F", (5, 6)), GRAY, "it holds floating-point numbers"),
    ],
)
def test_what_is_no_image_is_refused_in_words(given, shape, said):
    with pytest.raises(DataError, match=said):
        stored(given, shape)


def test_a_pillow_image_stays_as_it_is(tmp_path):
    Image.fromarray(noise(60, 90, 3)).save(tmp_path / "large.jpg")
    with Image.open(tmp_path / "large.jpg") as image:
        stored_image(image, COLOR)
        assert image.size == (90, 60)
        assert np.array_equal(image, Image.open(tmp_path / "large.jpg"))


def test_files_that_are_none(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"pipe\.png is not a file"):
        stored_image(tmp_path / "pipe.png", GRAY)
    with pytest.raises(DataError, match=r"folder\.png is a folder"):
        stored_image(tmp_path / "folder.png", GRAY)
    with pytest.raises(DataError, match=r"bad\.png: cannot be read"):
        stored_image(str(tmp_path / "bad.png"), GRAY)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_rows_of_a_table_are_finite(bad):
    rows = np.ones((4, 2))
    rows[2, 1] = bad
    with pytest.raises(DataError, match="row 2 has a NaN or an infinity"):
        list(stored_batches(rows, (2,), torch.float32, 3))
    assert [len(part) for part in stored_batches(np.ones((4, 2)), (2,), torch.float32, 3)] == [3, 1]
    assert list(stored_batches([], (2,), torch.float32, 3)) == []
