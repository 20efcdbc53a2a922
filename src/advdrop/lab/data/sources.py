"""The data sets that have a name, and `load`, which reads them and your own data."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from advdrop.lab.data.download import fetch
from advdrop.lab.data.examples import DataError, DataSet
from advdrop.lab.data.formats import READERS
from advdrop.lab.data.own import read_images, read_npz
from advdrop.lab.files import cache_folder
from advdrop.suggest import did_you_mean


@dataclass(frozen=True)
class Source:
    """A data set that is known by name, an entry of ``sources.yaml``.

    Args:
        name: the name that users type.
        description: one line.
        license: the terms of use, in short.
        format: of its files, see `READERS`.
        shape: of one example.
        classes: their names.
        counts: the number of training and of test examples.
        files: the files to download and their checksums; none if it comes with a package.
        unpacked: other files that hold the same and are read, too.
        urls: addresses of folders that have the files.
        folders: where it may be inside the data folder, besides the folder itself; downloads go to the first.
        first_labels: its first test labels, which distinguish data sets whose files have the same names.
    """

    name: str
    description: str
    license: str
    format: str
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    counts: tuple[int, int]
    files: dict[str, str] = field(default_factory=dict)
    unpacked: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    first_labels: tuple[int, ...] = ()

    def find(self, base: Path) -> tuple[Path, tuple[str, ...]] | None:
        """Return the first folder in which the source is complete, and the names of its files there."""
        # Its own folders come first: the files of MNIST and Fashion-MNIST have the same names.
        for folder in (*(base / name for name in self.folders), base):
            for names in (tuple(self.files), self.unpacked):
                if names and all((folder / name).is_file() for name in names):
                    return folder, names
        return None

    def read(self, folder: Path) -> DataSet:
        """Read the files in a folder."""
        train, test = READERS[self.format](folder)
        for part, found, count in (("training", train, self.counts[0]), ("test", test, self.counts[1])):
            expected, shape = (count, *self.shape), tuple(found.x.shape)
            if shape != expected:
                raise DataError(
                    f"the {part} examples of {self.name} are {expected}, {folder} holds {shape}; download its files "
                    "again, or load a part of it as your own npz file"
                )
        first = tuple(test.y[: len(self.first_labels)].tolist())
        if first != self.first_labels:
            raise DataError(
                f"{folder} holds something other than {self.name}: its test labels begin with {first}, "
                f"not {self.first_labels}; choose another data folder"
            )
        return DataSet(self.name, train, test, self.classes)


def _catalog() -> dict[str, Source]:
    found = {}
    for name, entry in yaml.safe_load(Path(__file__).with_name("sources.yaml").read_text(encoding="utf-8")).items():
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()
        }
        found[name] = Source(name, **values)
    return found


SOURCES = _catalog()
"""The data sets that `load` knows by name."""


def load(
    dataset: str | Path, data_dir: Path | str | None = None, *, download: bool = True, progress: bool = False
) -> DataSet:
    """Load a data set by its name, or your own.

    Args:
        dataset: a name in `SOURCES`, or the path of an npz file (`read_npz`) or of a folder of npz files or images
            (`read_images`). Write ``./`` before a folder that has the name of a source.
        data_dir: see `data_folder`. Missing files are downloaded to it.
        download: whether files may be downloaded.
        progress: show progress even if stderr is not a terminal.

    >>> load("digits").shape
    (1, 8, 8)
    """
    path = Path(dataset).expanduser()
    if str(dataset) in SOURCES or not path.exists():
        folder = get(str(dataset), data_dir, download=download, progress=progress)
        return SOURCES[str(dataset)].read(folder)
    return read_npz(path) if path.is_file() or (path / "train.npz").exists() else read_images(path)


def data_folder(data_dir: Path | str | None = None) -> Path:
    """Return the folder to search for sources: ``data_dir``, else ``ADVDROP_DATA``, else the user's cache folder."""
    chosen = data_dir if data_dir is not None else os.environ.get("ADVDROP_DATA")
    return Path(chosen).expanduser() if chosen else cache_folder()


def get(name: str, data_dir: Path | str | None = None, *, download: bool = True, progress: bool = False) -> Path:
    """Return the folder that holds the files of a source; download them first if they are missing and may be."""
    needed, source, base = missing(name, data_dir), SOURCES[name], data_folder(data_dir)
    if not needed:
        found = source.find(base)
        return found[0] if found else base
    folder, problem = base / source.folders[0], "downloads were not allowed"
    if download:
        mirror = os.environ.get("ADVDROP_MIRROR", "").rstrip("/")
        urls = [f"{mirror}/{name}", *source.urls] if mirror else source.urls
        try:
            for file in needed:
                fetch(file, f"md5:{source.files[file]}", urls, folder, progress=progress)
            return folder
        except DataError as error:
            problem = str(error)
    raise DataError(
        f"{name} needs {', '.join(needed)}, which are not in {base} or {folder}; {problem}; or set "
        "--data-dir or ADVDROP_DATA to a folder that has them"
    )


def missing(name: str, data_dir: Path | str | None = None) -> tuple[str, ...]:
    """Return the names of the files that `get` would download; none if the source is there."""
    if name not in SOURCES:
        raise DataError(
            f"no data set {name!r}{did_you_mean(name.lower(), SOURCES)}, and no such path; there are "
            f"{', '.join(SOURCES)}, and any npz file or folder by its path"
        )
    source, base = SOURCES[name], data_folder(data_dir)
    if not source.files or source.find(base):
        return ()
    return tuple(file for file in source.files if not (base / source.folders[0] / file).is_file())


def check(name: str, data_dir: Path | str | None = None) -> str:
    """Verify the checksums of a source's files, read them, and describe them in a line; never download."""
    from pooch.hashes import hash_matches

    folder = get(name, data_dir, download=False)
    source = SOURCES[name]
    _, names = source.find(data_folder(data_dir)) or (folder, ())
    for file in names:
        if file in source.files and not hash_matches(str(folder / file), f"md5:{source.files[file]}"):
            raise DataError(f"{folder / file}: its checksum is not md5:{source.files[file]}; download it again")
    data = source.read(folder)
    verified = "checksum right" if names == tuple(source.files) else "no checksum published"
    return (
        f"{name}: {len(data.train):,} training and {len(data.test):,} test examples of {data.shape}, "
        f"{len(data.classes)} classes, "
        + (f"in {folder}; {verified}: {', '.join(names)}" if source.files else "from a package")
    )
