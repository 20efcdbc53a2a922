"""D[target, output]: the divergence of a network's output from a target, for each example.

The output is logits ``(B, C)``, except for :func:`mse`. The target is logits, probabilities or labels::

    kl(clean_logits, logits)
    kl(ensemble_probabilities, logits, given="probabilities")
    kl(y, logits)                                             # integers are labels

An output may also have places, ``(B, C, *D)``: the pixels of a segmentation, the tokens of a sequence. Labels are then
``(B, *D)``. The divergence of an example is the mean of the divergences at its places; with ``where=``, the mean over
the places that count. A place that does not count has no influence on value or gradient, so padding changes nothing. An
example without any place that counts has the value 0.

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
        """Return the divergence of each example of ``(B, C)``; not negative, up to rounding."""


def kl(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return KL(target ‖ output) = Σ_c t_c (log t_c − log o_c), summed over the classes.

    Args:
        target: logits or probabilities ``(B, C, *D)``, or integer labels ``(B, *D)``.
        logits: the output, ``(B, C, *D)``; ``(B, C)`` for one prediction per example.
        given: what a floating-point target is.
        where: the places that count, ``(B, *D)``, zero or False for those that do not; all if not given.

    Returns:
        ``(B,)``: the mean over the places that count.

    >>> kl(torch.tensor([0]), torch.tensor([[0.0, 0.0]]))  # log 2
    tensor([0.6931])
    >>> kl(torch.tensor([[0, 1]]), torch.zeros(1, 2, 2), where=torch.tensor([[True, False]]))
    tensor([0.6931])
    """
    return over_places(_kl, target, logits, given=given, where=where)


def reverse_kl(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return KL(output ‖ target), ``(B,)``: the divergence of the released code's search.

    Takes the same arguments as :func:`kl` and is a mean over places, too. A target probability of zero is replaced by
    the smallest float, so that labels give a large but finite value.
    """
    return over_places(_reverse_kl, target, logits, given=given, where=where)


def cross_entropy(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return the cross-entropy −Σ_c t_c log o_c, ``(B,)``.

    Takes the same arguments as :func:`kl` and is a mean over places, too.
    """
    return over_places(_cross_entropy, target, logits, given=given, where=where)


def qe(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return the quadratic error: the MEAN over the classes of (t_c − o_c)² on probabilities, ``(B,)``.

    It is a mean and not a sum: the paper's λ = 25 corresponds to 2.5 on a summed squared error. It takes the same
    arguments as :func:`kl` and is a mean over places, too. For values that are no logits, see :func:`mse`.
    """
    return over_places(_qe, target, logits, given=given, where=where)


def bernoulli_kl(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return KL(target ‖ output) of C independent yes-or-no outputs, the MEAN over them, ``(B,)``.

    For multi-label networks: 1/C Σ_c t_c log(t_c / o_c) + (1 − t_c) log((1 − t_c) / (1 − o_c)), with o = sigmoid of the
    logits. It is a mean, as :class:`advdrop.BinaryCrossEntropy` is, and a mean over places.

    Args:
        target: logits or probabilities ``(B, C, *D)``.
        logits: the output, ``(B, C, *D)``.
        given: whether the target is logits or probabilities in [0, 1].
        where: as for :func:`kl`.

    >>> bernoulli_kl(torch.tensor([[1.0, 0.5]]), torch.zeros(1, 2), given="probabilities")  # (log 2 + 0) / 2
    tensor([0.3466])
    """
    return over_places(_bernoulli_kl, target, logits, given=given, where=where)


def mse(target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None) -> Tensor:
    """Return the mean over the outputs of (t − o)², ``(B,)``, for outputs that are values and not logits.

    For regression and reconstruction: no softmax is applied. It is a mean over places, too; see :func:`kl` for
    ``where``.

    >>> mse(torch.zeros(1, 2), torch.tensor([[1.0, 3.0]]))
    tensor([5.])
    """
    checks.same_shape("target", checks.floating("target", target), "output", checks.floating("output", logits))
    if where is not None:
        return over_places(_mse, target, logits, given=given, where=where)
    return _mse(target, logits, given=given)


CLASSES = (kl, reverse_kl, cross_entropy, qe)
"""The divergences of one distribution over the classes: they apply a softmax to the output."""


def full_precision(x: Tensor) -> Tensor:
    """Return float32 for half precision, and every other tensor as it is."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def over_places(
    divergence: Divergence, target: Tensor, logits: Tensor, *, given: Given = "logits", where: Tensor | None = None
) -> Tensor:
    """Return the mean of a divergence over the places of each example that count, ``(B,)``.

    Args:
        divergence: gives the divergence of each row of ``(N, C)``.
        target: ``(B, C, *D)``, or integer labels ``(B, *D)``.
        logits: ``(B, C, *D)``.
        given: what a floating-point target is.
        where: ``(B, *D)``, the places that count; all if not given.
    """
    if logits.dim() < 3 and where is None:
        return _of_each_row(divergence, target, logits, given)
    places = logits.shape[:1] + logits.shape[2:]
    if target.is_floating_point():
        checks.same_shape("target", target, "logits", logits)
    else:
        checks.labels_fit(target, logits)
    if where is None:
        return _of_each_row(divergence, _rows(target), _rows(logits), given).view(len(logits), -1).mean(1)
    if where.shape != places:
        raise ValueError(
            f"the places that count must have the shape (B, *D) of the places of the output, {tuple(places)}, got "
            f"{tuple(where.shape)}; the output is (B, C, *D), {tuple(logits.shape)}"
        )
    where = where != 0
    # Zeros in the other places: nothing of them, not even NaN, gets into a value or a gradient.
    logits = torch.where(where.unsqueeze(1), logits, 0.0)
    target = torch.where(where.unsqueeze(1) if target.is_floating_point() else where, target, 0)
    counted = where.reshape(len(where), -1)
    value = _of_each_row(divergence, _rows(target), _rows(logits), given).view_as(counted)
    return torch.where(counted, value, 0.0).sum(1) / counted.sum(1).clamp_min(1)


def _of_each_row(divergence: Divergence, target: Tensor, logits: Tensor, given: Given) -> Tensor:
    value = divergence(target, logits, given=given)
    checks.one_each("a divergence", value, len(logits))
    return value


def _rows(tensor: Tensor) -> Tensor:
    """Return ``(B, C, *D)`` as ``(B·places, C)``, and labels ``(B, *D)`` as a vector."""
    return tensor.movedim(1, -1).flatten(0, -2) if tensor.is_floating_point() else tensor.flatten()


def _kl(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    t, log_t, log_o = _distributions(target, logits, given)
    return _expectation(t, log_t - log_o)


def _reverse_kl(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    _, log_t, log_o = _distributions(target, logits, given)
    return _expectation(log_o.exp(), log_o - log_t)


def _cross_entropy(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    _check(target, logits, given)
    if not target.is_floating_point():
        return F.cross_entropy(full_precision(logits), target.long(), reduction="none")
    t, _, log_o = _distributions(target, logits, given)
    return -_expectation(t, log_o)


def _qe(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    t = _probabilities(target, logits, given)
    return (t - full_precision(logits).softmax(1)).square().mean(1)


def _bernoulli_kl(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    checks.choice("given", given, ("logits", "probabilities"))
    checks.same_shape("target", checks.floating("target", target), "logits", checks.floating("logits", logits))
    target, logits = full_precision(target), full_precision(logits)
    if given == "probabilities":
        checks.unit_interval("target", target)
        yes, no = target, 1.0 - target
        log_yes, log_no = (t.clamp_min(torch.finfo(t.dtype).tiny).log() for t in (yes, no))
    else:
        log_yes, log_no = F.logsigmoid(target), F.logsigmoid(-target)
        yes, no = log_yes.exp(), log_no.exp()
    return (yes * (log_yes - F.logsigmoid(logits)) + no * (log_no - F.logsigmoid(-logits))).mean(1)


def _mse(target: Tensor, logits: Tensor, *, given: Given = "logits") -> Tensor:
    del given
    return (full_precision(target) - full_precision(logits)).square().flatten(1).mean(1)


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
        return F.one_hot(target.long(), logits.shape[1]).to(full_precision(logits).dtype)
    return full_precision(target) if given == "probabilities" else full_precision(target).softmax(1)


def _distributions(target: Tensor, logits: Tensor, given: Given) -> tuple[Tensor, Tensor, Tensor]:
    """Return t, log t and log o; log t of a probability that is given as zero is finite."""
    if target.is_floating_point() and given == "logits":
        _check(target, logits, given)
        log_t = full_precision(target).log_softmax(1)
        t = log_t.exp()
    else:
        t = _probabilities(target, logits, given)
        log_t = t.clamp_min(torch.finfo(t.dtype).tiny).log()
    return t, log_t, full_precision(logits).log_softmax(1)


def _expectation(t: Tensor, values: Tensor) -> Tensor:
    """Return Σ_c t_c v_c. A class that is impossible in both, with a logit of −inf, adds 0 and not 0 · (−inf) = NaN."""
    impossible = (t == 0.0) & ~values.isfinite()
    return (t * values.masked_fill(impossible, 0.0)).sum(1)
