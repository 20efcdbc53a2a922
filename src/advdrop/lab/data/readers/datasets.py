"""Map-style torch datasets."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from advdrop.lab.data.examples import DataError, DataSet, Examples
from advdrop.lab.data.readers.arrays import RawPart, build
from advdrop.lab.data.readers.common import Array
from advdrop.lab.data.readers.images import image_pixels


def from_torch(train: Dataset[Any], test: Dataset[Any], *, name: str = "custom", progress: bool = False) -> DataSet:
    """A data set from two map-style torch datasets of pairs (x, y).

    Args:
        train: pairs of a tensor, an array or a Pillow image, all of one shape, and a label: an integer or text, ``-1``
            or ``""`` for none. See `features` for x. If the dataset has ``classes``, as those of torchvision do, the
            labels are positions in them.
        test: the same, with labels only.
        name: of the data set.
        progress: show a progress bar on stderr.
    """
    first, second = _collect(f"{name}: training", train, progress), _collect(f"{name}: test", test, progress)
    data = build(name, first, second)
    names = getattr(train, "classes", None)
    if names is None or first.y.dtype.kind != "i":
        return data
    y_train, y_test = (torch.from_numpy(part.y.astype(np.int64)) for part in (first, second))
    return DataSet(name, Examples(data.train.x, y_train), Examples(data.test.x, y_test), tuple(map(str, names)))


def _collect(where: str, data: Dataset[Any], progress: bool) -> RawPart:
    from tqdm import tqdm

    xs: list[Array] = []
    ys: list[Any] = []
    for i in tqdm(range(len(cast(Sized, data))), desc=where, disable=not progress):
        x, y = data[i]
        xs.append(_as_array(x))
        ys.append(y.item() if isinstance(y, Tensor) else y)
        if xs[i].shape != xs[0].shape:
            found = f"the shape {xs[i].shape}, the first {xs[0].shape}"
            raise DataError(f"{where} example {i} has {found}; all must have one shape")
    if not xs:
        raise DataError(f"{where}: has no examples")
    return RawPart(where, np.stack(xs), np.array(ys))


def _as_array(x: Any) -> Array:
    if isinstance(x, Tensor):
        return x.detach().cpu().numpy()
    # Only Pillow images have bands; this needs no import of Pillow.
    return image_pixels(x) if hasattr(x, "getbands") else np.atleast_1d(np.asarray(x))
