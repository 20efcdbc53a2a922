"""Replay the recorded calls of a pass. See :mod:`advdrop.step.tape`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from advdrop.step.functions import (
    PROFILING,
    Function,
    UnknownError,
    any_tensor,
    compared_arguments,
    current_modes,
    tensors_in,
    traits_of,
    unseen_tensors,
)
from advdrop.step.tape import Call, Restart, Tape, given_back, same_argument


class Player(TorchFunctionMode):
    """Return recorded results inside the ``with`` block for as long as the calls are the recorded ones.

    Args:
        tape: the recording.
        length: how many of its calls can be replayed.
        statistics: as for the :class:`Recorder`.
        counters: as for the :class:`Recorder`.
    """

    def __init__(
        self, tape: Tape, length: int, statistics: Iterable[Tensor] = (), counters: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        self._tape, self._length = tape, length
        self._statistics, self._counters = set(map(id, statistics)), set(map(id, counters))
        self._playing = True
        self.below, self.failed, self.stand_ins = True, False, tape.has_stand_ins()
        self.undo: list[tuple[Tensor, Tensor]] = []
        """Tensors that were changed below the layer, and what they were before."""
        self.position, self.reason = 0, tape.reason

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Return the recorded result, or compute the call."""
        del types
        kwargs = kwargs or {}
        if self.failed and any_tensor((args, kwargs)):  # other calls still run: the grad mode must be restored
            raise Restart
        traits = traits_of(func)
        if traits.name in PROFILING:
            return func(*args, **kwargs)
        if self._playing and not (args and id(args[0]) in self._counters):
            if self.position < self._length:
                call = self._tape.calls[self.position]
                if call[0] == func and self._same(call, args, kwargs):
                    *_, output, noise = call
                    self.position += 1
                    if noise is not None:
                        noise.restore()
                    return given_back(output, self.position - 1)
            if func not in self._tape.free or any_tensor((args, kwargs)):
                self._stop(f"{traits.name} was called in another way")
        if self.below and self.stand_ins and any(tensor.is_meta for tensor in tensors_in((args, kwargs))):
            self.fail("something was computed from a result that had not been kept")
            raise Restart
        if traits.unseen:
            self._protect(traits.name, unseen_tensors(func, args, kwargs), unseen=True)
        elif traits.in_place or "out" in kwargs or kwargs.get("inplace"):
            self._protect(traits.name, tensors_in(kwargs.get("out", args[:1])), unseen=False)
        return func(*args, **kwargs)

    def stop(self) -> None:
        """End the replay: the first AdversarialDropout layer runs."""
        if self.failed:
            raise Restart
        self.below = False
        self.undo.clear()
        if self._playing:
            with torch._C.DisableTorchFunction():
                self._stop("" if self.position == self._length else "the layer ran earlier")

    def _stop(self, reason: str) -> None:
        self._playing = False
        if self.position < self._length or not self.reason:
            self.reason = reason
        replaced = [seen.replace_stand_in(self.position) for seen in self._tape.seen]
        if not all(replaced):
            self.fail("forward still has a tensor from before it was changed in place, or one that had not been kept")
            raise Restart

    def _protect(self, name: str, tensors: Iterable[Tensor], unseen: bool) -> None:
        """Prevent a call that is computed from changing recorded results, because other passes use them, too."""
        tensors = list(tensors)
        found = [seen for seen in self._tape.sharing(tensors) if seen.index < self.position]
        if unseen and found:
            del self._tape.calls[min(seen.index for seen in found) :]
        if not any(seen.made for seen in found):
            if self.below and not unseen:
                self.undo += [(tensor, tensor.detach().clone()) for tensor in tensors]
        elif self.below:
            self.fail(f"{name} is used on a tensor that was recorded, but not in the first pass")
            raise Restart
        else:
            warnings.warn(
                f"{name} was called on a tensor that several passes of this step share, but not in the first of them; "
                "what it changes is changed for all passes. Use Step(..., reuse=False)",
                stacklevel=4,
            )

    def fail(self, reason: str) -> None:
        """Note that the pass must start again."""
        self.failed, self.position, self.reason = True, 0, reason

    def _same(self, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return True if a call has the recorded arguments and modes."""
        function, args_then, kwargs_then, modes, _, _ = call
        if modes != current_modes():
            return False
        if traits_of(function).norm:
            try:
                args, kwargs = compared_arguments(function, args, kwargs, self._statistics)
            except UnknownError:
                return False
        if len(args_then) != len(args) or kwargs_then.keys() != kwargs.keys():
            return False
        return all(map(same_argument, args_then, args)) and all(
            same_argument(kwargs_then[key], kwargs[key]) for key in kwargs
        )
