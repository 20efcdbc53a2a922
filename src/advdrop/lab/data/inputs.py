"""Examples to classify, as people have them: paths, pictures, arrays and tensors become stored examples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from advdrop.lab.data.examples import Array, DataError
from advdrop.lab.data.pictures import opened, pixels

Shape = tuple[int, ...]
COLORS = (1, 3)
"""The numbers of channels that an array may have first. It may also have 4 of them, with transparency, last."""


def stored_batches(examples: Any, shape: Shape, dtype: torch.dtype, size: int) -> Iterator[Tensor]:
    """Yield stored examples ``(up to size, *shape)``, which are read when they are asked for.

    Args:
        examples: one or several of what `stored_image` takes; or a uint8 array or tensor of images ``(N, H, W)``,
            ``(N, H, W, C)`` or ``(N, C, H, W)``. If ``dtype`` is float32: numbers ``(N, *shape)`` or ``shape``.
        shape: of one example.
        dtype: of the stored examples; uint8 for images.
        size: of a batch.
    """
    if isinstance(examples, Tensor):
        examples = examples.detach().cpu().numpy()
    if dtype == torch.float32:
        yield from (part for part in torch.from_numpy(_rows(examples, shape)).split(size) if len(part))
        return
    each = iter(_separate(examples, shape))
    while batch := [stored_image(one, shape) for one in islice(each, size)]:
        yield torch.from_numpy(np.stack(batch))


def stored_image(image: Any, shape: Shape) -> Array:
    """Return one image as uint8 of ``shape``: a path, a Pillow image, or a uint8 array or tensor.

    An array is ``(H, W)``, ``(H, W, C)`` or ``(C, H, W)``. An array of ``shape`` is not changed; every other image goes
    through `pixels`, as in training. A large JPEG file is read at a fraction if it is given by its path. One that
    Pillow has opened is read in full, so its pixels may differ a little.
    """
    if isinstance(image, Tensor):
        image = image.detach().cpu().numpy()
    if isinstance(image, np.ndarray):
        _refuse_other_numbers(image)
        if image.shape == shape:
            return image
    if len(shape) != 3 or shape[0] not in COLORS:
        raise DataError(f"this model takes uint8 arrays of shape {shape}, not pictures")
    to = (shape[0], shape[1], shape[2])
    if isinstance(image, str | Path):
        path = Path(image)
        if not path.is_file():  # to open a pipe would wait forever
            what = "is a folder" if path.is_dir() else "is not a file" if path.exists() else "does not exist"
            raise DataError(f"{path} {what}")
        with opened(path) as found:
            return pixels(found, to)
    from PIL import Image

    if isinstance(image, np.ndarray):
        image = Image.fromarray(_channels_last(image))
    if isinstance(image, Image.Image):
        image.load()  # else `pixels` would read a large JPEG file at a fraction, and the caller's image would shrink
        return pixels(image, to)
    raise DataError(f"an image must be a path, a Pillow image, an array or a tensor, got {type(image).__name__}")


def _separate(images: Any, shape: Shape) -> Iterable[Any]:
    """Return single images from one or several."""
    if not isinstance(images, np.ndarray):
        return images if isinstance(images, Iterable) and not isinstance(images, str) else [images]
    _refuse_other_numbers(images)
    if images.shape[1:] == shape or images.ndim > 3:
        return images
    if images.shape == shape or images.ndim < 3:
        return [images]
    gray, first, last = shape[0] == 1, images.shape[0] in COLORS, images.shape[2] in (*COLORS, 4)
    if gray and not last and images.shape[0] == 3:
        raise DataError(f"an array of {images.shape} could be one color image or three gray ones; add an axis for N")
    return images if gray and not first and not last else [images]


def _channels_last(image: Array) -> Array:
    """Return one image as ``(H, W)`` or ``(H, W, 3 or 4)``."""
    if image.ndim == 3:
        first, last = image.shape[0] in COLORS, image.shape[2] in (*COLORS, 4)
        if first == last:
            what = "could have its channels first or last" if first else "is not the shape of an image"
            raise DataError(f"an array of {image.shape} {what}; use (H, W), (H, W, 3) or (3, H, W)")
        image = image.transpose(1, 2, 0) if first else image
        image = image[:, :, 0] if image.shape[2] == 1 else image
    if image.ndim not in (2, 3) or 0 in image.shape:
        raise DataError(f"an array of {image.shape} is not an image; use (H, W), (H, W, 3) or (3, H, W)")
    return np.ascontiguousarray(image)


def _refuse_other_numbers(images: Array) -> None:
    if images.dtype != np.uint8:
        raise DataError(
            f"images must be uint8 from 0 to 255, got {images.dtype}; if they are from 0 to 1, multiply by 255, round "
            "and convert them, as in (255 * x).round().astype('uint8')"
        )


def _rows(rows: Any, shape: Shape) -> Array:
    """Return numbers as float32 ``(N, *shape)``."""
    try:
        found = np.asarray(rows, np.float32)
    except (TypeError, ValueError):
        raise DataError(f"this model takes numbers of shape (N, {', '.join(map(str, shape))}), not images") from None
    found = found[None] if found.shape == shape else found
    if found.shape[1:] != shape and found.size:
        raise DataError(f"this model takes numbers of shape (N, {', '.join(map(str, shape))}), got {found.shape}")
    if not np.isfinite(found).all():
        bad = int(np.isfinite(found).reshape(len(found), -1).all(1).argmin())
        raise DataError(f"row {bad} has a NaN or an infinity; fill it in or leave the row out")
    return np.require(found, requirements=["C", "W"])
