"""Which modules draw no noise, and which treat each row by itself, so that passes can share work or run as one batch.

This is known only of a list of torch's modules, by their exact types and without hooks. Any other module might mix the
rows of a batch, as batch norm does, or draw the same noise for all rows. A module of your own can tell with the class
attribute ``rowwise``:

- ``"still"``: it treats each row by itself and draws no noise.
- ``"noisy"``: it treats each row by itself and, in training, draws noise for each row. If it has an attribute ``p`` or
  ``sigma``, that is the strength of the noise, and 0 is no noise.
- ``"container"``: it only runs its children.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from torch import nn

from advdrop.masks import AdversarialDropout

Kind = Literal["still", "noisy", "container"]

_KINDS: dict[type[nn.Module], Kind] = {
    nn.Sequential: "container",
    **dict.fromkeys((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten), "still"),
    **dict.fromkeys((nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh), "still"),
    **dict.fromkeys((nn.Sigmoid, nn.Softplus, nn.LayerNorm, nn.GroupNorm, AdversarialDropout), "still"),
    **dict.fromkeys((nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d), "still"),
    **dict.fromkeys((nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d), "still"),
    **dict.fromkeys((nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d), "noisy"),
}
"""What is known of torch's modules. A step supplies the mask of AdversarialDropout, so the layer draws nothing."""


def all_modules(module: nn.Module) -> list[nn.Module]:
    """Return the module and all modules inside it, each once.

    ``nn.Module.modules()`` takes several times as long, and every step needs the list.

    >>> shared = nn.Linear(2, 2)
    >>> len(all_modules(nn.Sequential(shared, nn.ReLU(), shared)))
    3
    """
    found, left = {module: None}, [module]
    while left:
        for child in left.pop()._modules.values():
            if child is not None and child not in found:
                found[child] = None
                left.append(child)
    return list(found)


def kind(module: nn.Module) -> Kind | None:
    """Return what is known of a module itself, without its children; None if nothing is known.

    >>> kind(nn.Linear(4, 8)), kind(nn.BatchNorm1d(4))
    ('still', None)
    """
    if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks:
        return None
    if getattr(module, "start_dim", 1) != 1:  # nn.Flatten that includes the rows
        return None
    if "forward" in module.__dict__:  # replaced in this one module
        return None
    declared: Kind | None = type(module).__dict__.get("rowwise")  # not inherited: a subclass may behave differently
    return declared or _KINDS.get(type(module))


def rowwise(modules: Iterable[nn.Module]) -> bool:
    """Return True if each row of the output is known to depend on that row of the input alone.

    >>> rowwise([nn.Linear(4, 8), nn.ReLU()]), rowwise([nn.BatchNorm1d(4)])
    (True, False)
    """
    return all(kind(part) is not None for module in modules for part in all_modules(module))


def still(modules: Iterable[nn.Module]) -> bool:
    """Return True if two passes of the same rows are known to give the same result.

    >>> still([nn.Linear(4, 8)]), still([nn.Dropout(0.5)]), still([nn.Dropout(0.5).eval()])
    (True, False, True)
    """
    return all(kind(part) is not None and not _draws(part) for module in modules for part in all_modules(module))


def before_noise(modules: list[nn.Module]) -> int:
    """Return how many of the first modules draw no noise, so that several passes of the same rows can share them.

    >>> before_noise([nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8)])
    2
    """
    length = next((i for i, module in enumerate(modules) if not still([module])), len(modules))
    if length == len(modules):
        return length
    # The next module must leave its input as it is, because another pass needs it too.
    leaves_input = kind(modules[length]) == "noisy" and not getattr(modules[length], "inplace", False)
    return length if leaves_input else 0


def _draws(module: nn.Module) -> bool:
    if kind(module) != "noisy" or not module.training:
        return False
    strengths = [getattr(module, name) for name in ("p", "sigma") if hasattr(module, name)]
    # A tensor may be changed in place at any time.
    return not strengths or any(not isinstance(strength, int | float) or strength > 0.0 for strength in strengths)
