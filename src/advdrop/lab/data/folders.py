"""Your own pictures: a folder with a folder for each class, or a CSV file of paths and labels."""

from __future__ import annotations

import csv
import io
import os
from dataclasses import dataclass, replace
from pathlib import Path
from unicodedata import normalize

import numpy as np

from advdrop.lab.choices import Color
from advdrop.lab.data.examples import DataError, DataSet, every_fifth, reading, shortened
from advdrop.lab.data.own import RawPart, build
from advdrop.lab.data.picture_files import NAMED, Size, read_pictures
from advdrop.lab.data.pictures import SUFFIXES
from advdrop.lab.files import read_small

NO_LABEL = ("unlabeled", "unlabelled")
"""The names of folders whose images have no label, in any case."""
MISSING = ("", "nan", "<na>")
"""What a CSV file has in place of a label that is missing, in any case."""
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "testing"), "test"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
}
"""The part of the data that a folder of this name holds, in any case."""
CLUTTER = ("thumbs.db", "desktop.ini")
"""Files that Windows puts into folders of pictures, in any case. There is no note about them."""
LARGEST_CSV = 1 << 28


@dataclass(frozen=True)
class Item:
    """A picture file, and what is known about it."""

    file: Path
    label: str  # empty if it has none
    test: bool | None  # None if it is not said, so that every fifth is held out
    name: str  # for messages


def read_images(
    root: Path,
    *,
    size: Size | None = None,
    color: Color | None = None,
    unlabeled: Path | None = None,
    progress: bool = False,
) -> DataSet:
    """Read a data set from a folder of pictures, a folder for each class.

    ``ROOT/train/CLASS/*`` and ``ROOT/test/CLASS/*``, or ``ROOT/CLASS/*`` of which `every_fifth` is held out as test.
    See `_parts` for other names of ``train`` and ``test``. All other names of folders are labels. Pictures in
    ``unlabeled`` and those next to the class folders have no label. Files are sorted by name. Hidden files are ignored.
    Files that are not pictures by their name are ignored too, and counted in a note.

    Pictures may have any size and mode, see `read_pictures` and `pixels`.

    Args:
        root: the folder.
        size: height and width of all images; by default see `choose`.
        color: ``"rgb"`` or ``"gray"``; by default see `choose`.
        unlabeled: another folder of pictures without labels. What is in ``root`` too is not read twice.
        progress: show progress.
    """
    with reading(root, advice="rename or repair it"):
        items, notes = _in_folders(root, unlabeled)
        advice = "it needs train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png with five or more images a class"
        data = PictureSet(root, root.resolve().name, items, notes, advice)
        return data.read(size, color, unlabeled, progress)


def read_csv(
    path: Path,
    *,
    size: Size | None = None,
    color: Color | None = None,
    unlabeled: Path | None = None,
    progress: bool = False,
) -> DataSet:
    """Read a data set from a CSV file with the columns ``path`` and ``label``, as pandas writes it.

    Paths are those of picture files, from the folder of the CSV file on. A label is text, as it is written; an empty
    one, and NaN, mean no label. A column ``split`` with ``train`` or ``test`` in each row says what is for testing;
    without it that is `every_fifth` labeled row. Other columns are ignored.

    Args:
        path: the CSV file.
        size: see `read_images`, as for the others.
        color: see there.
        unlabeled: see there.
        progress: see there.
    """
    with reading(path, advice="save it as a CSV file in UTF-8"):
        advice = "it needs train and test in the column split, or no such column and five or more rows a class"
        return PictureSet(path, path.stem, _in_rows(path), [], advice).read(size, color, unlabeled, progress)


@dataclass(frozen=True)
class PictureSet:
    """Picture files to read."""

    where: Path  # for errors
    name: str
    items: list[Item]
    notes: list[str]  # what the user should know
    advice: str  # what to do if there are too few

    def read(self, size: Size | None, color: Color | None, unlabeled: Path | None, progress: bool) -> DataSet:
        """Read the files, and those in the folder of unlabeled ones."""
        added, more = _others(unlabeled, self.items) if unlabeled is not None else ([], [])
        items = sorted([*self.items, *added], key=lambda item: not item.label)  # those without a label are the last
        if not any(item.label for item in items):
            raise DataError(f"{self.where}: no training images with a label; {self.advice}")
        files, names = [item.file for item in items], [item.name for item in items]
        found = read_pictures(self.where, files, names, size=size, color=color, progress=progress)
        kept = [item for item, read in zip(items, found.read, strict=True) if read]
        if lost := sorted({item.label for item in items} - {item.label for item in kept} - {""}):
            raise DataError(
                f"{self.where}: no image of the class {lost[0]!r} can be read; repair one or remove them all "
                f"({found.notes[-1]})"
            )
        labels, test = np.array([item.label for item in kept]), np.array([bool(item.test) for item in kept])
        undecided = np.array([item.test is None for item in kept])
        test[undecided] = every_fifth(labels[undecided])
        if test.all() or not test.any():
            raise DataError(f"{self.where}: no {'test' if not test.any() else 'training'} images; {self.advice}")
        train, held_out = (
            RawPart(f"{self.where}: {part}", found.x[rows], labels[rows], pictures=True)
            for part, rows in (("training", ~test), ("test", test))
        )
        told = "is a class like any other here; images in unlabeled/ or without a label have none"
        texts = [f"{text} {told}" for text in ("-1", "None") if text in labels]
        data = build(self.name, train, held_out)
        notes = (*self.notes, *more, *texts, *data.notes, *found.notes)
        return replace(data, notes=notes, pictures=True)


def _in_folders(root: Path, unlabeled: Path | None) -> tuple[list[Item], list[str]]:
    """Return the pictures of a folder, and notes about files and folders in unusual places.

    Another folder of unlabeled pictures must not be that of a class, or in it: its pictures would have a label.
    """
    items: list[Item] = []
    others: list[str] = []
    parts, notes = _parts(root)

    def add(folder: Path, label: str, test: bool | None, deep: bool = True) -> int:
        pictures, rest = _files(folder, deep)
        notes.extend(_linked(folder) if deep else [])
        items.extend(Item(file, label, test, str(file.relative_to(root))) for file in pictures)
        others.extend(str(file.relative_to(root)) for file in rest)
        return len(pictures)

    def add_folder(folder: Path, label: str, test: bool | None) -> None:
        if label and unlabeled and unlabeled.is_dir() and unlabeled.resolve().is_relative_to(folder.resolve()):
            raise DataError(
                f"--unlabeled {unlabeled} is in the folder of the class {label!r}; move it out of {root}, or leave "
                "--unlabeled out and name the folder unlabeled"
            )
        if not add(folder, label, test if label else False):
            notes.append(f"{folder} is ignored: it has no picture that can be read")
        elif test and not label:
            notes.append(f"the images in {folder} are for training: without a label they cannot be tested")

    def add_loose(folder: Path) -> None:
        if count := add(folder, "", False, deep=False):
            notes.append(f"{count:,} images directly in {folder} are unlabeled: they are in no folder of a class")

    for folder, test in parts.items() if parts else ((root, None),):
        for path in _folders(folder):
            if path.name.casefold() in NO_LABEL:
                add_folder(path, "", test)
            else:
                add_folder(path, normalize("NFC", path.name), test)
        if not test:
            add_loose(folder)
        elif lost := len(_files(folder, deep=False)[0]):
            notes.append(f"{lost:,} images directly in {folder} are ignored: they are in no folder of a class")
    if parts:
        add_loose(root)
        for path in _folders(root):
            if path.name.casefold() in NO_LABEL:
                add_folder(path, "", False)
            elif path not in parts:
                notes.append(f"{path} is ignored: besides train, only test and unlabeled are read")
    return items, [*notes, *_ignored(others)]


def _parts(root: Path) -> tuple[dict[Path, bool], list[str]]:
    """Return the folders of the training and of the test images, and notes about them.

    There are none if no folder has a name in `PARTS`: then every folder is a class. If one has, all classes must be in
    such folders. Images for validation are for testing if there are no others for that.
    """
    found: dict[str, Path] = {}
    for path in _folders(root):
        if part := PARTS.get(path.name.casefold()):
            if part in found:
                raise DataError(f"{root} has a folder {found[part].name} and a folder {path.name}; keep one of them")
            found[part] = path
    if found and "train" not in found:
        name = next(iter(found.values())).name
        raise DataError(
            f"{root} has a folder {name}, but no folder train; move the folders of the classes into train/, "
            f"or give {name} another name if it is a class"
        )
    notes = []
    if "train" in found and "test" not in found and "validation" in found:
        found["test"] = found["validation"]
        notes.append(f"the images in {found['test']} are for testing: there is no folder test")
    return {found[part]: part == "test" for part in ("train", "test") if part in found}, notes


def _folders(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.is_dir() and not path.name.startswith("."))


def _files(folder: Path, deep: bool = True) -> tuple[list[Path], list[Path]]:
    """Return the pictures in a folder, and below if ``deep``, and the other files that are not hidden.

    A folder that cannot be opened is an error.
    """

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    for base, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if deep and not name.startswith(".")]
        found += [Path(base, name) for name in names if not (name.startswith(".") or name.casefold() in CLUTTER)]
    pictures = sorted(path for path in found if path.suffix.lower() in SUFFIXES)
    return pictures, sorted(path for path in found if path.suffix.lower() not in SUFFIXES)


def _linked(folder: Path) -> list[str]:
    """Return notes about links to folders below a folder, which may lead back to it."""
    found = (Path(base, name) for base, folders, _ in os.walk(folder) for name in sorted(folders))
    return [f"{path} is ignored: it is a link to a folder" for path in found if path.is_symlink()]


def _ignored(names: list[str]) -> list[str]:
    """Return a note about files that are not pictures by their name, if there are any."""
    if not names:
        return []
    endings = sorted({Path(name).suffix.lower() or "no ending" for name in names})
    count = "1 file is not a picture" if len(names) == 1 else f"{len(names):,} files are not pictures"
    return [f"{count} that can be read ({shortened(endings)}): {shortened(names, NAMED)}"]


def _others(folder: Path, items: list[Item]) -> tuple[list[Item], list[str]]:
    """Return the pictures of a folder of unlabeled ones that are not there yet, and notes about the folder."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --unlabeled takes a folder of images")
    (files, rest), known = _files(folder), {item.file.resolve() for item in items}
    notes = [*_linked(folder), *_ignored(list(map(str, rest)))]
    added = [Item(file, "", False, str(file)) for file in files if file.resolve() not in known]
    if not files:
        raise DataError("; ".join([f"{folder} has no images", *notes, "--unlabeled takes a folder of images"]))
    if double := len(files) - len(added):
        notes.append(f"{double:,} images in {folder} are in the data set already")
    return added, notes


def _in_rows(path: Path) -> list[Item]:
    """Return the pictures that the rows of a CSV file name."""
    text = io.StringIO(read_small(path, LARGEST_CSV).decode("utf-8-sig"), newline="")
    rows = csv.reader(text, strict=True)
    columns = [name.strip().casefold() for name in next(rows, [])]
    for needed in ("path", "label"):
        if columns.count(needed) != 1:
            shown = ", ".join(map(repr, columns[:10])) or "none"
            raise DataError(f"line 1: needs one column {needed!r}, has {shown}; write path,label there")
    items, lines = [], dict[Path, int]()
    for row in rows:
        if not any(row):
            continue
        line = rows.line_num
        if len(row) != len(columns):
            raise DataError(f"line {line}: has {len(row)} values for {len(columns)} columns; quote texts with commas")
        values = dict(zip(columns, row, strict=True))
        if not (name := values["path"].strip()) or "\0" in name:
            raise DataError(f"line {line}: has no path")
        label, split = normalize("NFC", values["label"].strip()), values.get("split", "").strip().casefold()
        label = "" if label.casefold() in MISSING else label
        if (part := PARTS.get(split, split)) not in ("train", "test", ""):
            raise DataError(f"line {line}: split must be train or test, got {values['split']!r}")
        if part == "test" and not label:
            raise DataError(f"line {line}: has no label; every test image needs one")
        file = path.parent / name
        if (first := lines.setdefault(file.resolve(), line)) != line:
            raise DataError(f"line {line}: {name} is in line {first} already; keep one of them")
        undecided = label and "split" not in columns
        items.append(Item(file, label, None if undecided else part == "test", f"line {line}, {name}"))
    return items
