import gzip
import io
import math
import os
import pickle
import struct
import tarfile
import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.readers.arrays import features, read_npz
from advdrop.lab.data.readers.cifar import CIFAR_BATCHES, read_cifar
from advdrop.lab.data.readers.common import every_fifth
from advdrop.lab.data.readers.idx import read_idx, read_idx_pair
from advdrop.lab.data.readers.images import image_pixels, read_images
from advdrop.lab.data.readers.svhn import read_svhn

RNG = np.random.default_rng(0)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


# --- idx


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), zipped=st.booleans())
def test_idx_gives_back_what_was_written(tmp_path_factory, shape, zipped):
    array = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
    # The name must not matter: only the content says whether it is gzipped.
    path = tmp_path_factory.getbasetemp() / "some.file"
    path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    assert np.array_equal(read_idx(path), array)


@given(cut=st.integers(0, 200), zipped=st.booleans())
def test_idx_cut_short_anywhere_is_refused(tmp_path_factory, cut, zipped):
    content = idx(np.arange(180, dtype=np.uint8).reshape(5, 6, 6))
    content = gzip.compress(content) if zipped else content
    path = tmp_path_factory.getbasetemp() / "short"
    path.write_bytes(content[: min(cut, len(content) - 1)])
    with pytest.raises(DataError, match="short: "):
        read_idx(path)


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_idx_with_a_wrong_byte_in_the_gzip_is_the_same_or_refused(tmp_path_factory, at, flip):
    array = pixels(3, 8, 8)
    content = bytearray(gzip.compress(idx(array), mtime=0))
    content[at % len(content)] ^= flip
    path = tmp_path_factory.getbasetemp() / "flipped"
    path.write_bytes(content)
    with suppress(DataError):
        assert np.array_equal(read_idx(path), array)


def test_idx_checks_the_checksum_of_gzip(tmp_path):
    content = bytearray(gzip.compress(idx(pixels(4, 4))))
    content[-8] ^= 1
    (tmp_path / "crc").write_bytes(content)
    with pytest.raises(DataError, match=r"crc: cannot be read \(BadGzipFile: CRC"):
        read_idx(tmp_path / "crc")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not an idx file of bytes, it starts with b''"),
        (b"<html>", "it starts with b'<htm'"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 0]), "not an idx file of bytes"),
        (bytes([0, 0, 8, 0]), "not an idx file of bytes"),
        (bytes([0, 0, 8, 255]), "not an idx file of bytes"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 1, 0]), r"gives the shape \(1,\) for 2 axes"),
        (bytes([0, 0, 8, 1, 0, 0, 0, 0]), r"gives the shape \(0,\)"),
        (idx(np.zeros(3, np.uint8)) + b"!", "needs 3 bytes for the shape .3,., it holds more"),
    ],
)
def test_idx_refuses(tmp_path, content, message):
    for file, written in ((tmp_path / "plain", content), (tmp_path / "zipped", gzip.compress(content))):
        file.write_bytes(written)
        with pytest.raises(DataError, match=message):
            read_idx(file)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_allocates_nothing_for_an_absurd_header(tmp_path, pack):
    path = tmp_path / "absurd"
    path.write_bytes(pack(bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"12"))
    tracemalloc.start()
    with pytest.raises(DataError, match="it holds 2; download it again"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_idx_reads_no_more_of_a_bomb_than_its_header_says(tmp_path):
    path = tmp_path / "bomb"
    path.write_bytes(gzip.compress(idx(np.zeros(3, np.uint8)) + bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(DataError, match="it holds more"):
        read_idx(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_idx_pair(tmp_path):
    x, y = pixels(3, 4, 5), np.array([0, 9, 3], np.uint8)
    (tmp_path / "x").write_bytes(idx(x))
    (tmp_path / "y").write_bytes(idx(y))
    examples = read_idx_pair(tmp_path / "x", tmp_path / "y")
    assert np.array_equal(examples.x, x[:, None])
    assert examples.y.tolist() == [0, 9, 3]
    with pytest.raises(DataError, match=r"y: must hold images \(N, H, W\)"):
        read_idx_pair(tmp_path / "y", tmp_path / "y")
    (tmp_path / "y").write_bytes(idx(y[:2]))
    with pytest.raises(DataError, match="y: must hold 3 labels for x"):
        read_idx_pair(tmp_path / "x", tmp_path / "y")
    (tmp_path / "y").write_bytes(idx(np.array([0, 10, 3], np.uint8)))
    with pytest.raises(DataError, match=r"labels must be in 0\.\.9, got values from 0 to 10"):
        read_idx_pair(tmp_path / "x", tmp_path / "y")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        read_idx(tmp_path / "nowhere")


# --- CIFAR-10


def cifar(count=2):
    """Batches of the binary layout, their images and their labels."""
    images = {name: pixels(count, 3, 32, 32) for name in CIFAR_BATCHES}
    labels = {name: RNG.integers(0, 10, count, dtype=np.uint8) for name in CIFAR_BATCHES}
    files = {
        f"{name}.bin": b"".join(bytes([y]) + x.tobytes() for x, y in zip(images[name], labels[name], strict=True))
        for name in CIFAR_BATCHES
    }
    return files, images, labels


def python_cifar(images, labels, protocol=2):
    return {
        name: pickle.dumps(
            {b"data": images[name].reshape(-1, 3072), b"labels": labels[name].tolist(), b"filenames": [b"a.png"]},
            protocol,
        )
        for name in images
    }


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def archive(path, files):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def same_as(pair, images, labels):
    train, test = pair
    assert np.array_equal(train.x, np.concatenate([images[name] for name in CIFAR_BATCHES[:5]]))
    assert np.array_equal(train.y, np.concatenate([labels[name] for name in CIFAR_BATCHES[:5]]))
    assert np.array_equal(test.x, images["test_batch"])
    assert np.array_equal(test.y, labels["test_batch"])
    return True


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_cifar_folder_and_archive(tmp_path, layout):
    files, images, labels = cifar()
    files = files if layout == "binary" else python_cifar(images, labels)
    assert same_as(read_cifar(write(tmp_path / "folder", files)), images, labels)
    packed = archive(tmp_path / "a.tar.gz", {"readme.html": b"hello"} | {f"any/{k}": v for k, v in files.items()})
    assert same_as(read_cifar(packed), images, labels)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("module", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
def test_cifar_pickles_of_any_numpy(tmp_path, protocol, module):
    _, images, labels = cifar()
    files = python_cifar(images, labels, protocol)
    if protocol == 2:
        files = {k: v.replace(b"numpy._core.multiarray", module) for k, v in files.items()}
    assert same_as(read_cifar(write(tmp_path, files)), images, labels)


def test_cifar_pickles_of_python_2(tmp_path):
    # As the official archive has them: protocol 2, text and bytes alike as byte strings.
    _, images, labels = cifar(1)
    files = {
        name: b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"
        b"(K\x01K\x01M\x00\x0c\x86cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T\x00\x0c\x00\x00" + images[name].tobytes() + b"tbU\x06labels]K" + labels[name].tobytes() + b"au."
        for name in images
    }
    assert pickle.loads(files["test_batch"], encoding="bytes")[b"data"].shape == (1, 3072)
    assert same_as(read_cifar(write(tmp_path, files)), images, labels)


def test_cifar_pickled_column_by_column(tmp_path):
    _, images, labels = cifar()
    batch = {
        b"data": np.asfortranarray(images["test_batch"].reshape(-1, 3072)),
        b"labels": labels["test_batch"].tolist(),
    }
    files = python_cifar(images, labels) | {"test_batch": pickle.dumps(batch, 2)}
    assert same_as(read_cifar(write(tmp_path, files)), images, labels)


class Evil:
    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    ("function", "args", "named"),
    [
        (os.system, ("touch {}",), "posix.system"),
        (eval, ("open({!r}, 'w')",), "builtins.eval"),
        (np.load, ("{}",), "numpy.load"),
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_malicious_pickles_are_refused_and_not_run(tmp_path, function, args, named, protocol):
    trace = tmp_path / "trace"
    evil = Evil(function, *(arg.format(str(trace)) for arg in args))
    _, images, labels = cifar()
    files = python_cifar(images, labels) | {"test_batch": pickle.dumps({b"data": evil}, protocol)}
    with pytest.raises(DataError, match=r"test_batch: asks for .*may be malicious") as caught:
        read_cifar(write(tmp_path / "folder", files))
    assert named.rpartition(".")[2] in str(caught.value)
    assert not trace.exists()


@pytest.mark.parametrize(
    "batch",
    [
        {b"data": np.zeros((2, 3072), np.float64), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.int8), b"labels": [0, 1]},
        {b"data": np.array([[print]]), b"labels": [0]},
        {b"data": np.zeros((2, 3071), np.uint8), b"labels": [0, 1]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": ["a", "b"]},
        {b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, 10]},
        {b"data": b"", b"labels": []},
        {},
        [],
    ],
)
def test_cifar_pickles_of_something_else_are_refused(tmp_path, batch):
    _, images, labels = cifar()
    with pytest.raises(DataError, match="test_batch: "):
        read_cifar(write(tmp_path, python_cifar(images, labels) | {"test_batch": pickle.dumps(batch, 2)}))


@given(cut=st.integers(0, 400), fill=st.binary(max_size=8))
def test_cifar_broken_pickles_are_refused(tmp_path_factory, cut, fill):
    _, images, labels = cifar(1)
    files = python_cifar(images, labels)
    files["test_batch"] = files["test_batch"][:cut] + fill
    with pytest.raises(DataError, match="test_batch"):
        read_cifar(write(tmp_path_factory.getbasetemp() / "broken", files))


def test_cifar_refuses_what_is_not_records(tmp_path):
    files, _, _ = cifar()
    for content, message in (
        (files["test_batch.bin"][:-1], "test_batch.bin: 6,145 bytes are not records of 3,073"),
        (b"", "test_batch.bin: 0 bytes are not records"),
        (b"\x0a" + files["test_batch.bin"][1:], r"test_batch.bin: labels must be in 0\.\.9"),
    ):
        with pytest.raises(DataError, match=message):
            read_cifar(write(tmp_path, files | {"test_batch.bin": content}))
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"needs data_batch_1.*found data_batch_1.bin.*data_batch_5.bin; download"):
        read_cifar(tmp_path)


def test_cifar_archives_write_nothing_and_follow_no_link(tmp_path):
    files, images, labels = cifar()
    inside = {f"../../{name}": content for name, content in files.items()}
    before = set(tmp_path.parent.rglob("*"))
    assert same_as(read_cifar(archive(tmp_path / "up.tar.gz", inside)), images, labels)
    assert set(tmp_path.parent.rglob("*")) - before == {tmp_path / "up.tar.gz"}
    secret = write(tmp_path, files) / "test_batch.bin"
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(member)
    with pytest.raises(DataError, match="found none of them"):
        read_cifar(tmp_path / "link.tar.gz")


def test_cifar_archives_that_are_broken(tmp_path):
    files, _, _ = cifar()
    path = archive(tmp_path / "a.tar.gz", files)
    content = path.read_bytes()
    # The checksum of a gzip file is in its last eight bytes.
    for broken in (content[:-8] + bytes(8), content[: len(content) // 2], b"nonsense", b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"a\.tar\.gz: "):
            read_cifar(path)
    huge = tarfile.TarInfo("test_batch.bin")
    huge.size = 1 << 40
    path.write_bytes(gzip.compress(huge.tobuf()))
    with pytest.raises(DataError, match="holds 1,099,511,627,776 bytes"):
        read_cifar(path)


# --- SVHN


def test_svhn(tmp_path):
    from scipy.io import savemat

    x, y = pixels(32, 32, 3, 4), np.array([[10], [1], [9], [5]], np.uint8)
    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": x, "y": y})
    examples = read_svhn(path)
    assert examples.x.shape == (4, 3, 32, 32)
    assert examples.x.is_contiguous()
    assert examples.x[2, 1, 5, 7] == x[5, 7, 1, 2]
    assert examples.y.tolist() == [0, 1, 9, 5]
    for content, message in (
        ({"X": x, "y": y + 1}, r"labels must be in 1\.\.10, got values from 2 to 11"),
        ({"X": x, "y": y[:3]}, r"needs X \(32, 32, 3, N\)"),
        ({"X": x.astype(float), "y": y}, "got float64"),
        ({"X": x}, "cannot be read .KeyError: 'y'"),
    ):
        savemat(path, content)
        with pytest.raises(DataError, match=message):
            read_svhn(path)
    for content in (b"", b"MATLAB 5.0 MAT-file" + bytes(200), path.read_bytes()[:300]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train_32x32\.mat: cannot be read"):
            read_svhn(path)


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


@pytest.mark.parametrize("spelling", ["x_unlabeled", "X_Unlabeled"])
def test_npz_unlabeled_join_the_training_examples(tmp_path, spelling):
    data = read_npz(npz(tmp_path / "a.npz", **simple(), **{spelling: np.full((2, 3), 7.0)}))
    assert data.train.y.tolist() == [1, 0, 1, -1, -1, -1]
    assert data.train.x[-1].tolist() == [7.0, 7.0, 7.0]
    with pytest.raises(DataError, match="make them alike"):
        read_npz(npz(tmp_path / "a.npz", **simple(), **{spelling: np.zeros((2, 4))}))


def test_npz_folder(tmp_path):
    arrays = simple()
    npz(tmp_path / "train.npz", X=arrays["x_train"], Y=arrays["y_train"])
    npz(tmp_path / "test.npz", x=arrays["x_test"], y=arrays["y_test"])
    data = read_npz(tmp_path)
    assert (data.name, len(data.train)) == (tmp_path.name, 4)
    npz(tmp_path / "unlabeled.npz", X=np.zeros((5, 3)))
    assert len(read_npz(tmp_path).train) == 9
    (tmp_path / "test.npz").unlink()
    with pytest.raises(DataError, match=r"test\.npz: cannot be read"):
        read_npz(tmp_path)


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
        assert features("x", np.zeros((2, 5, 6, 3), dtype)).shape == (2, 5, 6, 3)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_features_must_be_finite_in_float32(value):
    x = np.zeros((4, 2, 2))
    x[2, 1, 0] = x[3, 0, 0] = value
    with pytest.raises(DataError, match=r"x has a NaN or an infinity in row 2 \(2 rows in all\)"):
        features("x", x)


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
        ({"x_train": np.array([[print]] * 4)}, "cannot be read .ValueError: Object arrays"),
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
        with pytest.raises(DataError, match=r"a\.npz: cannot be read"):
            read_npz(path)


# --- folders of images


def draw(path, value, size=(4, 3), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, value).save(path)


def test_image_folder_with_train_and_test(tmp_path):
    draw(tmp_path / "train/b/2.png", 20)
    draw(tmp_path / "train/b/1.PNG", 10)
    draw(tmp_path / "train/a/deep/er/1.bmp", 5)
    draw(tmp_path / "test/a/1.png", 1)
    draw(tmp_path / "unlabeled/x/1.png", 99)
    draw(tmp_path / "train/.hidden/1.png", 3)
    draw(tmp_path / "train/a/.hidden.png", 3)
    (tmp_path / "train/a/notes.txt").write_text("no image")
    (tmp_path / "train/empty").mkdir()
    data = read_images(tmp_path)
    assert data.name == tmp_path.name
    assert data.classes == ("a", "b")
    assert data.shape == (1, 3, 4)
    assert data.train.x[:, 0, 0, 0].tolist() == [5, 10, 20, 99]
    assert data.train.y.tolist() == [0, 1, 1, -1]
    assert (data.test.x.max(), data.test.y.tolist()) == (1, [0])


def test_class_folders_may_be_links(tmp_path):
    for name in ("elsewhere/1.png", "data/train/a/1.png", "data/test/a/1.png"):
        draw(tmp_path / name, 0)
    (tmp_path / "data/train/b").symlink_to(tmp_path / "elsewhere")
    assert read_images(tmp_path / "data").classes == ("a", "b")


def test_image_folder_without_train_holds_out_every_fifth(tmp_path):
    for label in "ab":
        for i in range(10):
            draw(tmp_path / label / f"{i}.png", (i, 0, 255), mode="RGB")
    draw(tmp_path / "unlabeled/u.png", (7, 0, 0), mode="RGB")
    data = read_images(tmp_path)
    assert data.shape == (3, 3, 4)
    assert data.test.x[:, 0, 0, 0].tolist() == [4, 9, 4, 9]
    assert data.test.x[0, :, 2, 3].tolist() == [4, 0, 255]
    assert data.train.y.tolist() == [0] * 8 + [1] * 8 + [-1]


@given(labels=st.lists(st.integers(0, 3), max_size=60))
def test_every_fifth_is_a_fifth_of_each_class(labels):
    labels = np.array(labels, int)
    held_out = every_fifth(labels)
    for label in range(4):
        assert held_out[labels == label].sum() == (labels == label).sum() // 5


@pytest.mark.parametrize(
    ("path", "kwargs", "message"),
    [
        ("train/b/2.png", {"value": 0, "size": (9, 2)}, r"2\.png has the size 9×2, .*a/1\.png has 4×3; resize them"),
        ("test/a/1.png", {"value": 0, "mode": "RGB"}, r"test/a/1\.png is in color, .*train/a/1\.png is gray"),
        ("train/b/2.tiff", {"value": 0, "mode": "I;16"}, r"2\.tiff has the mode I;16, more than 8 bits"),
    ],
)
def test_odd_images_are_named(tmp_path, path, kwargs, message):
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        draw(tmp_path / name, 0)
    draw(tmp_path / path, **kwargs)
    with pytest.raises(DataError, match=message):
        read_images(tmp_path)


def test_broken_images_are_named(tmp_path, monkeypatch):
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        draw(tmp_path / name, 0)
    path = tmp_path / "train/b/1.png"
    whole = path.read_bytes()
    for content in (b"", b"text", whole[:40], whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"b/1\.png: cannot be read"):
            read_images(tmp_path)
    path.write_bytes(whole)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 8)
    with pytest.raises(DataError, match=r"a/1\.png: cannot be read \(DecompressionBombWarning"):
        read_images(tmp_path)


@pytest.mark.parametrize("names", [[], ["train/a/1.png"], ["a/1.png", "b/1.png"], ["1.png"]])
def test_a_folder_without_enough_images_is_refused(tmp_path, names):
    for name in names:
        draw(tmp_path / name, 0)
    with pytest.raises(DataError, match="it needs train/CLASS"):
        read_images(tmp_path)


def test_one_class_is_refused(tmp_path):
    for i in range(5):
        draw(tmp_path / f"only/{i}.png", 0)
    with pytest.raises(DataError, match="at least two classes, got only"):
        read_images(tmp_path)


@pytest.mark.parametrize(
    ("mode", "value", "expected"),
    [
        ("1", 1, [255]),
        ("L", 9, [9]),
        ("LA", (9, 50), [9]),
        ("RGB", (1, 2, 3), [1, 2, 3]),
        ("RGBA", (1, 2, 3, 0), [1, 2, 3]),
        ("CMYK", (0, 0, 0, 255), [0, 0, 0]),
    ],
)
def test_image_modes(mode, value, expected):
    assert image_pixels(Image.new(mode, (2, 1), value))[:, 0, 1].tolist() == expected


def test_palette_images_with_transparency_do_not_warn():
    image = Image.new("P", (2, 1), 0)
    image.putpalette([4, 5, 6])
    image.info["transparency"] = b"\x00"
    assert image_pixels(image)[:, 0, 0].tolist() == [4, 5, 6]
