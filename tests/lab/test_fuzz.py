"""Every parser reads damaged files: a ValueError names the file in one line, or there is a result, in bounded time."""

import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
import zlib
from dataclasses import replace

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.recipes import resolve
from advdrop.lab.data.formats import CIFAR_BATCHES
from advdrop.lab.data.sources import SOURCES, load
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Record
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import FORMATS
from advdrop.lab.report.studies import studies_of
from advdrop.lab.suites.suite import Suite
from ledger import VALUES, loose_of
from studies import autoencoder_of

LIMIT = 10_000
"""Milliseconds that one file may take."""
RNG = np.random.default_rng(0)
ODD = (
    b"\0",
    b"\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\0\0\0",
    b"\xff" * 8,
    b"9" * 30,
    b"-1",
    b"[" * 2000,
    b"NaN",
    b"'",
    b"\n",
)


@st.composite
def damaged(draw, content):
    """The content with a few changes, or other bytes."""
    if draw(st.integers(0, 19)) == 0:
        return draw(st.binary(max_size=300))
    content = bytearray(content)
    for _ in range(draw(st.integers(0, 3))):
        at, length = (draw(st.integers(0, most)) for most in (len(content), 40))
        way = draw(st.sampled_from(["flip", "cut", "remove", "insert", "overwrite", "repeat"]))
        if way == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif way == "cut":
            del content[at:]
        elif way == "remove":
            del content[at : at + length]
        elif way == "repeat":
            content[at:at] = content[at : at + length]
        else:
            odd = draw(st.sampled_from(ODD))
            content[at : at + (len(odd) if way == "overwrite" else 0)] = odd
    return bytes(content)


def tried(read, name):
    """What is read, or None if it is refused in one line that has the name."""
    try:
        return read()
    except ValueError as error:
        said = str(error)
    assert str(name) in said
    assert "\n" not in said
    return None


def fuzzed(examples):
    return settings(max_examples=examples, deadline=LIMIT)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture
def tiny(monkeypatch):
    """The data sets with a name, with few examples."""
    for name, counts in (("mnist", (3, 3)), ("cifar10", (5, 1)), ("svhn", (2, 2))):
        monkeypatch.setitem(SOURCES, name, replace(SOURCES[name], counts=counts, first_labels=()))


def write(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def of_source(name, folder):
    """A data set with a name from this folder: as it should be, or refused."""
    data = tried(lambda: load(name, folder, download=False), folder)
    if data is not None:
        assert data.shape == SOURCES[name].shape
        assert (len(data.train), len(data.test)) == SOURCES[name].counts
    return data


# --- data sets with a name


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


IDX = {
    f"{part}-{kind}-ubyte": idx(array)
    for part in ("train", "t10k")
    for kind, array in (("images-idx3", np.zeros((3, 28, 28), np.uint8)), ("labels-idx1", np.arange(3, dtype=np.uint8)))
}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("zipped", [True, False])
def test_idx(zipped, folder):
    packed = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in IDX.items()} if zipped else IDX

    @fuzzed(150)
    @given(st.data())
    def run(data):
        name = data.draw(st.sampled_from(sorted(packed)))
        inside = zipped and data.draw(st.booleans())
        if inside:
            content = gzip.compress(data.draw(damaged(IDX[name.removesuffix(".gz")])))
        else:
            content = data.draw(damaged(packed[name]))
        of_source("mnist", write(folder / "idx", packed | {name: content}))

    run()
    assert of_source("mnist", write(folder / "idx", packed)) is not None


def tar_of(files):
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


CIFAR = {name: bytes(3073) for name in CIFAR_BATCHES}


@pytest.mark.usefixtures("tiny")
def test_cifar(folder):
    tar = tar_of(CIFAR)
    heads = [at for at in range(0, len(tar), 512) if tar[at + 257 : at + 262] == b"ustar"]

    @fuzzed(150)
    @given(st.data())
    def run(data):
        way = data.draw(st.sampled_from(["file", "archive", "inside", "head"]))
        if way == "file":
            name = data.draw(st.sampled_from(CIFAR_BATCHES))
            of_source("cifar10", write(folder / "cifar", CIFAR | {name: data.draw(damaged(CIFAR[name]))}))
            return
        content = tar
        if way == "inside":
            content = data.draw(damaged(content))
        elif way == "head":  # another name, size or type, with a right checksum
            at, start = data.draw(st.sampled_from(heads)), data.draw(st.integers(0, 511))
            block = bytearray(content[at : at + 512])
            odd = data.draw(st.sampled_from([*ODD[:5], b"\xff" * 12, b"x", b"g", b"L", b"S", b"2", b"5"]))
            block[start : start + len(odd)] = odd[: 512 - start]
            block[148:156] = b"%06o\0 " % (sum(block[:148]) + sum(block[156:512]) + 8 * 32)
            content = content[:at] + bytes(block) + content[at + 512 :]
        content = gzip.compress(content, 1, mtime=0)
        content = data.draw(damaged(content)) if way == "archive" else content
        of_source("cifar10", write(folder / "cifar", {"cifar-10-binary.tar.gz": content}))

    run()
    files = {"cifar-10-binary.tar.gz": gzip.compress(tar)}
    assert of_source("cifar10", write(folder / "cifar", files)) is not None


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("packed", [True, False])
def test_matlab(packed, folder):
    file = io.BytesIO()
    savemat(file, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array([[10], [3]], np.uint8)})
    good = file.getvalue()

    def repacked(content):
        body = zlib.compress(content[128:])
        return content[:128] + struct.pack("<II", 15, len(body)) + body if packed else content

    @fuzzed(200)
    @given(st.data())
    def run(data):
        head = data.draw(st.booleans())
        content = data.draw(damaged(good[:250])) + good[250:] if head else data.draw(damaged(good))
        files = {"train_32x32.mat": repacked(content), "test_32x32.mat": good}
        of_source("svhn", write(folder / "mat", files))

    run()
    assert of_source("svhn", write(folder / "mat", dict.fromkeys(("train_32x32.mat", "test_32x32.mat"), good)))


# --- your own data


def npz(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ARRAYS = {
    "x_train": np.zeros((4, 3), np.float32),
    "y_train": np.array([0, 1, 0, 1]),
    "x_test": np.zeros((2, 3), np.float32),
    "y_test": np.array([0, 1]),
}


def test_npz(folder):
    good, path = npz(**ARRAYS), folder / "own.npz"

    @fuzzed(150)
    @given(st.data())
    def run(data):
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(damaged(good)))
        else:  # a damaged array in an archive that is whole
            odd = data.draw(st.sampled_from(sorted(ARRAYS)))
            with zipfile.ZipFile(path, "w") as archive:
                for name in ARRAYS:
                    member = zipfile.ZipFile(io.BytesIO(good)).read(f"{name}.npy")
                    archive.writestr(f"{name}.npy", data.draw(damaged(member)) if name == odd else member)
        found = tried(lambda: load(path), path)
        assert found is None or (found.train.x.isfinite().all() and len(found.classes) >= 2)

    run()


DTYPES = ["<f8", "<f4", "<f2", "u1", "<i8", "<u8", "?", "<c8", "<U3", "S3", "<M8[s]"]


def test_npz_of_any_arrays(folder):
    path = folder / "any.npz"

    @fuzzed(150)
    @given(
        st.dictionaries(
            st.sampled_from(sorted(ARRAYS)),
            st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=5), st.binary(max_size=64)),
            max_size=2,
        )
    )
    def run(changes):
        arrays = dict(ARRAYS)
        for name, (kind, shape, content) in changes.items():
            array = np.zeros(shape, kind)
            stored = bytearray(array.tobytes())
            stored[: len(content)] = content[: len(stored)]
            arrays[name] = np.frombuffer(bytes(stored), kind).reshape(shape) if stored else array
        path.write_bytes(npz(**arrays))
        found = tried(lambda: load(path), path)
        assert found is None or found.train.x.isfinite().all()

    run()


def picture(form, mode):
    file = io.BytesIO()
    Image.fromarray(RNG.integers(0, 255, (5, 4), dtype=np.uint8)).convert(mode).save(file, form)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore")
def test_images(folder):
    root = folder / "images"
    for name in ("train/a/1.png", "train/b/1.png", "test/a/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(picture("PNG", "L"))
    kinds = ["PNG", "GIF", "BMP", "TIFF", "PPM", "JPEG", "WEBP"]
    good = [picture(form, mode) for form in kinds for mode in ("L", "RGB") if (form, mode) != ("GIF", "RGB")]

    @fuzzed(200)
    @given(st.data())
    def run(data):
        (root / "train/b/1.png").write_bytes(data.draw(damaged(data.draw(st.sampled_from(good)))))
        found = tried(lambda: load(root), root)
        assert found is None or (found.shape[0] in (1, 3) and max(found.shape[1:]) <= 64)

    run()


# --- configurations, suites and records

TOKENS = [
    "a",
    ": ",
    "- ",
    "\n",
    "  ",
    "[",
    "]",
    "{",
    "}",
    "&a ",
    "*a",
    "!!int ",
    "!!set ",
    "!!timestamp ",
    "!x ",
    "<<: ",
]
TOKENS += [
    "1e999",
    ".nan",
    "0x",
    "1:2:3",
    "2025-13-01",
    "=",
    "~",
    "? ",
    "| ",
    "> ",
    '"',
    "'",
    "\\u",
    "%YAML 9",
    "---",
    "\t",
]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from([10**30, 10**400, "\ud800", "<b>", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def exchanged(draw, values):
    """Nested values with one of them exchanged, removed or added."""
    values = json.loads(json.dumps(values))
    place = values
    while True:
        keys = sorted(place) if isinstance(place, dict) else list(range(len(place)))
        if not keys:
            return values
        key = draw(st.sampled_from(keys))
        if not isinstance(place[key], dict | list) or draw(st.integers(0, 3)) == 0:
            break
        place = place[key]
    if draw(st.integers(0, 4)) == 0:
        del place[key]
    else:
        place[key] = draw(JSON)
    return values


def test_configurations_and_suites(folder):
    config = resolve("digits", shape=(1, 8, 8), examples=100, labels=20, method="vadd-kl+vat")
    cases = (
        (folder / "config.yaml", RunConfig.read, yaml.safe_load(config.dump())),
        (folder / "suite.yaml", lambda path: Suite.load(str(path)), VALUES),
    )

    @fuzzed(200)
    @given(st.data())
    def run(data):
        path, read, values = data.draw(st.sampled_from(cases))
        way = data.draw(st.sampled_from(["bytes", "tokens", "values"]))
        if way == "bytes":
            path.write_bytes(data.draw(damaged(yaml.safe_dump(values).encode())))
        elif way == "tokens":
            path.write_text("".join(data.draw(st.lists(st.sampled_from(TOKENS), max_size=12))))
        else:
            path.write_text(yaml.safe_dump(data.draw(exchanged(values))))
        tried(lambda: read(path), path)

    run()


def resealed(values):
    """The values with the digest that they should have, so that more than the digest is tested."""
    kept = {key: value for key, value in values.items() if key != "digest"}
    text = json.dumps(kept, sort_keys=True, ensure_ascii=False).encode(errors="replace")
    return values | {"digest": hashlib.sha256(text).hexdigest()}


@pytest.mark.parametrize("kind", [Record, Measurement])
def test_records(kind, folder):
    record = loose_of() if kind is Record else autoencoder_of()
    path, values = folder / "record.json", record.model_dump(mode="json")

    @fuzzed(200 if kind is Record else 60)  # a study draws charts
    @given(st.data())
    def run(data):
        if data.draw(st.booleans()):
            path.write_bytes(data.draw(damaged(record.dump().encode())))
        else:
            path.write_text(json.dumps(resealed(data.draw(exchanged(values)))))
        found = tried(lambda: kind.read(path), path)
        if found is None:
            return
        results = tried(lambda: results_of([found]), found.name) if kind is Record else []
        studies = [] if kind is Record else tried(lambda: studies_of([found]), found.study)
        for form in ("markdown", "csv", "json", "latex") if results or studies else ():
            assert "<b>" not in FORMATS[form](results, studies)

    run()
    path.write_text(json.dumps(resealed(values)))
    assert kind.read(path) == record
