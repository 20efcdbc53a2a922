"""Checks of arguments, with error messages that show the value and say what to do.

Shapes and types are always checked, because that takes almost no time. To check values (NaN, labels out of range, an
all-zero Jacobian), the program has to wait for the device. So values are always checked on the CPU, but on an
accelerator only in the first few steps, or if :func:`value_checks` asks for it.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack as _transform

from advdrop.suggest import nearest_names

When = Literal["auto", "always", "never"]

FIRST_STEPS = 3
"""The number of times each check looks at the values of a device tensor under ``"auto"``."""

_given: ContextVar[set[str] | None] = ContextVar("advdrop_given_warnings", default=None)
_when: ContextVar[When] = ContextVar("advdrop_value_checks", default="auto")
_looked: Counter[str] = Counter()


@contextmanager
def value_checks(when: When) -> Iterator[None]:
    """Choose when values are checked inside the ``with`` block.

    Args:
        when: ``"auto"`` (always on the CPU, the first steps on a device), ``"always"`` or ``"never"``.

    >>> from advdrop.masks import flip_mask
    >>> mask, jacobian = torch.ones(1, 2), torch.tensor([[float("nan"), -1.0]])
    >>> with value_checks("never"):
    ...     _ = flip_mask(mask, jacobian, budget=1)
    """
    if when not in ("auto", "always", "never"):
        raise ValueError(f"value_checks takes 'auto', 'always' or 'never', got {when!r}")
    token = _when.set(when)
    try:
        yield
    finally:
        _when.reset(token)


def due(check: str, tensor: Tensor) -> bool:
    """Return True if the named check should look at the values of this tensor now."""
    when = _when.get()
    if when == "never" or tensor.is_meta or torch.compiler.is_compiling():
        return False
    if when == "always" or tensor.is_cpu:
        return True
    _looked[check] += 1
    return _looked[check] <= FIRST_STEPS


@contextmanager
def warnings_once(given: set[str]) -> Iterator[None]:
    """Inside the ``with`` block, give a warning of :func:`warn_once` only if it is not in this set, and add it."""
    token = _given.set(given)
    try:
        yield
    finally:
        _given.reset(token)


def warn_once(message: str) -> None:
    """Give a warning, unless it was given before, see :func:`warnings_once`."""
    given = _given.get()
    if given is None or message not in given:
        warnings.warn(message, stacklevel=3)
    if given is not None:
        given.add(message)


def several_outputs(logits: Tensor) -> None:
    """Warn if a softmax is taken of one output: it is always 1, so every loss of it is constant."""
    if logits.shape[1] == 1:
        warn_once(
            "the network has one output, and the softmax of one output is always 1: this loss is constant, and nothing "
            "is learned from it. Give the network one output per class (two for yes and no), or use a divergence "
            "without softmax, divergence=advdrop.mse"
        )


def differentiable(who: str) -> None:
    """Raise an error if gradients cannot be computed here, as ``torch.autograd.grad`` does."""
    if torch.is_inference_mode_enabled():
        raise RuntimeError(
            f"{who} needs gradients, and torch.inference_mode() forbids them; use torch.no_grad() instead (with "
            "Lightning: Trainer(inference_mode=False))"
        )
    if _transform() is not None:
        raise RuntimeError(
            f"{who} cannot run inside torch.func.grad, vmap or another transform of torch.func; use loss.backward(), "
            "or torch.autograd.grad(loss, parameters)"
        )


def ordinary(name: str, tensor: Tensor) -> None:
    """Raise an error if a tensor was made under ``torch.inference_mode()``: no gradient can flow through it."""
    if tensor.is_inference():
        raise RuntimeError(
            f"{name} was made under torch.inference_mode(), so no gradient can be computed with it; pass a copy that "
            "was made outside of that block, tensor.clone(), or make it under torch.no_grad()"
        )


def fraction(name: str, value: float) -> float:
    """Return ``value`` as a float in [0, 1], or raise an error that names it."""
    if not 0.0 <= _number(name, value, "a number in [0, 1]") <= 1.0:
        raise ValueError(f"{name} must be in [0, 1], got {value!r}")
    return float(value)


def positive(name: str, value: float) -> float:
    """Return ``value`` as a finite float above zero, or raise an error that names it."""
    if not 0.0 < _number(name, value) < float("inf"):
        raise ValueError(f"{name} must be positive and finite, got {value!r}")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Return ``value`` as a finite float of at least zero, or raise an error that names it."""
    if not 0.0 <= _number(name, value) < float("inf"):
        raise ValueError(f"{name} must be zero or more and finite, got {value!r}")
    return float(value)


def _number(name: str, value: float, kind: str = "a number") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be {kind}, got {value!r} ({type(value).__name__})")
    return value


def count(name: str, value: int, least: int = 1) -> int:
    """Return ``value`` as an int of at least ``least``, or raise an error that names it."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, got {value!r} ({type(value).__name__})")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")
    return value


def choice(name: str, value: str, allowed: tuple[str, ...]) -> str:
    """Return ``value`` if it is one of ``allowed``, or raise an error that lists them."""
    if value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def function(name: str, value: object) -> None:
    """Raise an error that names the argument unless it can be called."""
    if not callable(value):
        raise TypeError(f"{name} must be a function such as advdrop.kl, got {value!r}")


def is_tensor(name: str, value: object) -> None:
    """Raise an error that names the argument unless it is a tensor."""
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}")


def floating(name: str, tensor: Tensor, empty: bool = False) -> Tensor:
    """Return ``tensor`` if it has floats and, unless it may be empty, at least one example, or raise an error."""
    is_tensor(name, tensor)
    if not tensor.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {tensor.dtype}; convert it, e.g. {name}.float()")
    if tensor.dim() == 0 or (tensor.shape[0] == 0 and not empty):
        raise ValueError(f"{name} must hold at least one example, got shape {tuple(tensor.shape)}")
    return tensor


def examples(name: str, tensor: Tensor) -> Tensor:
    """Return ``tensor`` if it has numbers or tokens and at least one example, or raise an error."""
    others = isinstance(tensor, Tensor) and (tensor.dtype in (torch.int32, torch.int64) or tensor.is_complex())
    if others and tensor.dim() > 0 and len(tensor) > 0:
        return tensor
    return floating(name, tensor)


def same_shape(left_name: str, left: Tensor, right_name: str, right: Tensor) -> None:
    """Raise an error that shows both shapes unless they are equal."""
    if left.shape != right.shape:
        raise ValueError(
            f"{left_name} and {right_name} must have the same shape, got {tuple(left.shape)} and {tuple(right.shape)}"
        )


def no_places(
    who: str, logits: Tensor, way: str = "for outputs with places use VAdD(), PiModel() or MeanTeacher()"
) -> Tensor:
    """Return ``logits`` if they are one prediction per example, ``(B, C)``, or raise an error with a way out."""
    if logits.dim() != 2:
        raise ValueError(
            f"{who} needs one prediction (B, C) for each example, got outputs of shape {tuple(logits.shape)}; {way}"
        )
    return logits


def one_each(what: str, value: object, examples: int | None = None) -> None:
    """Raise an error unless a value is a vector, of this length: all else would be averaged to something else."""
    if not isinstance(value, Tensor) or value.dim() != 1 or examples not in (None, len(value)):
        shown = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ValueError(f"{what} must return one value for each example, a tensor (B,), got {shown}")


class NonFiniteError(ValueError):
    """An error: a NaN or an infinity in a tensor that must be finite."""


def finite(
    name: str, tensor: Tensor, way: str = "look for an exploding loss or a division by zero above the layer"
) -> None:
    """Raise an error that names the examples with a NaN or an infinity and a way out, if value checks are due."""
    if not due(name, tensor):
        return
    # The sum is finite only if every element is. It may also overflow, so then every element is checked.
    if not math.isfinite(tensor.sum().item()) and not bool(tensor.isfinite().all()):
        bad = (~tensor.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()
        shown = ", ".join(map(str, bad[:8])) + (", ..." if len(bad) > 8 else "")
        raise NonFiniteError(
            f"{name} has NaN or infinity in {len(bad)} of {len(tensor)} examples (rows {shown}); {way}"
        )


def binary(name: str, tensor: Tensor) -> None:
    """Raise an error that shows a wrong value unless every element is 0 or 1, if value checks are due."""
    if not due(name, tensor):
        return
    least, most = torch.aminmax(torch.addcmul(tensor, tensor, tensor, value=-1.0))  # x - x², in one call
    if not (least == 0 and most == 0):
        odd = tensor[(tensor != 0) & (tensor != 1)][0].item()
        raise ValueError(f"{name} must hold only 0 and 1, got {odd!r}")


def label_count(y: Tensor) -> int:
    """Return the number of examples that have labels, or raise an error if the labels are not a tensor with rows."""
    is_tensor("labels", y)
    if y.dim() == 0:
        raise ValueError(f"labels must be (B,) or (B, ...), got the single value {y!r}")
    return len(y)


def integers(y: Tensor) -> Tensor:
    """Return ``y`` if it has integers, or raise an error."""
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise TypeError(f"labels must be integers, got {y.dtype}; use y.long(), or y.argmax(1) if they are one-hot")
    return y


def label_vector(y: Tensor) -> Tensor:
    """Return ``y`` if it is a vector of integers, or raise an error."""
    is_tensor("labels", y)
    if integers(y).dim() != 1:
        raise ValueError(f"labels must be a vector (B,), got shape {tuple(y.shape)}; one-hot rows need y.argmax(1)")
    return y


def labels_fit(y: Tensor, logits: Tensor) -> None:
    """Raise an error that shows both shapes unless labels ``(B, *D)`` fit logits ``(B, C, *D)``."""
    expected = logits.shape[:1] + logits.shape[2:]
    if y.shape == expected:
        return
    way = ""
    if logits.dim() > 2 and y.shape == logits.shape[:-1]:
        way = "; if the last dimension has the classes, use Step(..., classes=-1), or logits.movedim(-1, 1)"
    elif logits.dim() > 2 and y.shape == logits.shape[:1] + logits.shape[3:] + logits.shape[1:2]:
        way = "; if the second dimension has the classes, use Step(..., classes=1)"
    elif y.shape == logits.shape:
        way = "; one-hot labels need y.argmax(1), or y.float() as probabilities"
    raise ValueError(
        f"labels of shape {tuple(y.shape)} do not fit outputs (B, C{', *D' * (logits.dim() > 2)}) of shape "
        f"{tuple(logits.shape)}, which need labels of shape {tuple(expected)}{way}"
    )


def labels(y: Tensor, classes: int) -> None:
    """Raise an error unless ``y`` is a vector of class indices 0..C-1 (values: if value checks are due)."""
    if label_vector(y).numel() and due("labels", y):
        least, most = (int(v) for v in torch.aminmax(y.long()))
        if least < 0 or most >= classes:
            raise ValueError(
                f"labels must be in 0..{classes - 1} for {classes} outputs, got values from {least} to {most}"
                + ("; a value that means 'no label' needs Step(..., ignore_index=-100)" if least < 0 else "")
            )


def unit_interval(name: str, tensor: Tensor, way: str = "") -> None:
    """Raise an error that shows a wrong value unless all are in [0, 1], if value checks are due."""
    if tensor.numel() and due(name, tensor):
        least, most = (v.item() for v in torch.aminmax(tensor))
        if not (least >= 0.0 and most <= 1.0):
            raise ValueError(f"{name} must hold probabilities in [0, 1], got values from {least:g} to {most:g}{way}")


def distributions(name: str, tensor: Tensor, zeros: bool = False) -> None:
    """Raise an error unless ``(B, C, *D)`` has probabilities that sum to 1 over C, if value checks are due.

    With ``zeros``, places of zeros are left out.
    """
    unit_interval(name, tensor, "; for values use SquaredError(), AT(loss=SquaredError()) and SAdD(divergence=mse)")
    if due(f"sums of {name}", tensor):
        sums = tensor.detach().double().sum(1).flatten()
        sums = torch.where(sums == 0.0, 1.0, sums) if zeros else sums
        worst = int((sums - 1.0).abs().argmax())
        if abs(sums[worst].item() - 1.0) > 1e-2:
            raise ValueError(
                f"{name} must sum to 1 over the {tensor.shape[1]} classes, got a sum of {sums[worst].item():g}; divide "
                "by the sum, or use BinaryCrossEntropy() if several classes can be right at once, with "
                "AT(loss=BinaryCrossEntropy()) and SAdD(divergence=bernoulli_kl)"
            )


def module(network: nn.Module, name: str) -> nn.Module:
    """Return the module of this dotted name, or raise an error with the nearest names."""
    modules: dict[str, nn.Module] = dict(network.named_modules(remove_duplicate=False))
    if name and name in modules:
        return modules[name]
    nearest = nearest_names(name, [known for known in modules if known])
    raise ValueError(f"there is no module {name!r}{nearest}; advdrop.places(network, x) lists what there is")
