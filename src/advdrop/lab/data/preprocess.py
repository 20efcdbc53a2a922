"""From stored bytes to the input of a network; everything that is fitted is fitted on training images only."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from advdrop.lab.choices import Scaling
from advdrop.lab.files import cache_folder, written

PART = 8192
"""Images stay bytes in memory: at most this many are floats at once."""


@dataclass(frozen=True)
class Preprocess:
    """scale, then (x − mean) / std, then W(x − mean).

    Args:
        scaling: ``"unit"`` is x/255, ``"centered"`` is (x − 127.5)/255, ``"none"`` keeps the numbers.
        mean: μ, one for each channel ``(C, 1, 1)`` or each feature; ``None`` if nothing is standardized.
        std: σ, of the same shape.
        center: the mean image that whitening subtracts, ``(D,)``.
        whitening: W of ZCA, ``(D, D)``, symmetric.
    """

    scaling: Scaling = "unit"
    mean: Tensor | None = None
    std: Tensor | None = None
    center: Tensor | None = None
    whitening: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map stored examples ``(B, ...)`` to float32 of the same shape."""
        x = scaled(x, self.scaling)
        if self.mean is not None and self.std is not None:
            x = (x - self.mean) / self.std
        if self.center is not None and self.whitening is not None:
            # Autocast would round: W takes small differences of large numbers. The device meta has no autocast.
            with nullcontext() if x.is_meta else torch.autocast(x.device.type, enabled=False):
                x = ((x.flatten(1) - self.center) @ self.whitening).view_as(x)
        return x

    def to(self, device: torch.device) -> Preprocess:
        """Return the same on another device."""
        moved: dict[str, Any] = {name: t.to(device) for name, t in vars(self).items() if isinstance(t, Tensor)}
        return replace(self, **moved)


def scaled(x: Tensor, scaling: Scaling) -> Tensor:
    """Return stored numbers as float32.

    >>> scaled(torch.tensor([0, 255], dtype=torch.uint8), "centered")
    tensor([-0.5000,  0.5000])
    """
    x = x.float()
    if scaling == "none":
        return x
    return (x - 127.5) / 255.0 if scaling == "centered" else x / 255.0


def fit(
    x: Tensor,
    *,
    scaling: Scaling = "unit",
    standardize: bool = False,
    zca: bool = False,
    regularizer: float = 1e-5,
    cache: Path | None = None,
    whitens: Callable[[], None] = lambda: None,
) -> Preprocess:
    """Fit the preprocessing on training images.

    Args:
        x: ``(N, C, H, W)`` or ``(N, F)``, as stored.
        scaling: see :class:`Preprocess`.
        standardize: mean 0 and variance 1 of each channel, or of each feature of a table. A constant one is only
            centered.
        zca: W = U (Λ + regularizer)^(−1/2) Uᵀ, from the covariance UΛUᵀ in float64.
        regularizer: added to the eigenvalues, under the root.
        cache: a folder to keep whitening matrices in, named by a checksum of the data; by default the user's.
        whitens: called before a whitening matrix is computed, which takes long for large images.
    """
    preprocess = Preprocess(scaling)
    if standardize:
        mean, std = _moments(x, scaling)
        preprocess = replace(preprocess, mean=mean, std=std)
    if zca:
        center, whitening = _cached_zca(x, preprocess, regularizer, cache or cache_folder(), whitens)
        preprocess = replace(preprocess, center=center, whitening=whitening)
    return preprocess


def _moments(x: Tensor, scaling: Scaling) -> tuple[Tensor, Tensor]:
    axes = (0, 2, 3) if x.dim() == 4 else (0,)
    count = x.numel() // x.shape[1] if x.dim() == 4 else len(x)
    parts = x.split(PART)
    mean = torch.stack([scaled(part, scaling).double().sum(axes, keepdim=True)[0] for part in parts]).sum(0) / count
    squares = [(scaled(part, scaling) - mean).square().sum(axes, keepdim=True)[0] for part in parts]
    variance = torch.stack(squares).sum(0) / count
    # Rounding gives a constant feature a variance that is not quite zero; dividing by it would amplify the rounding.
    # A std below 1e-36 would be zero in float32.
    std = torch.where(variance > 1e-12 * mean.square().clamp_min(1e-60), variance.sqrt(), 1.0)
    return mean.float(), std.float()


def _cached_zca(
    x: Tensor, before: Preprocess, regularizer: float, cache: Path, whitens: Callable[[], None]
) -> tuple[Tensor, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save

    made_from = repr((before.scaling, before.mean is not None, regularizer, tuple(x.shape))).encode()
    data = hashlib.sha256(x.contiguous().numpy().data).digest()
    kept = cache / f"zca-{hashlib.sha256(made_from + data).hexdigest()}.safetensors"
    with suppress(OSError, SafetensorError):  # a file that is missing or unreadable is computed again
        saved = load_file(kept)
        return saved["center"], saved["whitening"]
    whitens()
    center, whitening = zca_matrix(x, regularizer, before)
    with suppress(OSError):  # on a full or read-only disk the next run has to compute it again
        kept.parent.mkdir(parents=True, exist_ok=True)
        with written(kept) as file:
            file.write(save({"center": center, "whitening": whitening}))
    return center, whitening


def zca_matrix(x: Tensor, regularizer: float, before: Preprocess) -> tuple[Tensor, Tensor]:
    """Return the mean and W = U (Λ + regularizer)^(−1/2) Uᵀ of ``before(x)``, x being ``(N, ...)``, in float64."""
    size = x[0].numel()
    center = torch.zeros(size, dtype=torch.float64)
    covariance = torch.zeros(size, size, dtype=torch.float64)
    for part in x.split(PART):
        center += before(part).flatten(1).sum(0, dtype=torch.float64)
    center /= len(x)
    for part in x.split(PART):
        values = before(part).flatten(1).double() - center
        covariance.addmm_(values.T, values)
    eigenvalues, u = torch.linalg.eigh(covariance / len(x))
    whitening = (u * (eigenvalues.clamp_min(0.0) + regularizer).rsqrt()) @ u.T
    return center.float(), whitening.float().contiguous()
