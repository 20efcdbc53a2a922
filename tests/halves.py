"""The two halves of a network of the lab, which is an ``nn.Sequential`` with one adversarial dropout layer."""

from __future__ import annotations

from torch import nn

from advdrop import AdversarialDropout


def below(model: nn.Sequential) -> nn.Sequential:
    """What comes before the layer."""
    return model[: _place(model)]


def above(model: nn.Sequential) -> nn.Sequential:
    """The layer and what comes after it."""
    return model[_place(model) :]


def _place(model: nn.Sequential) -> int:
    return next(place for place, module in enumerate(model) if isinstance(module, AdversarialDropout))
