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
from advdrop.lab.data.examples import DataError, DataSet, every_fifth, reading
from advdrop.lab.data.own import RawPart, build
from advdrop.lab.data.picture_files import Size, read_pictures
from advdrop.lab.data.pictures import SUFFIXES
from advdrop.lab.files import read_small

NO_LABEL = ("unlabeled", "unlabelled")
"""The names of folders whose images have no label, in any case."""
MISSING = ("", "nan", "<na>")
"""What a CSV file has in place of a label that is missing, in any case."""
SPLITS = {"train": False, "test": True}
LARGEST_CSV = 1 << 28


@dataclass(frozen=True)
class Item:
    """A picture file, and what is known about it."""

    file: Path
    label: str  # empty if it has none
    test: bool | None  # None if every fifth is to be held out
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
    The name of a folder is the label, whatever it is. Pictures in ``unlabeled`` and those beside the class folders have
    no label. Files are sorted by name. Hidden files, and files that are not pictures by their name, are ignored.

    Pictures may have any size and mode, see `read_pictures` and `pixels`.

    Args:
        root: the folder.
        size: height and width of all images; by default see `choose`.
        color: ``"rgb"`` or ``"gray"``; by default see `choose`.
        unlabeled: another folder of pictures without labels. What is in ``root`` too is not read twice.
        progress: show progress.
    """
    with reading(root, advice="rename or repair it"):
        items, notes = _in_folders(root)
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
    """Picture files that are to be read."""

    where: Path  # for errors
    name: str
    items: list[Item]
    notes: list[str]  # what is to be said
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
                f"{self.where}: no image of the class {lost[0]!r} can be read; repair one or remove them all"
            )
        labels, test = np.array([item.label for item in kept]), np.array([bool(item.test) for item in kept])
        undecided = np.array([item.test is None for item in kept])
        test[undecided] = every_fifth(labels[undecided])
        if test.all() or not test.any():
            raise DataError(f"{self.where}: no {'test' if not test.any() else 'training'} images; {self.advice}")
        train, held_out = (
            RawPart(f"{self.where}: {part}", found.x[rows], labels[rows])
            for part, rows in (("training", ~test), ("test", test))
        )
        minus = ["-1 is a class like any other here; images in unlabeled/ or without a label have none"]
        notes = (*self.notes, *more, *(minus if "-1" in labels else []), *found.notes)
        return replace(build(self.name, train, held_out), notes=notes, pictures=True)


def _in_folders(root: Path) -> tuple[list[Item], list[str]]:
    """Return the pictures of a folder, and what is to be said about those in unusual places."""
    items: list[Item] = []
    notes: list[str] = []

    def add(files: list[Path], label: str, test: bool | None) -> None:
        items.extend(Item(file, label, test, str(file.relative_to(root))) for file in files)

    def add_loose(folder: Path) -> None:
        if loose := image_files(folder, deep=False):
            notes.append(f"{len(loose):,} images directly in {folder} are unlabeled: they are in no folder of a class")
            add(loose, "", False)

    split = (root / "train").is_dir()
    for folder, test in ((root / "train", False), (root / "test", True)) if split else ((root, None),):
        for path in _folders(folder):
            if path.name.casefold() in NO_LABEL:
                add(image_files(path), "", False)
            else:
                add(image_files(path), normalize("NFC", path.name), test)
        if not test:
            add_loose(folder)
    if split:
        add_loose(root)
        for path in _folders(root):
            if path.name.casefold() in NO_LABEL:
                add(image_files(path), "", False)
            elif path.name not in SPLITS:
                notes.append(f"{path} is ignored: beside train, only test and unlabeled are read")
    return items, notes


def _folders(folder: Path) -> list[Path]:
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in found if path.is_dir() and not path.name.startswith("."))


def image_files(folder: Path, deep: bool = True) -> list[Path]:
    """Return the pictures in a folder, and below if ``deep``; a folder that cannot be opened is an error."""

    def refuse(error: OSError) -> None:
        raise error

    found: list[Path] = []
    for base, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if deep and not name.startswith(".")]
        found += [Path(base, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.suffix.lower() in SUFFIXES)


def _others(folder: Path, items: list[Item]) -> tuple[list[Item], list[str]]:
    """Return the pictures of a folder of unlabeled ones that are not there yet, and how many are."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --unlabeled takes a folder of images")
    files, known = image_files(folder), {item.file.resolve() for item in items}
    added = [Item(file, "", False, str(file)) for file in files if file.resolve() not in known]
    if not files:
        raise DataError(f"{folder} has no images; --unlabeled takes a folder of images")
    double = len(files) - len(added)
    return added, [f"{double:,} images in {folder} are in the data set already"] if double else []


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
        if split not in (*SPLITS, ""):
            raise DataError(f"line {line}: split must be train or test, got {values['split']!r}")
        if split == "test" and not label:
            raise DataError(f"line {line}: has no label; every test image needs one")
        file = path.parent / name
        if (first := lines.setdefault(file.resolve(), line)) != line:
            raise DataError(f"line {line}: {name} is in line {first} already; keep one of them")
        undecided = label and "split" not in columns
        items.append(Item(file, label, None if undecided else SPLITS.get(split, False), f"line {line}, {name}"))
    return items
