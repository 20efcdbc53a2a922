"""D[target, output]: the divergence of a network's output from a target, for each example.

The output is logits ``(B, C)``, except for :func:`mse`. The target is logits, probabilities or labels::

    kl(clean_logits, logits)
    kl(ensemble_probabilities, logits, given="probabilities")
    kl(y, logits)                                             # integers are labels

Half-precision logits are converted to float32 first, so all divergences are stable under autocast. Gradients flow into
both arguments; detach the target to stop them.
"""

from __future__ import annotations

from typing import Literal, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from advdrop import checks

Given = Literal["logits", "probabilities"]


class Divergence(Protocol):
    """D[target, output] of each example, ``(B,)``."""

    def __call__(self, target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
        """Return the divergence of each example; not negative, up to rounding."""


def kl(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    """Return KL(target ‖ output) = Σ_c t_c (log t_c − log o_c), summed over the classes.

    Args:
        target: logits or probabilities ``(B, C)``, or integer labels ``(B,)``.
        logits: the output, ``(B, C)``.
        given: what a floating-point target is.

    Returns:
        ``(B,)``

    >>> kl(torch.tensor([0]), torch.tensor([[0.0, 0.0]]))  # log 2
    tensor([0.6931])
    """
    t, log_t, log_o = _distributions(target, logits, given)
    return (t * (log_t - log_o)).sum(1)


def reverse_kl(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    """Return KL(output ‖ target), ``(B,)``: the divergence of the released code's search.

    Takes the same arguments as :func:`kl`. A target probability of zero is replaced by the smallest float, so
    that labels give a large but finite value.
    """
    _, log_t, log_o = _distributions(target, logits, given)
    return (log_o.exp() * (log_o - log_t)).sum(1)


def cross_entropy(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    """Return the cross-entropy −Σ_c t_c log o_c, ``(B,)``. Takes the same arguments as :func:`kl`."""
    _check(target, logits, given)
    if not target.is_floating_point():
        return F.cross_entropy(_full(logits), target.long(), reduction="none")
    t, _, log_o = _distributions(target, logits, given)
    return -(t * log_o).sum(1)


def qe(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    """Return the quadratic error: the MEAN over the classes of (t_c − o_c)² on probabilities, ``(B,)``.

    It is a mean and not a sum: the paper's λ = 25 corresponds to 2.5 on a summed squared error. It takes the same
    arguments as :func:`kl`.
    """
    t = _probabilities(target, logits, given)
    return (t - _full(logits).softmax(1)).square().mean(1)


def mse(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    """Return the mean over the outputs of (t − o)², ``(B,)``, for outputs that are values and not logits.

    For regression and reconstruction: no softmax is applied.

    >>> mse(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]))
    tensor([5.])
    """
    del given
    checks.same_shape("target", checks.floating("target", target), "output", checks.floating("output", logits))
    return (_full(target) - _full(logits)).square().flatten(1).mean(1)


def _full(logits: Tensor) -> Tensor:
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _check(target: Tensor, logits: Tensor, given: Given) -> None:
    checks.choice("given", given, ("logits", "probabilities"))
    if logits.dim() != 2 or not logits.is_floating_point():
        raise ValueError(f"logits must be floats (B, C), got {logits.dtype} of shape {tuple(logits.shape)}")
    checks.several_outputs(logits)
    if target.is_floating_point():
        checks.same_shape("target", target, "logits", logits)
        return
    checks.labels(target, logits.shape[1])
    if len(target) != len(logits):
        raise ValueError(f"got {len(target)} labels for {len(logits)} outputs")


def _probabilities(target: Tensor, logits: Tensor, given: Given) -> Tensor:
    _check(target, logits, given)
    if not target.is_floating_point():
        return F.one_hot(target.long(), logits.shape[1]).to(_full(logits).dtype)
    return _full(target) if given == "probabilities" else _full(target).softmax(1)


def _distributions(target: Tensor, logits: Tensor, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return t, log t and log o; log t is finite where t is zero."""
    if target.is_floating_point() and given == "logits":
        _check(target, logits, given)
        log_t = _full(target).log_softmax(1)
        t = log_t.exp()
    else:
        t = _probabilities(target, logits, given)
        log_t = t.clamp_min(torch.finfo(t.dtype).tiny).log()
    return t, log_t, _full(logits).log_softmax(1)
