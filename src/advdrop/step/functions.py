"""What is known of torch functions from their names, and the modes that change what they compute."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, get_default_dtype, is_grad_enabled, is_inference_mode_enabled
from torch._C import _is_any_autocast_enabled
from torch._C import _len_torch_dispatch_stack as _dispatch_modes
from torch._C._autograd import _top_saved_tensors_default_hooks as _saved_tensors_hooks
from torch._C._functorch import peek_interpreter_stack as _transforms

Function = Callable[..., Any]

SURROUNDINGS = 4
"""The first modes of :func:`current_modes`, this many, must not change while calls are recorded."""

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
"""Functions that change their first argument in place, in addition to those with a name like ``add_``."""

PROFILING = frozenset({"_record_function_enter", "_record_function_enter_new", "_record_function_exit"})
"""Functions that ``torch.profiler.record_function`` calls. They compute nothing, so they run in every pass."""


class UnknownError(Exception):
    """Raised for an argument that cannot be compared, or a result that cannot be returned again."""


class Traits(NamedTuple):
    """What is known of a torch function from its name."""

    name: str
    random: bool
    norm: bool
    unseen: bool
    in_place: bool


@lru_cache(4096)
def traits_of(function: Function) -> Traits:
    """Return what is known of a torch function."""
    name = getattr(function, "__name__", str(function)).partition(".")[0]  # set_.source_Tensor is an overload of set_
    if name == "__get__":  # of a property of a tensor
        name = getattr(function.__self__, "__name__", name)  # type: ignore[attr-defined]
    communicates = str(getattr(function, "__module__", "")).startswith("torch.distributed")
    norm = "batch_norm" in name or "instance_norm" in name
    unseen = norm or communicates or name in _UNSEEN
    in_place = name.rstrip("_") + "_" == name or name in _IN_PLACE
    return Traits(name, any(part in name for part in _RANDOM), norm, unseen, in_place)


def current_modes() -> tuple[Any, ...]:
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


def unseen_tensors(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterable[Tensor]:
    """Return the tensors that a call changes, or gives access to, while their version counters stay the same."""
    if function not in _NORMS:
        return tensors_in((args, kwargs))
    if not _uses_batch(args, kwargs):
        return ()
    return tensors_in((args[1:3], kwargs.get("running_mean"), kwargs.get("running_var")))


def _uses_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Return True if a norm takes its statistics from the batch."""
    return bool(args[5] if len(args) > 5 else kwargs.get("training", kwargs.get("use_input_stats")))


def compared_arguments(
    function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], statistics: set[int]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a norm that change its result. In training, the running statistics do not."""
    if any(id(tensor) not in statistics for tensor in unseen_tensors(function, args, kwargs)):
        raise UnknownError("may change running statistics that are not those of a norm layer")
    if not _uses_batch(args, kwargs):
        return args, kwargs
    left = {key: value for key, value in kwargs.items() if key not in ("running_mean", "running_var", "momentum")}
    return (*args[:1], *args[3:6], *args[7:]), left


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in some arguments."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(item)


def any_tensor(value: Any) -> bool:
    """Return True if there is a tensor in some arguments."""
    return next(tensors_in(value), None) is not None
