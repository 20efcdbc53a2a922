"""Record the torch calls of a pass. See :mod:`advdrop.step.tape`."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from enum import Enum
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.overrides import TorchFunctionMode

from advdrop.randomness import noise_state
from advdrop.step.functions import (
    PROFILING,
    SURROUNDINGS,
    Function,
    Traits,
    UnknownError,
    compared_arguments,
    current_modes,
    traits_of,
    unseen_tensors,
)
from advdrop.step.tape import Call, Seen, Sequence, Tape, storage_address

_PLAIN = (
    *(numbers.Number, str, bytes, type(None), type(...), type, range, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
"""Types of immutable values, which are compared by value. numpy's scalars are numbers, too."""

_TYPES = frozenset({Tensor, nn.Parameter})
"""The types of tensors that are recorded. Other types may have a state of their own."""

_HIDDEN_NOISE = "random numbers were drawn in a way that torch does not report"


class Recorder(TorchFunctionMode):
    """Record the torch calls inside the ``with`` block until :meth:`stop`.

    Args:
        device: the device whose noise is recorded.
        statistics: the running means and variances that the step controls.
        counters: tensors in which norms count their batches; calls on them run in every pass.
    """

    def __init__(
        self, device: torch.device, statistics: Iterable[Tensor] = (), counters: Iterable[Tensor] = ()
    ) -> None:
        super().__init__()
        self._device = device
        self._statistics, self._counters = set(map(id, statistics)), set(map(id, counters))
        self._calls: list[Call] = []
        self._free: set[Function] = set()
        self._known: dict[int, Seen] = {}
        self._seen: list[Seen] = []
        self._sharing: dict[int, list[Seen]] = {}  # by the address of their memory
        self._sorted = 0  # how many of self._seen are in self._sharing
        self._noise, self._noise_position = noise_state(device), 0
        self._modes = current_modes()
        self._total, self._reason = 0, ""
        self._recording, self._below = True, True

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the call and record it."""
        kwargs = kwargs or {}
        traits = traits_of(func)
        if traits.name in PROFILING or (args and id(args[0]) in self._counters):
            return func(*args, **kwargs)
        if traits.unseen:
            self._spoil(unseen_tensors(func, args, kwargs), f"{traits.name} is used on a tensor")
            if traits.name == "backward":
                self._cut(0, "backward frees the graph")
        used: list[tuple[Seen, Tensor]] = []
        stored = self._store(func, traits, types, args, kwargs, used) if self._recording else None
        if stored is None:
            self._total += self._below
            return func(*args, **kwargs)
        index = len(self._calls)
        try:
            output = func(*args, **kwargs)
        except BaseException:
            self._cut(index, f"{traits.name} failed")
            raise
        for seen, tensor in used:
            seen.used = index
            if tensor._version != seen.version:
                self._note_change(seen, tensor, index, traits.name)
        if self._recording:
            self._append(func, traits, stored, output, used)
        else:  # the recording has ended, perhaps because the layer ran inside the call
            self._total += self._below
        return output

    def stop(self) -> None:
        """End the recording: the first AdversarialDropout layer runs."""
        self._below = False
        if self._recording:
            with torch._C.DisableTorchFunction():
                self._cut(len(self._calls), "")

    def tape(self) -> Tape:
        """Return what was recorded."""
        seen = [seen for seen in self._seen if seen.index < len(self._calls)]
        return Tape(self._calls, seen, self._free, self._total, self._reason)

    def _store(
        self,
        func: Function,
        traits: Traits,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        used: list[tuple[Seen, Tensor]],
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]] | None:
        """Return the arguments and modes to compare later calls with; None if the recording has to end here."""
        modes = current_modes()
        try:
            if types and not _TYPES.issuperset(types):
                raise UnknownError(f"takes a {types[0].__name__}")
            if modes != self._modes and modes[:SURROUNDINGS] != self._modes[:SURROUNDINGS]:
                raise UnknownError("runs under inference mode, torch.func or checkpointing")
            if traits.norm:
                args, kwargs = compared_arguments(func, args, kwargs, self._statistics)
            given = tuple([self._stored(value, used) for value in args])
            named = {key: self._stored(value, used) for key, value in kwargs.items()} if kwargs else kwargs
        except UnknownError as unknown:
            self._cut(len(self._calls), f"{traits.name} {unknown}")
            return None
        for seen, tensor in used:
            if tensor._version != seen.version or tensor.requires_grad != seen.requires_grad:
                self._spoil([tensor], "a tensor was changed in a way that torch does not report")
        if traits.random and not self._noise.equals(noise_state(self._device)):
            self._cut(self._noise_position, _HIDDEN_NOISE)
        return (given, named, modes) if self._recording else None

    def _append(
        self,
        func: Function,
        traits: Traits,
        stored: tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]],
        output: Any,
        used: list[tuple[Seen, Tensor]],
    ) -> None:
        """Record a call that has been computed."""
        index, count = len(self._calls), len(self._seen)
        try:
            kept = self._kept(output, index)
        except UnknownError as unknown:
            self._spoil([tensor for _, tensor in used], f"{traits.name} {unknown}")
            self._cut(index, f"{traits.name} {unknown}")
            return
        if not used and len(self._seen) == count:
            self._free.add(func)
            return
        self._total += 1
        noise = None
        if traits.random:
            self._noise, self._noise_position = noise, _ = noise_state(self._device), index + 1
        self._calls.append((func, *stored, kept, noise))

    def _stored(self, value: Any, used: list[tuple[Seen, Tensor]]) -> Any:
        """Return an argument in the form that later arguments are compared with, and add its tensors to ``used``."""
        kind: Any = type(value)
        if _is_plain(kind):
            return value
        if isinstance(value, Tensor):
            seen = self._known.get(id(value))
            if seen is None or not seen.is_tensor(value):  # the id may have belonged to another tensor
                seen = self._enter(value, len(self._calls), made=False)
            used.append((seen, value))
            return seen
        if kind is tuple:
            return tuple([self._stored(item, used) for item in value])
        if kind is dict:
            return {key: self._stored(item, used) for key, item in value.items()}
        if kind is slice:
            value = value.start, value.stop, value.step
        elif not isinstance(value, list | tuple):
            raise UnknownError(f"takes a {kind.__name__}")
        return Sequence(kind, tuple([self._stored(item, used) for item in value]))

    def _kept(self, value: Any, index: int) -> Any:
        """Return a result as the tape stores it."""
        if isinstance(value, Tensor):
            seen = self._known.get(id(value))
            return seen if seen is not None and seen.is_tensor(value) else self._enter(value, index, made=True)
        kind: Any = type(value)
        if _is_plain(kind):
            return value
        if not isinstance(value, list | tuple):
            raise UnknownError(f"returns a {kind.__name__}")
        items = tuple([self._kept(item, index) for item in value])
        return items if kind is tuple else Sequence(kind, items)

    def _enter(self, tensor: Tensor, index: int, made: bool) -> Seen:
        try:
            seen = Seen(tensor, index, made)
        except RuntimeError as error:
            raise UnknownError("takes or returns a tensor that is sparse or from inference mode") from error
        if made and seen.requires_grad and tensor.is_leaf:
            raise UnknownError("makes a leaf that needs a gradient, and each pass must have its own")
        self._known[id(tensor)] = seen
        self._seen.append(seen)
        return seen

    def _aliases(self, tensor: Tensor) -> list[Seen]:
        """Return the recorded tensors that share memory with a tensor."""
        for seen in self._seen[self._sorted :]:
            if (found := seen.tensor()) is not None:
                self._sharing.setdefault(storage_address(found), []).append(seen)
        self._sorted = len(self._seen)
        return self._sharing.get(storage_address(tensor), [])

    def _note_change(self, seen: Seen, tensor: Tensor, index: int, name: str) -> None:
        """Note that a call has changed a tensor in place."""
        aliases = [*self._aliases(tensor), seen]
        # Without gradients, nothing but a custom autograd function should change a tensor that needs one.
        hidden = seen.requires_grad and not is_grad_enabled()
        if hidden or tensor.layout is not torch.strided or not all(alias.made for alias in aliases):
            which = "needs a gradient" if hidden else "existed before the pass"
            self._cut(min(alias.index for alias in aliases), f"{name} changes a tensor that {which}")
            return
        for alias in aliases:
            alias.change(index)

    def _spoil(self, tensors: Iterable[Tensor], reason: str) -> None:
        """End the recording before the first call that used one of these tensors, if there is such a call."""
        if aliases := [alias for tensor in tensors for alias in self._aliases(tensor)]:
            self._cut(min(alias.index for alias in aliases), reason)

    def _cut(self, length: int, reason: str) -> None:
        """End the recording and keep its first ``length`` calls."""
        if self._recording:
            self._recording, self._reason = False, reason
            if not self._noise.equals(noise_state(self._device)):
                length, reason = min(length, self._noise_position), _HIDDEN_NOISE
            for seen in self._seen:
                seen.keep()
                if seen.index < length and seen.changed():
                    length, reason = seen.index, "a tensor was changed in a way that torch does not report"
        if length < len(self._calls):
            self._reason = reason
            del self._calls[length:]


@lru_cache(4096)
def _is_plain(kind: Any) -> bool:
    """Return True if values of a type are compared by value."""
    return issubclass(kind, _PLAIN)
