"""Replay the part of a forward pass that no mask can change.

A :class:`Recorder` records the torch calls of a pass until its first AdversarialDropout layer runs. A later pass runs
the user's own ``forward`` again under a :class:`Player`: as long as each call has the same function and the same
arguments as the recorded one, it returns the recorded result and computes nothing. From the first call that differs,
everything is computed. Nothing is traced, and nothing is assumed about the code. In the worst case a replay is a full
pass.

When are arguments the same? Tensors must be the same object. Plain Python values must have the same type and value. The
modes (gradients, autocast) must be the same, too. All other arguments count as different.

Some calls must run in every pass, so they cannot be replayed: calls that change a tensor which existed before the pass
(a buffer, a parameter, the input), and calls that change a tensor, or give access to it, while its version counter
stays the same, such as ``register_hook`` or ``numpy``. If there is such a call, the tape ends before the first call
that used the tensor. This rule does not apply to the running statistics that a step controls: they do not change the
output of a training pass.

A result that was not kept by anybody, or that was changed in place later, cannot be returned as it was. The replay then
returns a stand-in: a tensor without contents on the meta device, so that computing with it fails. When the replay ends,
the stand-ins that ``forward`` still holds become aliases of the recorded tensors. If that is not possible, because a
tensor no longer exists or was changed in place after this point, the pass starts again from the beginning
(:class:`Restart`).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from advdrop.randomness import NoiseState
from advdrop.step.functions import Function


class Restart(BaseException):  # not an error: user code that catches Exception must not catch it
    """Raised inside a replayed ``forward`` that cannot go on: the pass must be computed from the beginning."""


class Seen:
    """A tensor that a recorded call took or returned.

    Args:
        tensor: the tensor.
        index: the call that returned it, or the first one that took it.
        made: whether a recorded call made it; otherwise it existed before.
    """

    __slots__ = ("index", "layout", "made", "requires_grad", "stand_in", "strong", "until", "used", "version", "weak")

    def __init__(self, tensor: Tensor, index: int, made: bool) -> None:
        self.index = self.used = index  # the first and the last call that used it
        self.made = made
        self.version = tensor._version
        self.requires_grad = tensor.requires_grad
        self.until = -1  # a replay returns a stand-in from all calls before this one
        self.stand_in: weakref.ref[Tensor] | None = None
        self.weak: weakref.ref[Tensor] | None = None
        self.strong: Tensor | None = tensor
        if made and not self.requires_grad:
            # Autograd does not keep this tensor. The tape does not, either, so a frozen network needs little memory.
            self.strong, self.weak = None, weakref.ref(tensor)
            self.layout = tensor.shape, tensor.stride(), tensor.dtype

    def is_tensor(self, tensor: Tensor) -> bool:
        """Return True if this is the tensor, or its stand-in."""
        if self.strong is tensor:
            return True
        weak = self.stand_in or self.weak
        return weak is not None and weak() is tensor

    def tensor(self) -> Tensor | None:
        """Return the tensor, or None if it no longer exists."""
        return self.strong if self.weak is None else _alive(self.weak)

    def keep(self) -> None:
        """Keep the tensor from now on, if it still exists."""
        self.strong, self.weak = self.tensor(), None
        if self.strong is None:
            self.until = self.used

    def change(self, index: int) -> None:
        """Note that this call has changed the tensor in place."""
        if (tensor := self.tensor()) is not None:
            self.version, self.requires_grad, self.until = tensor._version, tensor.requires_grad, index
            self.layout = tensor.shape, tensor.stride(), tensor.dtype

    def changed(self) -> bool:
        """Return True if the tensor has changed since it was recorded."""
        tensor = self.tensor()
        if tensor is None:
            return False
        marked = self.made and bool(tensor.__dict__)  # it has attributes that a fresh tensor would not have
        return tensor._version != self.version or tensor.requires_grad != self.requires_grad or marked

    def given_back(self, index: int) -> Tensor:
        """Return the tensor, or a stand-in, as the result of this call."""
        if self.strong is not None and self.until <= index:
            return self.strong
        found = _alive(self.stand_in)
        if found is None:
            shape, stride, dtype = self.layout
            found = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            self.stand_in = weakref.ref(found)
        return found

    def replace_stand_in(self, position: int) -> bool:
        """Turn a stand-in that is still in use into an alias of the tensor; return False if that is not possible."""
        found, self.stand_in = _alive(self.stand_in), None
        if found is None:
            return True
        if self.strong is None or self.until >= position:
            return False
        try:
            with torch.enable_grad():
                torch.utils.swap_tensors(found, self.strong.view_as(self.strong))
        except RuntimeError:  # something other than forward holds it, too
            return False
        return True


class Sequence(NamedTuple):
    """A list, a slice, a named tuple or another sequence, stored by its type and its items."""

    kind: type
    items: tuple[Any, ...]


Call = tuple[Function, tuple[Any, ...], dict[str, Any], tuple[Any, ...], Any, NoiseState | None]
"""A recorded call: the function, its arguments, the modes, the result and, if it is random, the noise after it."""


class Tape:
    """The recorded calls of one pass.

    Args:
        calls: the calls, in order.
        seen: the tensors that they took and returned.
        free: functions that neither took nor returned a tensor, such as those that set the grad mode. They are not
            recorded; they run every time.
        total: the number of calls below the first layer, recorded or not.
        reason: why some of them are not recorded.
    """

    def __init__(self, calls: list[Call], seen: list[Seen], free: set[Function], total: int, reason: str) -> None:
        self.calls, self.seen, self.free, self.total, self.reason = calls, seen, free, total, reason
        self._memory: dict[int, list[Seen]] | None = None

    def length(self) -> int:
        """Return how many of the calls can be replayed now."""
        length = len(self.calls)
        if changed := [seen.strong for seen in self.seen if seen.strong is not None and seen.changed()]:
            length = min(length, *(seen.index for seen in self.sharing(changed)))
            self.reason = "a tensor that was recorded has been changed since"
        # Do not end between the call that returned a tensor and its last change in place, or its last use if it was not
        # kept.
        while starts := [seen.index for seen in self.seen if seen.index < length <= seen.until]:
            length = min(starts)
        return length

    def has_stand_ins(self) -> bool:
        """Return True if a replay returns stand-ins, so that it may have to start again."""
        return any(seen.until >= 0 for seen in self.seen)

    def sharing(self, tensors: Iterable[Tensor]) -> list[Seen]:
        """Return the recorded tensors that share memory with one of these tensors."""
        if self._memory is None:
            self._memory = {}
            for seen in self.seen:
                if seen.strong is not None:
                    self._memory.setdefault(storage_address(seen.strong), []).append(seen)
        return [seen for tensor in tensors for seen in self._memory.get(storage_address(tensor), ())]


def storage_address(tensor: Tensor) -> int:
    """Return the address of the memory of a tensor."""
    try:
        return tensor.untyped_storage().data_ptr() or id(tensor)
    except (RuntimeError, NotImplementedError):  # such as a sparse tensor
        return id(tensor)


def _alive(reference: weakref.ref[Tensor] | None) -> Tensor | None:
    """Return the tensor behind a weak reference, as ``torch.utils.weak`` does."""
    tensor = None if reference is None else reference()
    if tensor is not None:
        tensor._fix_weakref()  # type: ignore[attr-defined]
    return tensor


def same_argument(recorded: Any, now: Any) -> bool:
    """Return True if an argument is the same as the recorded one for every torch function."""
    kind = type(recorded)
    if kind is Seen:
        return bool(recorded.is_tensor(now))
    if recorded is now:
        return True
    if kind is Sequence and recorded.kind is type(now):
        kind, recorded = tuple, recorded.items
        now = (now.start, now.stop, now.step) if type(now) is slice else tuple(now)
    if kind is not type(now):
        return False
    if kind is tuple:
        return len(recorded) == len(now) and all(map(same_argument, recorded, now))
    if kind is dict:
        return recorded.keys() == now.keys() and all(same_argument(value, now[key]) for key, value in recorded.items())
    return bool(recorded == now) and repr(recorded) == repr(now)  # 0.0 == -0.0 is True, but torch tells them apart


def given_back(output: Any, index: int) -> Any:
    """Return a result as the call returned it."""
    kind = type(output)
    if kind is Seen:
        return output.given_back(index)
    if kind is tuple:
        return tuple([given_back(item, index) for item in output])
    if kind is not Sequence:
        return output
    items = [given_back(item, index) for item in output.items]
    return output.kind._make(items) if hasattr(output.kind, "_make") else output.kind(items)
