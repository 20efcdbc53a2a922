"""Your own arrays, and npz files of them."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from advdrop.lab.data.examples import UNLABELED, DataError, DataSet
from advdrop.lab.data.readers.common import UNREADABLE, Array, examples, joined, unreadable


class RawPart(NamedTuple):
    """Examples before their labels are numbered: where they are from, for errors, their array and their labels."""

    where: str
    x: Array
    y: Array


def read_npz(path: Path) -> DataSet:
    """A data set from one npz file or a folder of them; the case of the keys does not matter.

    One file has ``x_train``, ``y_train``, ``x_test``, ``y_test`` and optionally ``x_unlabeled``. A folder has
    ``train.npz`` and ``test.npz``, each with ``x`` and ``y``, and optionally ``unlabeled.npz`` with ``x``.
    See `features` for the arrays and `build` for the labels.
    """
    if path.is_dir():
        files = {part: path / f"{part}.npz" for part in ("train", "test", "unlabeled")}
        parts = {part: _arrays(file) for part, file in files.items() if part != "unlabeled" or file.exists()}
        arrays = {f"{key}_{part}": value for part, content in parts.items() for key, value in content.items()}
    else:
        arrays = _arrays(path)
    missing = [key for key in ("x_train", "y_train", "x_test", "y_test") if key not in arrays]
    if missing:
        raise DataError(f"{path}: lacks {', '.join(missing)}, has {', '.join(sorted(arrays)) or 'nothing'}")
    return build(
        path.stem if path.is_file() else path.resolve().name,
        RawPart(f"{path}: x_train", arrays["x_train"], arrays["y_train"]),
        RawPart(f"{path}: x_test", arrays["x_test"], arrays["y_test"]),
        (f"{path}: x_unlabeled", arrays["x_unlabeled"]) if "x_unlabeled" in arrays else None,
    )


def features(where: str, x: Array) -> Array:
    """An array as examples: uint8 images ``(N, C, H, W)``, or float32 features ``(N, ...)``.

    uint8 of ``(N, H, W)``, ``(N, H, W, 1 or 3)`` or ``(N, 1 or 3, H, W)`` are images; an array that could be either
    of the last two is refused. All other numbers, and uint8 of ``(N, F)``, are features and must be finite.
    """
    if x.dtype.kind not in "biuf" or x.ndim < 2 or 0 in x.shape:
        raise DataError(f"{where} must hold numbers (N, ...), got {x.dtype} of shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim > 2:
        return _channels_first(where, x)
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes an infinity, which is found below
        values = x.astype(np.float32)
    finite = np.isfinite(values).reshape(len(x), -1).all(1)
    if not finite.all():
        raise DataError(
            f"{where} has a NaN or an infinity in row {int(finite.argmin())} ({int((~finite).sum())} rows in all); "
            "fill it in or leave the row out"
        )
    return values


def build(name: str, train: RawPart, test: RawPart, unlabeled: tuple[str, Array] | None = None) -> DataSet:
    """A data set from arrays; a label becomes its position among the sorted labels of the training examples.

    Labels are integers or text. ``-1`` and the empty text mean no label, which only training examples may have.
    Unlabeled examples, an array and where it is from, are added to the training examples.
    """
    (known, y_train), (asked, y_test) = _labels(train), _labels(test)
    if y_train.dtype.kind != y_test.dtype.kind:
        raise DataError(f"{test.where} has labels of {y_test.dtype}, training of {y_train.dtype}; use one type")
    classes = np.unique(y_train[known])
    if len(classes) < 2:
        shown = ", ".join(map(str, classes)) or "none"
        raise DataError(f"{train.where} needs labels of at least two classes, got {shown} (-1 or '' means unlabeled)")
    if not asked.all():
        raise DataError(f"{test.where} has no label in row {int(asked.argmin())}; every test example needs one")
    unknown = sorted(set(y_test.tolist()) - set(classes.tolist()))
    if unknown:
        raise DataError(f"{test.where} has the class {unknown[0]!r}, which no training example has")
    places = np.where(known, np.searchsorted(classes, y_train), UNLABELED)
    parts = [examples(features(train.where, train.x), places)]
    if unlabeled is not None:
        where, x = unlabeled[0], features(*unlabeled)
        kind, expected = (f"{a.dtype} of {a.shape[1:]}" for a in (x, parts[0].x.numpy()))
        if kind != expected:
            raise DataError(f"{where} holds {kind}, the training examples are {expected}; make them alike")
        parts.append(examples(x, np.full(len(x), UNLABELED)))
    test_examples = examples(features(test.where, test.x), np.searchsorted(classes, y_test))
    return DataSet(name, joined(parts), test_examples, tuple(map(str, classes)))


def _arrays(path: Path) -> dict[str, Array]:
    try:
        # Opened here, because numpy does not close a file that it cannot read.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
            return {key.lower(): content[key] for key in content}
    except (*UNREADABLE, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise unreadable(path, error) from error


def _channels_first(where: str, x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    first, last = (x.ndim == 4 and x.shape[axis] in (1, 3) for axis in (1, 3))
    if first == last:
        what = "could have its channels first or last" if first else "is not a shape of images"
        shapes = "(N, H, W), (N, H, W, 3) or (N, 3, H, W)"
        raise DataError(f"{where}: uint8 of {x.shape} {what}; save images as {shapes}, features as float32")
    return x if first else x.transpose(0, 3, 1, 2)


def _labels(part: RawPart) -> tuple[NDArray[np.bool_], Array]:
    """Which examples have a label, and the labels ``(N,)`` as int64 or text."""
    y = part.y[:, 0] if part.y.ndim == 2 and part.y.shape[1] == 1 else part.y
    if y.dtype.kind not in "biuUS" or y.shape != part.x.shape[:1]:
        found = f"{y.dtype} of shape {y.shape}"
        raise DataError(f"{part.where} {part.x.shape} needs as many labels, integers or text, got {found}")
    if y.dtype.kind in "US":
        y = np.char.decode(y, "utf-8") if y.dtype.kind == "S" else y
        return y != "", y
    y = y.astype(np.int64)
    return y != UNLABELED, y
