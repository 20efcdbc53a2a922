"""Change the output of one module in one pass, for AT and VAT at a named module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch._C._autograd import _top_saved_tensors_default_hooks as _saved_tensors_hooks

from advdrop import checks
from advdrop.outputs import first_tensor, replaced

Change = Callable[[Tensor], Tensor]
"""A function from h, the output of a module, to h + r."""


class Perturbation:
    """A ``with`` block in which the output h of a module is replaced by h + r. The module must run exactly once.

    The hook of the module runs before all others, so a layer that :func:`advdrop.insert` put there gets h + r.

    Args:
        model: the network.
        name: the dotted name of the module.
        change: returns h + r.
    """

    def __init__(self, model: nn.Module, name: str, change: Change) -> None:
        self._module, self._name, self._change = checks.module(model, name), name, change
        self._runs = 0

    def __enter__(self) -> Self:
        self._surroundings = _saved_tensors_hooks(True), torch.is_grad_enabled()
        self._handle = self._module.register_forward_hook(self, prepend=True)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._handle.remove()
        if kind is None and self._runs != 1:
            raise ValueError(
                f"AT and VAT need a module that runs once in a pass, and {self._name!r} ran {self._runs} times; name "
                "another one, advdrop.places(network, x) lists them"
                + ("; a compiled network does not run hooks, so compile it later" if self._runs == 0 else "")
            )

    def __call__(self, module: nn.Module, given: Any, output: Any) -> Any:
        """Return the output with h + r in the place of h."""
        del module, given
        self._runs += 1
        part, h = first_tensor(output)
        if h is None or not h.is_floating_point():
            shown = type(output).__name__ if h is None else h.dtype
            raise TypeError(f"AT and VAT need a module with a floating-point output, and {self._name!r} gives {shown}")
        if self._surroundings != (_saved_tensors_hooks(True), torch.is_grad_enabled()):
            raise RuntimeError(
                f"{self._name!r} runs inside activation checkpointing or torch.no_grad(), which cannot repeat a "
                "perturbation; leave the module out of that part, or name another one"
            )
        return self._change(h) if part is None else replaced(output, part, self._change(h))
