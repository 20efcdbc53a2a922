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
tensor does not exist any more or was changed in place after this point, the pass starts again from the beginning
(:class:`Restart`).
"""

from __future__ import annotations

import numbers
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, get_default_dtype, is_grad_enabled, is_inference_mode_enabled, nn
from torch._C import _is_any_autocast_enabled
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C._autograd import _top_saved_tensors_default_hooks as _saved_tensors_hooks
from torch._C._functorch import peek_interpreter_stack as _transforms
from torch.overrides import TorchFunctionMode

from advdrop.randomness import NoiseState, noise_state

Function = Callable[..., Any]

_PLAIN = (
    *(numbers.Number, str, bytes, type(None), type(...), type, range, Enum),
    *(torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size),
)
"""Types of immutable values, which are compared by value. numpy's scalars are numbers, too."""

_TYPES = frozenset({Tensor, nn.Parameter})
"""The types of tensors that are recorded. Other types may have a state of their own."""

_SURROUNDINGS = 4
"""The first modes of :func:`_modes`, this many, must not change while calls are recorded."""

_NORMS = frozenset({F.batch_norm, F.instance_norm})
"""Functions ``(input, running_mean, running_var, weight, bias, use_batch_statistics, momentum, ...)``."""

_RANDOM = (
    *("alpha", "attention", "bernoulli", "binomial", "cauchy", "dirichlet", "dropout", "exponential", "fractional"),
    *("gamma", "geometric", "gru", "gumbel", "lstm", "multinomial", "normal", "poisson", "rand", "rnn", "rrelu"),
    *("uniform",),
)
"""Parts of the names of functions that may draw from a global generator."""

_UNSEEN = frozenset(
    (
        *("apply_", "as_strided_", "backward", "data", "data_ptr", "detach_", "grad", "grad_fn", "map_", "map2_"),
        *("numpy", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "resize_", "resize_as_"),
        *("retain_grad", "set_", "share_memory_", "squeeze_", "storage", "swapaxes_", "swapdims_", "t_", "transpose_"),
        *("unsqueeze_", "untyped_storage", "_backward_hooks", "__array__", "__cuda_array_interface__", "__dlpack__"),
        *("__set__",),
    )
)
"""Functions and properties that change a tensor or its graph, or give access to its memory, while its version
counter stays the same."""


_IN_PLACE = frozenset(
    (
        *("__setitem__", "__iadd__", "__isub__", "__imul__", "__itruediv__", "__ifloordiv__", "__imod__", "__ipow__"),
        *("__iand__", "__ior__", "__ixor__", "__ilshift__", "__irshift__"),
    )
)
"""Functions that change their first argument in place, besides those with a name like ``add_``."""


_PROFILING = frozenset({"_record_function_enter", "_record_function_enter_new", "_record_function_exit"})
"""Functions that ``torch.profiler.record_function`` calls. They compute nothing, so they run in every pass."""


_HIDDEN_NOISE = "random numbers were drawn in a way that torch does not report"


class Restart(BaseException):  # not an error: user code that catches Exception must not catch it
    """Raised inside a replayed ``forward`` that cannot go on: the pass must be computed from the beginning."""


class _UnknownError(Exception):
    """Raised for an argument that cannot be compared, or a result that cannot be returned again."""


class _Traits(NamedTuple):
    """What is known of a torch function from its name."""

    name: str
    random: bool
    norm: bool
    unseen: bool
    in_place: bool


@lru_cache(4096)
def _traits(function: Function) -> _Traits:
    name = getattr(function, "__name__", str(function)).partition(".")[0]  # set_.source_Tensor is an overload of set_
    if name == "__get__":  # of a property of a tensor
        name = getattr(function.__self__, "__name__", name)  # type: ignore[attr-defined]
    communicates = str(getattr(function, "__module__", "")).startswith("torch.distributed")
    norm = "batch_norm" in name or "instance_norm" in name
    unseen = norm or communicates or name in _UNSEEN
    in_place = name.rstrip("_") + "_" == name or name in _IN_PLACE
    return _Traits(name, any(part in name for part in _RANDOM), norm, unseen, in_place)


class _Seen:
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
        """Return the tensor, or None if it does not exist any more."""
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


class _Sequence(NamedTuple):
    """A list, a slice, a named tuple or another sequence, stored by its type and its items."""

    kind: type
    items: tuple[Any, ...]


_Call = tuple[Function, tuple[Any, ...], dict[str, Any], tuple[Any, ...], Any, NoiseState | None]
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

    def __init__(self, calls: list[_Call], seen: list[_Seen], free: set[Function], total: int, reason: str) -> None:
        self.calls, self.seen, self.free, self.total, self.reason = calls, seen, free, total, reason
        self._memory: dict[int, list[_Seen]] | None = None

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

    def sharing(self, tensors: Iterable[Tensor]) -> list[_Seen]:
        """Return the recorded tensors that share memory with one of these tensors."""
        if self._memory is None:
            self._memory = {}
            for seen in self.seen:
                if seen.strong is not None:
                    self._memory.setdefault(_storage(seen.strong), []).append(seen)
        return [seen for tensor in tensors for seen in self._memory.get(_storage(tensor), ())]


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
        self._calls: list[_Call] = []
        self._free: set[Function] = set()
        self._known: dict[int, _Seen] = {}
        self._seen: list[_Seen] = []
        self._sharing: dict[int, list[_Seen]] = {}  # by the address of their memory
        self._sorted = 0  # how many of self._seen are in self._sharing
        self._noise, self._noise_position = noise_state(device), 0
        self._modes = _modes()
        self._total, self._reason = 0, ""
        self._recording, self._below = True, True

    def __torch_function__(
        self, func: Function, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute the call and record it."""
        kwargs = kwargs or {}
        traits = _traits(func)
        if traits.name in _PROFILING or (args and id(args[0]) in self._counters):
            return func(*args, **kwargs)
        if traits.unseen:
            self._spoil(_unseen(func, args, kwargs), f"{traits.name} is used on a tensor")
            if traits.name == "backward":
                self._cut(0, "backward frees the graph")
        used: list[tuple[_Seen, Tensor]] = []
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
        traits: _Traits,
        types: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        used: list[tuple[_Seen, Tensor]],
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]] | None:
        """Return the arguments and modes to compare later calls with; None if the recording has to end here."""
        modes = _modes()
        try:
            if types and not _TYPES.issuperset(types):
                raise _UnknownError(f"takes a {types[0].__name__}")
            if modes != self._modes and modes[:_SURROUNDINGS] != self._modes[:_SURROUNDINGS]:
                raise _UnknownError("runs under inference mode, torch.func or checkpointing")
            if traits.norm:
                args, kwargs = _compared(func, args, kwargs, self._statistics)
            given = tuple([self._stored(value, used) for value in args])
            named = {key: self._stored(value, used) for key, value in kwargs.items()} if kwargs else kwargs
        except _UnknownError as unknown:
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
        traits: _Traits,
        stored: tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]],
        output: Any,
        used: list[tuple[_Seen, Tensor]],
    ) -> None:
        """Record a call that has been computed."""
        index, count = len(self._calls), len(self._seen)
        try:
            kept = self._kept(output, index)
        except _UnknownError as unknown:
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

    def _stored(self, value: Any, used: list[tuple[_Seen, Tensor]]) -> Any:
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
            raise _UnknownError(f"takes a {kind.__name__}")
        return _Sequence(kind, tuple([self._stored(item, used) for item in value]))

    def _kept(self, value: Any, index: int) -> Any:
        """Return a result as the tape stores it."""
        if isinstance(value, Tensor):
            seen = self._known.get(id(value))
            return seen if seen is not None and seen.is_tensor(value) else self._enter(value, index, made=True)
        kind: Any = type(value)
        if _is_plain(kind):
            return value
        if not isinstance(value, list | tuple):
            raise _UnknownError(f"returns a {kind.__name__}")
        items = tuple([self._kept(item, index) for item in value])
        return items if kind is tuple else _Sequence(kind, items)

    def _enter(self, tensor: Tensor, index: int, made: bool) -> _Seen:
        try:
            seen = _Seen(tensor, index, made)
        except RuntimeError as error:
            raise _UnknownError("takes or returns a tensor that is sparse or from inference mode") from error
        if made and seen.requires_grad and tensor.is_leaf:
            raise _UnknownError("makes a leaf that needs a gradient, and each pass must have its own")
        self._known[id(tensor)] = seen
        self._seen.append(seen)
        return seen

    def _aliases(self, tensor: Tensor) -> list[_Seen]:
        """Return the recorded tensors that share memory with a tensor."""
        for seen in self._seen[self._sorted :]:
            if (found := seen.tensor()) is not None:
                self._sharing.setdefault(_storage(found), []).append(seen)
        self._sorted = len(self._seen)
        return self._sharing.get(_storage(tensor), [])

    def _note_change(self, seen: _Seen, tensor: Tensor, index: int, name: str) -> None:
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
        if self.failed and _any_tensor((args, kwargs)):  # other calls still run: the grad mode must be restored
            raise Restart
        traits = _traits(func)
        if traits.name in _PROFILING:
            return func(*args, **kwargs)
        if self._playing and not (args and id(args[0]) in self._counters):
            if self.position < self._length:
                call = self._tape.calls[self.position]
                if call[0] == func and self._same(call, args, kwargs):
                    *_, output, noise = call
                    self.position += 1
                    if noise is not None:
                        noise.restore()
                    return _given_back(output, self.position - 1)
            if func not in self._tape.free or _any_tensor((args, kwargs)):
                self._stop(f"{traits.name} was called in another way")
        if self.below and self.stand_ins and any(tensor.is_meta for tensor in _tensors((args, kwargs))):
            self.fail("something was computed from a result that had not been kept")
            raise Restart
        if traits.unseen:
            self._protect(traits.name, _unseen(func, args, kwargs), unseen=True)
        elif traits.in_place or "out" in kwargs or kwargs.get("inplace"):
            self._protect(traits.name, _tensors(kwargs.get("out", args[:1])), unseen=False)
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

    def _same(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return True if a call has the recorded arguments and modes."""
        function, args_then, kwargs_then, modes, _, _ = call
        if modes != _modes():
            return False
        if _traits(function).norm:
            try:
                args, kwargs = _compared(function, args, kwargs, self._statistics)
            except _UnknownError:
                return False
        if len(args_then) != len(args) or kwargs_then.keys() != kwargs.keys():
            return False
        return all(map(_same, args_then, args)) and all(_same(kwargs_then[key], kwargs[key]) for key in kwargs)


def _modes() -> tuple[Any, ...]:
    """Return the modes that change what a call computes or what autograd saves."""
    autocast = None
    if _is_any_autocast_enabled():
        autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    return (
        _saved_tensors_hooks(True),
        _transforms(),
        is_inference_mode_enabled(),
        _dispatch_modes(),
        is_grad_enabled(),
        get_default_dtype(),
        autocast,
    )


def _storage(tensor: Tensor) -> int:
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


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in some arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _any_tensor(value: Any) -> bool:
    return next(_tensors(value), None) is not None


@lru_cache(4096)
def _is_plain(kind: Any) -> bool:
    """Return True if values of a type are compared by value."""
    return issubclass(kind, _PLAIN)


def _unseen(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tensor]:
    """Return the tensors that a call changes, or gives access to, while their version counters stay the same."""
    if function not in _NORMS:
        return _tensors((args, kwargs))
    if not _uses_batch(args, kwargs):
        return ()
    return _tensors((args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")))


def _uses_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a norm takes its statistics from the batch."""
    return bool(args[5] if len(args) > 5 else kwargs.get("training", kwargs.get("use_input_stats")))


def _compared(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], statistics: set[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a norm that change its result. In training, the running statistics do not."""
    if any(id(tensor) not in statistics for tensor in _unseen(function, args, kwargs)):
        raise _UnknownError("may change running statistics that are not those of a norm layer")
    if not _uses_batch(args, kwargs):
        return args, kwargs
    left = {key: value for key, value in kwargs.items() if key not in ("running_mean", "running_var", "momentum")}
    return (*args[:1], *args[3:6], *args[7:]), left


def _same(recorded: Any, now: Any) -> bool:
    """Return True if an argument is the same as the recorded one for every torch function."""
    kind = type(recorded)
    if kind is _Seen:
        return bool(recorded.is_tensor(now))
    if recorded is now:
        return True
    if kind is _Sequence and recorded.kind is type(now):
        kind, recorded = tuple, recorded.items
        now = (now.start, now.stop, now.step) if type(now) is slice else tuple(now)
    if kind is not type(now):
        return False
    if kind is tuple:
        return len(recorded) == len(now) and all(map(_same, recorded, now))
    if kind is dict:
        return recorded.keys() == now.keys() and all(_same(value, now[key]) for key, value in recorded.items())
    return bool(recorded == now) and repr(recorded) == repr(now)  # 0.0 == -0.0 is True, but torch tells them apart


def _given_back(output: Any, index: int) -> Any:
    """Return a result as the call returned it."""
    kind = type(output)
    if kind is _Seen:
        return output.given_back(index)
    if kind is tuple:
        return tuple([_given_back(item, index) for item in output])
    if kind is not _Sequence:
        return output
    items = [_given_back(item, index) for item in output.items]
    return output.kind._make(items) if hasattr(output.kind, "_make") else output.kind(items)
