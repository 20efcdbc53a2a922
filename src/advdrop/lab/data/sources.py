"""The data sets that have a name, and `load`, which reads them and your own data."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from advdrop.lab.choices import Color
from advdrop.lab.data.examples import DataError, DataSet, reading
from advdrop.lab.data.folders import read_csv, read_images
from advdrop.lab.data.formats import LARGEST, READERS
from advdrop.lab.data.own import read_npz
from advdrop.lab.data.picture_files import Size
from advdrop.lab.data.pictures import SUFFIXES
from advdrop.lab.files import cache_folder
from advdrop.suggest import did_you_mean

TIMEOUT = (10.0, 30.0)  # seconds to wait for a connection, and for the next bytes
RETRIES = 2  # how often an address is tried again after a failure, with a pause of 1 s, then 2 s


@dataclass(frozen=True)
class Source:
    """A data set that is known by name, an entry of ``sources.yaml``."""

    name: str  # what users type
    description: str  # one line
    license: str  # the terms of use, in short
    format: str  # of its files, see READERS
    shape: tuple[int, ...]  # of one example
    classes: tuple[str, ...]  # their names
    counts: tuple[int, int]  # of training and of test examples
    files: dict[str, str] = field(default_factory=dict)  # to download, and their MD5; none if it is part of a package
    unpacked: tuple[str, ...] = ()  # other files that hold the same and are read, too
    urls: tuple[str, ...] = ()  # addresses of folders that have the files
    folders: tuple[str, ...] = ()  # in the data folder, in addition to that folder; downloads go to the first
    first_labels: tuple[int, ...] = ()  # of the test; they distinguish data sets whose files have the same names

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
        with reading(folder):
            train, test = READERS[self.format](folder)
            for part, found, count in (("training", train, self.counts[0]), ("test", test, self.counts[1])):
                expected, shape = (count, *self.shape), tuple(found.x.shape)
                if shape != expected:
                    raise DataError(
                        f"the {part} examples of {self.name} are {expected}, {folder} holds {shape}; download its "
                        "files again, or load a part of it as your own npz file"
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
        tuples: dict[str, Any] = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        found[name] = Source(name, **entry | tuples)
    return found


SOURCES = _catalog()
"""The data sets that `load` knows by name."""


def load(
    dataset: str | Path,
    data_dir: Path | str | None = None,
    *,
    size: int | Size | None = None,
    color: Color | None = None,
    unlabeled: Path | str | None = None,
    download: bool = True,
    progress: bool = False,
) -> DataSet:
    """Load a data set by its name, or your own.

    Args:
        dataset: a name in `SOURCES`, or the path of a folder of pictures (`read_images`), of a CSV file of their paths
            and labels (`read_csv`) or of an npz file (`read_npz`). Write ``./`` before a folder that has the name of a
            source.
        data_dir: see `data_folder`. Missing files are downloaded to it.
        size: pixels of each side, or height and width, that pictures are resized to; by default see `choose`.
        color: ``"rgb"`` or ``"gray"``, for pictures; by default see `choose`.
        unlabeled: a folder of more pictures, which have no label.
        download: whether files may be downloaded.
        progress: show progress even if stderr is not a terminal.

    What a user should know about how the data were read, such as skipped files, is in ``notes`` of the result.

    >>> load("digits").shape
    (1, 8, 8)
    """
    path = Path(dataset).expanduser()
    named = str(dataset) in SOURCES or not path.exists()
    if of_pictures(dataset):
        sides = (size, size) if isinstance(size, int) else size
        others = Path(unlabeled).expanduser() if unlabeled is not None else None
        read = read_images if path.is_dir() else read_csv
        return read(path, size=sides, color=color, unlabeled=others, progress=progress)
    if named:
        missing(str(dataset), data_dir)  # an error if there is no such name
    elif path.suffix.lower() in SUFFIXES:
        raise DataError(f"{path} is one picture; give a folder that has a folder of pictures for each class")
    for option, value in (("size", size), ("color", color), ("unlabeled", unlabeled)):
        if value is not None:
            raise DataError(f"{option}={value} is for folders of images and CSV files; {dataset} is read as it is")
    if not named:
        return read_npz(path)
    return SOURCES[str(dataset)].read(get(str(dataset), data_dir, download=download, progress=progress))


def of_pictures(dataset: str | Path) -> bool:
    """Return True if a data set is read from picture files: a folder, or a CSV file of their paths."""
    path = Path(dataset).expanduser()
    return str(dataset) not in SOURCES and (path.is_dir() or (path.is_file() and path.suffix.lower() == ".csv"))


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
    folder, problem = base / source.folders[0], f"advdrop data get {name} downloads them"
    if download:
        mirror = os.environ.get("ADVDROP_MIRROR", "").rstrip("/")
        urls = [f"{mirror}/{name}", *source.urls] if mirror else source.urls
        try:
            for file in needed:
                fetch(file, source.files[file], urls, folder, progress=progress)
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
            f"{', '.join(SOURCES)}, and any folder, CSV file or npz file by its path"
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


def fetch(name: str, md5: str, urls: Iterable[str], folder: Path, *, progress: bool = False) -> None:
    """Download a file with pooch: retried, verified by its MD5, and only then given its name.

    ``urls`` are the addresses of folders that have it, in the order in which they are tried. After a failure nothing is
    left, not even an empty folder.
    """
    import pooch

    pooch.get_logger().setLevel("WARNING")
    visible = progress or sys.stderr.isatty()
    # A server that compresses the file again would change its checksum.
    http = pooch.HTTPDownloader(progressbar=visible, headers={"Accept-Encoding": "identity"}, timeout=TIMEOUT)

    def download(url: str, output: str, _: object) -> None:
        Path(output).unlink()  # pooch's file is readable by its owner only; a new one has the usual permissions
        with _Limited(io.FileIO(output, "w")) as file:
            http(url, file, None)

    tried = []
    made = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        for url in urls:
            source = pooch.create(folder, f"{url}/", registry={name: f"md5:{md5}"}, retry_if_failed=RETRIES)
            try:
                source.fetch(name, downloader=download)
                return
            except (OSError, ValueError) as error:
                tried.append(f"{url}/{name} ({_reason(error)})")
    finally:
        with suppress(OSError):  # one that is not empty stays
            for path in made:
                path.rmdir()
    reasons = "; ".join(tried) or "there is no address for it"
    raise DataError(f"{name} cannot be downloaded: {reasons}; download it yourself into {folder}")


class _Limited(io.BufferedWriter):
    """A file for what a server sends, which may be without end."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > LARGEST:
            raise OSError(errno.EFBIG, f"more than {LARGEST:,} bytes")
        return super().write(data)


def _reason(error: OSError | ValueError) -> str:
    """Return why a download failed, in a few words; the messages of requests are very long."""
    if (response := getattr(error, "response", None)) is not None:
        return f"HTTP {response.status_code}"
    if type(error) is ValueError:
        return "wrong checksum"
    return getattr(error, "strerror", None) or type(error).__name__
