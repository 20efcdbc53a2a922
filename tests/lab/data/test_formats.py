import gzip
import io
import math
import struct
import tarfile
import tracemalloc
import zlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from advdrop.lab.data.examples import DataError
from advdrop.lab.data.formats import (
    CIFAR_BATCHES,
    read_cifar,
    read_idx,
    read_idx_pairs,
    read_matlab,
    read_svhn,
    read_svhn_subset,
)

RNG = np.random.default_rng(0)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def pixels(*shape):
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


# --- idx


@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=4), zipped=st.booleans())
def test_idx_gives_back_what_was_written(tmp_path_factory, shape, zipped):
    array = np.arange(math.prod(shape), dtype=np.uint8).reshape(shape)
    folder = tmp_path_factory.mktemp("idx")
    write(folder, {"file.gz": gzip.compress(idx(array))} if zipped else {"file": idx(array)})
    assert np.array_equal(read_idx(folder / "file"), array)


@given(cut=st.integers(0, 200), zipped=st.booleans())
def test_idx_cut_short_anywhere_is_refused(tmp_path_factory, cut, zipped):
    content = idx(np.arange(180, dtype=np.uint8).reshape(5, 6, 6))
    content = gzip.compress(content) if zipped else content
    folder = tmp_path_factory.mktemp("cut")
    write(folder, {"short.gz" if zipped else "short": content[: min(cut, len(content) - 1)]})
    with pytest.raises(DataError, match=r"short(\.gz)?: cannot be read"):
        read_idx(folder / "short")


@given(at=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_idx_with_a_wrong_byte_in_the_gzip_is_the_same_or_refused(tmp_path_factory, at, flip):
    array = pixels(3, 8, 8)
    content = bytearray(gzip.compress(idx(array), mtime=0))
    content[at % len(content)] ^= flip
    folder = tmp_path_factory.mktemp("flipped")
    write(folder, {"flipped.gz": content})
    with suppress(DataError):
        assert np.array_equal(read_idx(folder / "flipped"), array)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "does not start with b''"),
        (b"<html>", "does not start with b'<ht'"),
        (bytes([0, 0, 13, 1, 0, 0, 0, 1, 0]), "an idx file of bytes does not start with"),
        (bytes([0, 0, 8]), "index out of range"),
        (bytes([0, 0, 8, 255]), "buffer"),
        (bytes([0, 0, 8, 2, 0, 0, 0, 1, 0]), "buffer is smaller"),
        (idx(np.zeros(3, np.uint8)) + b"!", r"cannot reshape array of size 4 into shape \(3,\)"),
    ],
)
def test_idx_refuses(tmp_path, content, message):
    for name, written in (("plain", content), ("zipped.gz", gzip.compress(content))):
        (tmp_path / name).write_bytes(written)
        with pytest.raises(DataError, match=f"{name}: cannot be read .*{message}.*; get the file again"):
            read_idx(tmp_path / name.removesuffix(".gz"))


def test_idx_allocates_nothing_for_an_absurd_header(tmp_path):
    (tmp_path / "absurd").write_bytes(bytes([0, 0, 8, 3]) + b"\xff" * 12 + b"12")
    tracemalloc.start()
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "absurd")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_gzip_bomb_is_not_unpacked_beyond_what_its_header_promises(tmp_path):
    bomb = io.BytesIO()
    with gzip.GzipFile(fileobj=bomb, mode="wb") as file:
        file.write(idx(np.zeros((2, 3), np.uint8)))
        for _ in range(64):
            file.write(bytes(1 << 20))
    (tmp_path / "bomb.gz").write_bytes(bomb.getvalue())
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.gz: cannot be read .*cannot reshape array of size 7"):
        read_idx(tmp_path / "bomb")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_several_gzip_members_are_one_file_and_garbage_after_them_is_refused(tmp_path):
    content = idx(np.arange(6, dtype=np.uint8))
    parts = gzip.compress(content[:5]) + gzip.compress(content[5:])
    write(tmp_path, {"many.gz": parts})
    assert read_idx(tmp_path / "many").tolist() == [0, 1, 2, 3, 4, 5]
    write(tmp_path, {"many.gz": parts + b"garbage"})
    with pytest.raises(DataError, match=r"many\.gz: cannot be read .BadGzipFile"):
        read_idx(tmp_path / "many")


def test_idx_pairs(tmp_path):
    x, y = pixels(3, 4, 5), np.array([0, 9, 3], np.uint8)
    files = {f"{part}-images-idx3-ubyte": idx(x) for part in ("train", "t10k")}
    files |= {f"{part}-labels-idx1-ubyte": idx(y) for part in ("train", "t10k")}
    for examples in read_idx_pairs(write(tmp_path, files)):
        assert np.array_equal(examples.x, x[:, None])
        assert examples.y.tolist() == [0, 9, 3]
    with pytest.raises(DataError, match="y must hold one int64 for each of the 3 examples"):
        read_idx_pairs(write(tmp_path, {"t10k-labels-idx1-ubyte": idx(y[:2])}))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere: cannot be read"):
        read_idx(tmp_path / "nowhere")


# --- CIFAR-10


def cifar(count=2):
    """The files, their images and their labels."""
    images = {name: pixels(count, 3, 32, 32) for name in CIFAR_BATCHES}
    labels = {name: RNG.integers(0, 10, count, dtype=np.uint8) for name in CIFAR_BATCHES}
    files = {
        name: b"".join(bytes([y]) + x.tobytes() for x, y in zip(images[name], labels[name], strict=True))
        for name in CIFAR_BATCHES
    }
    return files, images, labels


def archive(folder, files):
    folder.mkdir()
    with tarfile.open(folder / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return folder


def same_as(pair, images, labels):
    train, test = pair
    assert np.array_equal(train.x, np.concatenate([images[name] for name in CIFAR_BATCHES[:5]]))
    assert np.array_equal(train.y, np.concatenate([labels[name] for name in CIFAR_BATCHES[:5]]))
    assert np.array_equal(test.x, images["test_batch.bin"])
    assert np.array_equal(test.y, labels["test_batch.bin"])
    return True


def test_cifar_folder_and_archive(tmp_path):
    files, images, labels = cifar()
    assert same_as(read_cifar(write(tmp_path / "folder", files)), images, labels)
    inside = {"readme.html": b"hello"} | {f"any/{name}": content for name, content in files.items()}
    assert same_as(read_cifar(archive(tmp_path / "packed", inside)), images, labels)


def test_cifar_refuses_what_is_not_records(tmp_path):
    files, _, _ = cifar()
    with pytest.raises(DataError, match=r"test_batch\.bin has 6,145 bytes, which are not records of 3,073"):
        read_cifar(write(tmp_path, files | {"test_batch.bin": files["test_batch.bin"][:-1]}))
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(DataError, match=r"cannot be read .*test_batch\.bin"):
        read_cifar(tmp_path)


def test_cifar_archives_write_nothing_and_follow_no_link(tmp_path):
    files, images, labels = cifar()
    folder = archive(tmp_path / "up", {f"../../{name}": content for name, content in files.items()})
    before = set(tmp_path.parent.rglob("*"))
    assert same_as(read_cifar(folder), images, labels)
    assert set(tmp_path.parent.rglob("*")) == before
    secret = write(tmp_path, files) / "test_batch.bin"
    (tmp_path / "link").mkdir()
    with tarfile.open(tmp_path / "link" / "cifar-10-binary.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("test_batch.bin")
        member.type, member.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(member)
    with pytest.raises(DataError, match=r"cannot be read .KeyError: 'data_batch_1\.bin'"):
        read_cifar(tmp_path / "link")


def test_cifar_archives_that_are_broken(tmp_path):
    files, _, _ = cifar()
    path = archive(tmp_path / "a", files) / "cifar-10-binary.tar.gz"
    content = path.read_bytes()
    for broken in (content[: len(content) // 2], b"nonsense", b""):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: cannot be read"):
            read_cifar(path.parent)


def test_cifar_archives_that_unpack_to_too_much(tmp_path, monkeypatch):
    monkeypatch.setattr("advdrop.lab.data.formats.LARGEST", 1 << 16)
    with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: cannot be read .*more than 65,536 bytes"):
        read_cifar(archive(tmp_path / "a", {"readme.html": bytes(1 << 20)}))


def test_cifar_archives_with_members_that_are_not_what_they_promise(tmp_path):
    for number, (size, kind) in enumerate(
        [(1 << 50, b"0"), (1 << 50, b"S"), (-512, b"0"), (-1024, b"0"), (-1, b"L"), (-512, b"x"), (1 << 50, b"K")]
    ):
        block = bytearray(tarfile.TarInfo("data_batch_1.bin").tobuf())
        block[124:136] = (
            b"\xff" + (size % (1 << 88)).to_bytes(11, "big") if size < 0 else b"\x80" + size.to_bytes(11, "big")
        )
        block[156:157] = kind
        block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:512]) + 8 * 32)
        folder = write(tmp_path / str(number), {"cifar-10-binary.tar.gz": gzip.compress(block * 3 + bytes(1024))})
        with pytest.raises(DataError, match=r"cifar-10-binary\.tar\.gz: cannot be read"):
            read_cifar(folder)


# --- SVHN


def test_svhn(tmp_path):
    from scipy.io import savemat

    x, y = pixels(32, 32, 3, 4), np.array([[10], [1], [9], [5]], np.uint8)
    path = tmp_path / "train_32x32.mat"
    for name in ("train", "test"):
        savemat(tmp_path / f"{name}_32x32.mat", {"X": x, "y": y})
    for examples in read_svhn(tmp_path):
        assert examples.x.shape == (4, 3, 32, 32)
        assert examples.x.is_contiguous()
        assert examples.x[2, 1, 5, 7] == x[5, 7, 1, 2]
        assert examples.y.tolist() == [0, 1, 9, 5]
    for content, message in (
        ({"X": x, "y": y[:3]}, "y must hold one int64 for each of the 4 examples"),
        ({"X": x.astype(float), "y": y}, "got torch.float64"),
        ({"X": x}, "cannot be read .KeyError: 'y'"),
    ):
        savemat(path, content)
        with pytest.raises(DataError, match=message):
            read_svhn(tmp_path)
    for content in (b"", b"MATLAB 5.0 MAT-file" + bytes(200), path.read_bytes()[:300]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"train_32x32\.mat: cannot be read"):
            read_svhn(tmp_path)


def element(kind, data):
    return struct.pack("<II", kind, len(data)) + data + bytes(-len(data) % 8)


def matlab(*elements):
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\x01IM" + b"".join(elements)


def compressed(data):
    data = zlib.compress(data)
    return struct.pack("<II", 15, len(data)) + data


def matrix(name, values, shape=(1, 8), of=9, kind=2):
    head = element(6, struct.pack("<II", of, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, head + element(1, name) + element(kind, values))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "f4", "f8", "i8", "u8"])
def test_matlab_arrays_are_those_of_scipy(tmp_path, packed, kind):
    from scipy.io import loadmat, savemat

    path, arrays = tmp_path / "a.mat", {"X": pixels(3, 2, 4).astype(kind), "y": pixels(1, 1).astype(kind)}
    savemat(path, arrays | {"a_long_name": pixels(5, 1)}, do_compression=packed)
    ours, theirs = read_matlab(path), loadmat(path)
    for name in ("X", "y", "a_long_name"):
        assert ours[name].dtype == theirs[name].dtype
        assert np.array_equal(ours[name], theirs[name])


def test_matlab_files_that_crash_scipy_are_refused(tmp_path):
    deep = matrix(b"", b"12345678")
    for _ in range(3000):
        head = element(6, struct.pack("<II", 1, 0)) + element(5, struct.pack("<ii", 1, 1)) + element(1, b"X")
        deep = element(14, head + deep)
    twice = compressed(compressed(matrix(b"X", b"12345678")))
    for content, message in (
        (matlab(deep), "arrays of numbers"),
        (matlab(matrix(b"X", b"12345678", kind=0)), "arrays of numbers"),
        (matlab(matrix(b"X", b"12345678", kind=14)), "arrays of numbers"),
        (matlab(matrix(b"X", b"12345678", kind=60000)), "arrays of numbers"),
        (matlab(matrix(b"X", b"12345678", shape=(-2, -4))), "unknown dimension"),
        (matlab(matrix(b"X", b"12345678", shape=(2**31 - 1,) * 4)), "reshape|too big"),
        (matlab(twice), "an element of kind 15"),
        (matlab(bytes(1 << 20)), "an element of kind 0"),
        (b"MATLAB 5.0 MAT-file".ljust(126) + b"MI", "not a Matlab 5 file"),
    ):
        for name in ("train", "test"):
            (tmp_path / f"{name}_32x32.mat").write_bytes(content)
        with pytest.raises(DataError, match=rf"train_32x32\.mat: cannot be read .*({message})"):
            read_svhn(tmp_path)


def test_a_matlab_file_is_not_unpacked_beyond_the_largest(tmp_path, monkeypatch):
    monkeypatch.setattr("advdrop.lab.data.formats.LARGEST", 1 << 16)
    bomb = compressed(matrix(b"X", bytes(1 << 24), shape=(1, 1 << 24)))
    (tmp_path / "train_32x32.mat").write_bytes(matlab(bomb))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"train_32x32\.mat: cannot be read"):
        read_svhn(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_the_subset_of_svhn_is_its_first_test_images_with_its_first_training_images_as_a_test(tmp_path, monkeypatch):
    from scipy.io import savemat

    monkeypatch.setattr("advdrop.lab.data.formats.SVHN_SUBSET", (("test", 4), ("train", 3)))
    draw = np.random.default_rng(0)
    whole = {}
    for name, count in (("train", 6), ("test", 5)):
        x, y = draw.integers(256, size=(count, 32, 32, 3), dtype=np.uint8), draw.integers(10, size=count)
        whole[name] = x.transpose(0, 3, 1, 2), y
        labels = np.where(y == 0, 10, y)[:, None]
        savemat(tmp_path / f"{name}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": labels})
    for _ in range(2):  # from the files of SVHN, then from npz files
        for found, (name, count) in zip(read_svhn_subset(tmp_path), (("test", 4), ("train", 3)), strict=True):
            np.testing.assert_array_equal(found.x, whole[name][0][:count])
            np.testing.assert_array_equal(found.y, whole[name][1][:count])
        for name, count in (("test", 4), ("train", 3)):
            x, y = whole[name]
            np.savez_compressed(
                tmp_path / f"svhn_{name}_first{count}.npz", X=x[:count].transpose(0, 2, 3, 1), y=y[:count]
            )
        for file in tmp_path.glob("*.mat"):
            file.unlink()


@pytest.mark.parametrize("content", [b"", b"PK", b"no zip"])
def test_a_damaged_file_of_the_subset_is_named(tmp_path, content):
    for part, count in (("test", 10000), ("train", 1083)):
        (tmp_path / f"svhn_{part}_first{count}.npz").write_bytes(content)
    with pytest.raises(DataError, match="svhn_test_first10000"):
        read_svhn_subset(tmp_path)
