import io
import zipfile

import numpy as np
import pytest
import torch

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.own import features, read_npz

RNG = np.random.default_rng(0)


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


# --- npz


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def simple(**changes):
    arrays = {
        "x_train": np.zeros((4, 3)),
        "y_train": np.array([5, 2, 5, -1]),
        "x_test": np.ones((2, 3)),
        "y_test": np.array([2, 5]),
    }
    return {k: v for k, v in (arrays | changes).items() if v is not None}


def test_npz_of_features(tmp_path):
    data = read_npz(npz(tmp_path / "my.data.npz", **simple()))
    assert data.name == "my.data"
    assert data.classes == ("2", "5")
    assert data.train.x.dtype == torch.float32
    assert data.train.y.tolist() == [1, 0, 1, -1]
    assert data.test.y.tolist() == [0, 1]


def test_npz_classes_are_in_the_order_of_numbers_and_of_text(tmp_path):
    numbers = simple(y_train=np.array([10, 9, 10, 9], np.uint64), y_test=np.array([10, 9], np.uint8))
    assert read_npz(npz(tmp_path / "a.npz", **numbers)).classes == ("9", "10")
    text = simple(y_train=np.array(["dog", "", "cat", "dog"]), y_test=np.array([["dog"], ["cat"]]))
    data = read_npz(npz(tmp_path / "b.npz", **text))
    assert data.classes == ("cat", "dog")
    assert data.train.y.tolist() == [1, -1, 0, 1]
    raw = simple(y_train=np.array([b"x", b"\xc3\xa9", b"x", b""]), y_test=np.array([b"x", b"x"]))
    assert read_npz(npz(tmp_path / "c.npz", **raw)).classes == ("x", "é")


def test_npz_keys_may_be_in_upper_case(tmp_path):
    data = read_npz(npz(tmp_path / "a.npz", **{key.upper(): value for key, value in simple().items()}))
    assert data.train.y.tolist() == [1, 0, 1, -1]


@pytest.mark.parametrize(
    ("shape", "at", "result"),
    [
        ((2, 4, 5), (1, 2, 3), (2, 1, 4, 5)),
        ((2, 4, 5, 3), (1, 2, 3, 0), (2, 3, 4, 5)),
        ((2, 4, 5, 1), (1, 2, 3, 0), (2, 1, 4, 5)),
        ((2, 3, 4, 5), (1, 0, 2, 3), (2, 3, 4, 5)),
    ],
)
def test_uint8_images_get_their_channels_first(shape, at, result):
    x = pixels(*shape)
    images = features("x", x)
    assert images.shape == result
    assert images.dtype == np.uint8
    assert images[1, 0, 2, 3] == x[at]


@pytest.mark.parametrize("shape", [(2, 3, 5, 3), (2, 1, 1, 1), (2, 4, 5, 2), (2, 3, 4, 5, 1)])
def test_other_uint8_is_refused(shape):
    with pytest.raises(DataError, match="save images as"):
        features("x", np.zeros(shape, np.uint8))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.int64, np.float16, np.float64, bool])
def test_other_numbers_are_features(dtype):
    values = features("x", np.array([[1, 0], [0, 1]], dtype))
    assert values.dtype == np.float32
    assert values.tolist() == [[1, 0], [0, 1]]
    if dtype is not np.uint8:
        assert features("x", np.zeros((2, 5, 6), dtype)).shape == (2, 5, 6)


@pytest.mark.parametrize("dtype", [np.int64, np.uint16, np.float16, np.float64])
@pytest.mark.parametrize(("shape", "at"), [((2, 4, 5, 3), (1, 2, 3, 0)), ((2, 3, 4, 5), (1, 0, 2, 3))])
def test_images_of_other_numbers_get_their_channels_first_too(shape, at, dtype):
    x = pixels(*shape).astype(dtype)
    images = features("x", x)
    assert (images.shape, images.dtype) == ((2, 3, 4, 5), np.float32)
    assert images[1, 0, 2, 3] == x[at]
    with pytest.raises(DataError, match=r"x: float64 of \(2, 3, 5, 3\) could have its channels first or last"):
        features("x", np.zeros((2, 3, 5, 3)))


@pytest.mark.parametrize(
    ("shape", "dtype", "told"),
    [
        ((4, 5), float, []),
        ((4, 5, 6), np.uint8, []),
        ((4, 5, 6, 3), np.uint8, []),
        ((4, 5, 6), float, ["numbers (5, 6) are taken for rows of 30 in a table; save images as uint8 from 0 to 255"]),
        (
            (4, 5, 6, 3),
            float,
            ["numbers (C, H, W) = (3, 5, 6) are taken for images; only models of uint8 images classify picture files"],
        ),
    ],
)
def test_what_other_numbers_are_taken_for_is_told(tmp_path, shape, dtype, told):
    x = np.zeros(shape, dtype)
    assert list(read_npz(npz(tmp_path / "a.npz", **simple(x_train=x, x_test=x[:2] + x.dtype.type(1)))).notes) == told


def test_npz_arrays_that_are_not_read_are_told(tmp_path):
    assert read_npz(npz(tmp_path / "a.npz", **simple())).notes == ()
    more = simple(x_unlabeled=np.ones((9, 3)), X_TEST=np.ones((2, 3)))
    (said,) = read_npz(npz(tmp_path / "a.npz", **more)).notes
    assert said.startswith("not read: x_test, x_unlabeled; examples without a label belong to x_train")


def test_npz_labels_whose_minus_one_became_a_large_number_are_told(tmp_path):
    arrays = {"y_train": np.array([5, 2, 5, -1]).astype(np.uint8), "y_test": np.array([2, 5], np.uint8)}
    data = read_npz(npz(tmp_path / "a.npz", **simple(**arrays)))
    assert data.classes == ("2", "5", "255")
    assert "255 is a class like any other here; if it was -1, for no label, save y_train as int64" in data.notes
    signed = simple(y_train=np.array([5, 2, 5, 255]), y_test=np.array([2, 5]))
    assert len(read_npz(npz(tmp_path / "a.npz", **signed)).notes) == 1  # that no test example is of this class


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.nan, "a NaN or an infinity"), (np.inf, "a NaN or an infinity"), (1e300, "a number that is too large")],
)
def test_features_must_be_finite_in_float32(value, what):
    x = np.zeros((4, 2, 2))
    x[2, 1, 0] = x[3, 0, 0] = value
    with pytest.raises(DataError, match=rf"x has {what}.* in row 2 \(2 rows in all\)"):
        features("x", x)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_numbers_with_too_many_digits_for_float32_are_told_and_are_no_copies(tmp_path, dtype):
    x = np.array([[1, 10**9 + row, 0.1] for row in range(6)]).astype(dtype)
    (said,) = read_npz(npz(tmp_path / "a.npz", **simple(x_train=x[:4], x_test=x[4:]))).notes
    assert said.startswith("float32 has too few digits for the numbers of the columns 1 (1,000,000,000")
    x[:, 1] -= 10**9
    assert read_npz(npz(tmp_path / "a.npz", **simple(x_train=x[:4], x_test=x[4:]))).notes == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_test": None}, "lacks y_test, has x_test, x_train, y_train"),
        ({"y_test": np.array([2, 6])}, "x_test has the class 6, which no training example has"),
        ({"y_test": np.array([2, -1])}, "x_test has no label in row 1"),
        ({"y_test": np.array(["2", "5"])}, "labels of <U1, training of int64"),
        ({"y_train": np.array([1, -1, 1, -1])}, r"at least two classes, got 1 \(-1 or '' means unlabeled\)"),
        ({"y_train": np.full(4, -1)}, "got none"),
        ({"y_train": np.array([5, 2])}, r"\(4, 3\) needs as many labels, integers or text, got int64 of shape \(2,\)"),
        ({"y_train": np.zeros(4)}, "got float64"),
        ({"y_train": np.zeros((4, 2), int)}, r"of shape \(4, 2\)"),
        ({"x_train": np.zeros(4)}, r"must hold numbers \(N, ...\), got float64 of shape \(4,\)"),
        ({"x_train": np.array([["a"]] * 4)}, "got <U1"),
        ({"x_train": np.zeros((0, 3)), "y_train": np.zeros(0, int)}, "got none"),
        ({"x_train": np.zeros((4, 2))}, "its test examples"),
        ({"x_train": np.array([[print]] * 4)}, "x_train holds Python objects, which are not read"),
    ],
)
def test_npz_refuses(tmp_path, changes, message):
    with pytest.raises(DataError, match=message):
        read_npz(npz(tmp_path / "a.npz", **simple(**changes)))


def test_npz_that_is_none(tmp_path):
    path = npz(tmp_path / "a.npz", **simple())
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0xFF
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    for broken in (b"", b"text", bytes(content[:100]), bytes(content), array.getvalue()):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"a\.npz: cannot be read") as caught:
            read_npz(path)
        assert "pickle" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.array([b"x", b"\xff", b"x", b""]), "cannot be read .UnicodeDecodeError"),
        (np.frombuffer(b"\xff\xff\xff\x7f" * 4, "<U1"), "cannot be read .SystemError"),
        (np.array([0, 1, 2, 2**64 - 1], np.uint64), "labels up to 18446744073709551615"),
    ],
)
def test_npz_with_labels_that_no_text_or_number_can_hold(tmp_path, labels, message):
    path = npz(tmp_path / "a.npz", **simple(y_train=labels, y_test=labels[:2]))
    with pytest.raises(DataError, match=rf"a\.npz: .*{message}"):
        read_npz(path)


def header(shape, kind="'<f8'"):
    text = f"{{'descr': {kind}, 'fortran_order': False, 'shape': {shape}}}".encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "lie",
    [
        header("(10**12,)"),
        header("(4, 3000000000000)"),
        header("(2, 400000000)"),
        header("(-4, -3)"),
        header("(99999999999999999999999999, 0)"),
        header("(4,)", "'<U1000000000'"),
        header("(4,)", "[('a', '<f8'), ('b', 'O')]"),
        header("(" * 90),
        b"not an array",
    ],
)
def test_npz_whose_header_lies(tmp_path, lie):
    path = npz(tmp_path / "a.npz", **simple(x_train=None))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("x_train.npy", lie + bytes(96))
    with pytest.raises(
        DataError, match=r"a\.npz: (cannot be read|x_train .. needs as many labels|x_train holds Python)"
    ):
        read_npz(path)


def test_npz_that_would_fill_the_memory_is_not_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **simple(x_train=np.zeros((4, 1_000_000))))
    assert path.stat().st_size < 100_000
    free = type("Memory", (), {"available": 1 << 25})
    monkeypatch.setattr("psutil.virtual_memory", lambda: free)
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: pytest.fail("was unpacked"))
    with pytest.raises(DataError, match=r"a\.npz: needs 0\.1 GiB of memory, 0\.0 GiB are free"):
        read_npz(path)


def test_npz_is_read_in_memory_and_only_what_is_needed(tmp_path):
    path = npz(tmp_path / "a.npz", **simple())
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../../outside.npy", header("(10**12,)"))
        archive.writestr("extra.npy", header("(10**12,)"))
    before = set(tmp_path.parent.rglob("*"))
    assert read_npz(path).classes == ("2", "5")
    assert set(tmp_path.parent.rglob("*")) == before


def test_npz_that_is_encrypted(tmp_path):
    path = npz(tmp_path / "a.npz", **simple())
    content = bytearray(path.read_bytes())
    for start in (b"PK\x03\x04", b"PK\x01\x02"):
        at = content.find(start)
        while at >= 0:
            content[at + (6 if start[2] == 3 else 8)] |= 1
            at = content.find(start, at + 4)
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"a\.npz: cannot be read .*(encrypted|password)"):
        read_npz(path)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("y_train", r"y_train holds Python objects, .* save y.astype\(str\)"),
        ("x_test", r"x_test .* save x.astype\(np.float32"),
    ],
)
def test_objects_are_not_loaded_and_the_array_is_named(tmp_path, name, told):
    arrays = simple()
    with pytest.raises(DataError, match=told):
        read_npz(npz(tmp_path / "a.npz", **arrays | {name: arrays[name].astype(object)}))


def test_a_negative_class_is_told(tmp_path):
    labels = {"y_train": np.array([5, -100, 5, -1]), "y_test": np.array([-100, 5])}
    data = read_npz(npz(tmp_path / "a.npz", **simple(**labels)))
    assert data.classes == ("-100", "5")
    assert data.notes == ("-100 is a class like any other here; only -1 means no label",)


def test_a_text_that_looks_like_no_label_is_told(tmp_path):
    labels = {"y_train": np.array(["cat", "nan", "cat", ""]), "y_test": np.array(["cat", "nan"])}
    data = read_npz(npz(tmp_path / "a.npz", **simple(**labels)))
    assert data.classes == ("cat", "nan")
    assert data.notes == ("the text 'nan' is a class like any other here; only the empty text means no label",)
    assert read_npz(npz(tmp_path / "b.npz", **simple())).notes == ()
