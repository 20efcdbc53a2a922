"""Your own arrays: npz files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unicodedata import category
from zipfile import is_zipfile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from advdrop.lab.data.examples import (
    UNLABELED,
    Array,
    DataError,
    DataSet,
    Examples,
    check_memory,
    reading,
    shortened,
)
from advdrop.lab.data.inputs import COLORS

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
"""What an npz file holds, in any case."""
LOOK_MISSING = ("-1", "nan", "NaN", "None", "<NA>")
"""Texts that come from missing labels when an array is converted to text."""


class RawPart(NamedTuple):
    """Examples before their labels are numbered."""

    where: str  # for errors
    x: Array
    y: Array
    pictures: bool = False  # whether x has the images (N, C, H, W) of picture files, with known axes


def read_npz(path: Path) -> DataSet:
    """Read a data set from an npz file with ``x_train``, ``y_train``, ``x_test`` and ``y_test``, in any case.

    See `features` for the arrays and `build` for the labels.
    """
    with reading(path):
        if not is_zipfile(path):  # numpy would speak of pickles
            raise ValueError("it is not an npz file, or its end is missing")
        return _read_npz(path)


def _read_npz(path: Path) -> DataSet:
    # Opened here, because numpy does not close a file that it cannot read.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        names = {key.lower(): key for key in content}
        missing = [key for key in ARRAYS if key not in names]
        if missing:
            raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(sorted(names)) or 'nothing'}")
        check_memory(path, sum(member.file_size for member in content.zip.infolist()))  # never more is unpacked

        def array(name: str) -> Array:
            try:
                return np.asarray(content[names[name]])  # a member may be no array
            except ValueError as error:
                if "Object arrays" not in str(error):
                    raise
                what = "y.astype(str)" if name[0] == "y" else "x.astype(np.float32)"
                raise DataError(f"{path}: {name} holds Python objects, which are not read; save {what}") from None

        train, test = (
            RawPart(f"{path}: x_{part}", array(f"x_{part}"), array(f"y_{part}")) for part in ("train", "test")
        )
        data = build(path.stem, train, test)
        others = [key for key in content if key not in {names[name] for name in ARRAYS}]
        said = f"not read: {shortened(others)}; examples without a label belong to x_train, with -1 or '' in y_train"
        return replace(data, notes=(*data.notes, said)) if others else data


def features(where: str, x: Array) -> Array:
    """Return an array as examples: uint8 images ``(N, C, H, W)``, or float32 numbers ``(N, ...)``.

    ``(N, H, W, 1 or 3)`` and ``(N, 1 or 3, H, W)`` are images, and get their channels first; an array that could be
    either is refused. So is uint8 of other shapes, except images ``(N, H, W)`` and features ``(N, F)``. All numbers of
    other types become float32 and must be finite.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{where} must hold numbers (N, ...), got {x.dtype} of shape {x.shape}")
    pixels = x.dtype == np.uint8 and x.ndim > 2
    if pixels or (x.ndim == 4 and (x.shape[1] in COLORS or x.shape[3] in COLORS)):
        x = _channels_first(where, x)
    if pixels:
        return x
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, which is found below
        values = x.astype(np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(1)
    if not finite.all():
        row = int(finite.argmin())
        what, advice = "a NaN or an infinity", "fill it in or leave the row out"
        if np.isfinite(x[row]).all():
            what, advice = "a number that is too large for float32", "divide its column by a power of ten"
        raise DataError(f"{where} has {what} in row {row} ({int((~finite).sum())} rows in all); {advice}")
    return values


def _channels_first(where: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[axis] in COLORS for axis in (1, 3))
    if first == last:
        what = "could have its channels first or last" if first else "is not a shape of images"
        shapes = "(N, H, W), (N, H, W, 3) or (N, 3, H, W)"
        raise DataError(f"{where}: {x.dtype} of {x.shape} {what}; save images as {shapes}, features as float32 (N, F)")
    return x if first else x.transpose(0, 3, 1, 2)


def build(name: str, train: RawPart, test: RawPart) -> DataSet:
    """Build a data set from arrays; a label becomes its position among the sorted labels of the training examples.

    Labels are integers or text. The integer -1 and the empty text mean no label, which only training examples may have;
    the text ``"-1"`` is a class.
    """
    (known, y_train), (asked, y_test) = _labels(train), _labels(test)
    if y_train.dtype.kind != y_test.dtype.kind:
        raise DataError(f"{test.where} has labels of {y_test.dtype}, training of {y_train.dtype}; use one type")
    classes = np.unique(y_train[known])
    if len(classes) < 2:
        shown = ", ".join(map(str, classes)) or "none"
        advice = "each class is a folder or a label of its own" if train.pictures else "-1 or '' means unlabeled"
        raise DataError(f"{train.where} needs labels of at least two classes, got {shown} ({advice})")
    if not asked.all():
        raise DataError(f"{test.where} has no label in row {int(asked.argmin())}; every test example needs one")
    unknown = sorted(set(y_test.tolist()) - set(classes.tolist()))
    if unknown:
        raise DataError(f"{test.where} has the class {unknown[0]!r}, which no training example has")
    names = tuple(map(str, classes))
    if odd := [name for name in names if any(category(letter) in ("Cc", "Cs") for letter in name)]:
        raise DataError(f"{train.where} has the class {odd[0]!a}, a name with control characters or broken text")
    positions = np.where(known, np.searchsorted(classes, y_train), UNLABELED)
    x_train, x_test = (part.x if part.pictures else features(part.where, part.x) for part in (train, test))
    train_examples = Examples.of(x_train, positions)
    test_examples = Examples.of(x_test, np.searchsorted(classes, y_test))
    untested = [names[label] for label in range(len(names)) if not (test_examples.y == label).any()]
    advice = "give each class five examples or more, or test examples of its own"
    notes = [f"no test example of {shortened(untested)}: errors there are not measured; {advice}"] if untested else []
    texts = [name for name in names if name in LOOK_MISSING and classes.dtype.kind == "U" and not train.pictures]
    notes += [f"the text {name!r} is a class like any other here; only the empty text means no label" for name in texts]
    if classes.dtype.kind == "i" and classes[0] < 0:  # such as -100, which means no label elsewhere
        notes += [f"{classes[0]} is a class like any other here; only {UNLABELED} means no label"]
    if train.y.dtype.kind == "u" and classes[-1] == np.iinfo(train.y.dtype).max:  # what -1 becomes in this type
        notes += [f"{classes[-1]} is a class like any other here; if it was -1, for no label, save y_train as int64"]
    notes += _too_coarse(train.x, x_train)
    alike = train.x.dtype == test.x.dtype and train.x.shape[1:] == test.x.shape[1:]
    notes += _copied(train.x, test.x) if alike else _copied(x_train, x_test)
    return DataSet(name, train_examples, test_examples, names, (*_taken_for(train_examples.x), *notes))


def _too_coarse(x: Array, values: Array) -> list[str]:
    """Return a note if float32 has too few digits for columns of a table, such as numbers from 2**60 to 2**60 + 1."""
    if x.ndim != 2 or x.dtype.itemsize <= values.dtype.itemsize:
        return []
    wide = x.astype(np.float64)
    error, std = np.abs(wide - values).max(0), wide.std(0)
    lost = np.flatnonzero((error > 0.1 * std) & (std > 1e-12 * np.abs(wide.mean(0))))  # else it is float64's rounding
    if not len(lost):
        return []
    which = shortened([f"{column} ({x[:, column].min():,} to {x[:, column].max():,})" for column in lost], most=3)
    return [f"float32 has too few digits for the numbers of the columns {which}; subtract their mean before saving"]


def _copied(train: Array, test: Array) -> list[str]:
    """Return a note if test examples are training examples too, whether these have a label or not."""
    known = {hash(row.tobytes()) for row in train}  # not the bytes, which would be a second copy in memory
    count = sum(hash(row.tobytes()) in known for row in test)
    if not count:
        return []
    return [
        f"{count:,} of {len(test):,} test examples have a copy among the training examples, so the test error may be "
        "too low; remove the copies"
    ]


def _taken_for(x: Tensor) -> list[str]:
    """Return a note about what numbers are taken for that are neither bytes of images nor rows of a table."""
    if x.dtype == torch.uint8 or x.dim() == 2:
        return []
    shape = tuple(x.shape[1:])
    if x.dim() == 4:
        return [f"numbers (C, H, W) = {shape} are taken for images; only models of uint8 images classify picture files"]
    return [f"numbers {shape} are taken for rows of {x[0].numel():,} in a table; save images as uint8 from 0 to 255"]


def _labels(part: RawPart) -> tuple[NDArray[np.bool_], Array]:
    """Return which examples have a label, and the labels ``(N,)`` as int64 or text."""
    y = part.y[:, 0] if part.y.ndim == 2 and part.y.shape[1] == 1 else part.y
    if y.dtype.kind not in "biuUS" or y.shape != part.x.shape[:1]:
        found = f"{y.dtype} of shape {y.shape}"
        raise DataError(f"{part.where} {part.x.shape} needs as many labels, integers or text, got {found}")
    if y.dtype.kind in "US":
        y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        return y != "", y
    if y.dtype == np.uint64 and y.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(
            f"{part.where} has labels up to {y.max()}, more than an int64 can hold; number the classes from 0"
        )
    y = y.astype(np.int64)
    return y != UNLABELED, y
