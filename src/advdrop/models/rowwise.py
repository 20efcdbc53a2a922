"""What can be saved of several passes of one network: what draws no noise, and what treats each row by itself.

Only modules that are known are counted on, by their exact types and without hooks: a module that couples the rows of a
batch, as batch norm does, or that draws one noise for all of them, looks like any other from outside.
"""

from __future__ import annotations

from torch import nn

from advdrop.masks.layer import AdversarialDropout
from advdrop.models.highway import HighwayLayer
from advdrop.models.layers import Dropout, GaussianNoise
from advdrop.models.split import Split

CONTAINERS: frozenset[type[nn.Module]] = frozenset({nn.Sequential, Split, HighwayLayer})

STILL: frozenset[type[nn.Module]] = frozenset(
    {
        *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Identity, nn.Flatten),
        *(nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
        *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
        *(nn.LayerNorm, nn.GroupNorm, AdversarialDropout),
    }
)
"""Modules that treat each row by itself and draw nothing; an objective hands AdversarialDropout its mask."""

NOISY: frozenset[type[nn.Module]] = frozenset(
    {nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, Dropout, GaussianNoise}
)
"""Modules that treat each row by itself and, in training, draw noise for every row."""

KNOWN = CONTAINERS | STILL | NOISY


def parts(module: nn.Module) -> list[nn.Module]:
    """The module and all inside it, each once, in no order: what ``modules()`` gives, several times as fast.

    Every step asks for them, and in a small network that shows.

    >>> shared = nn.Linear(2, 2)
    >>> len(parts(nn.Sequential(shared, nn.ReLU(), shared)))
    3
    """
    found, left = {module}, [module]
    while left:
        inner = {child for child in left.pop()._modules.values() if child is not None} - found
        found |= inner
        left.extend(inner)
    return list(found)


def by_rows(*modules: nn.Module) -> bool:
    """Whether each row of the output is known to depend on that row of the input alone.

    >>> by_rows(nn.Sequential(nn.Linear(4, 8), nn.ReLU())), by_rows(nn.Sequential(nn.BatchNorm1d(4)))
    (True, False)
    """
    return all(_known(part) for module in modules for part in parts(module))


def still(module: nn.Module) -> bool:
    """Whether two passes of the same rows are known to come to the same.

    >>> still(nn.Linear(4, 8)), still(nn.Dropout(0.5)), still(nn.Dropout(0.5).eval())
    (True, False, True)
    """
    return all(_known(part) and not _draws(part) for part in parts(module))


def beginning(under: nn.Module) -> tuple[nn.Module, nn.Module]:
    """The part of a network below its first noise, which several passes of the same rows can share, and the rest.

    >>> first, rest = beginning(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8)))
    >>> len(first), len(rest)
    (2, 2)
    """
    if still(under):
        return under, nn.Identity()
    # Its hooks, or what torch compiled it to, belong to the whole.
    taken_whole = under._forward_hooks or under._forward_pre_hooks or under._compiled_call_impl is not None
    if type(under) is not nn.Sequential or taken_whole:
        return nn.Identity(), under
    children = list(under)
    length = next(i for i, child in enumerate(children) if not still(child))
    # What comes next must leave its input as it is: another pass will want it too.
    noise = children[length]
    if type(noise) not in NOISY or not _known(noise) or getattr(noise, "inplace", False):
        return nn.Identity(), under
    return nn.Sequential(*children[:length]), nn.Sequential(*children[length:])


def _known(module: nn.Module) -> bool:
    hooked = module._forward_hooks or module._forward_pre_hooks
    by_its_dimension = getattr(module, "start_dim", 1) == 1  # of nn.Flatten: from 0 on it would take in the rows
    return type(module) in KNOWN and not hooked and by_its_dimension


def _draws(module: nn.Module) -> bool:
    amount = getattr(module, "sigma", 0.0) or getattr(module, "p", 0.0)
    return type(module) in NOISY and module.training and amount > 0.0
