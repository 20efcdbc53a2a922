"""Build what a configuration names: the objective and the network."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from advdrop.lab.config.config import RunConfig, parse_method
from advdrop.lab.config.networks import Network
from advdrop.lab.config.terms import Setup
from advdrop.lab.models.networks import NETWORKS
from advdrop.masks import AdversarialDropout
from advdrop.objectives import CrossEntropy, EntropyMinimization, Objective
from advdrop.schedules import Factor, Ramp


def objective_of(config: RunConfig, setup: Setup, trust: Factor | None = None) -> Objective:
    """Return CrossEntropy() + Σ λ(t)·term (formulas 6 and 7), as configured.

    A term with a loss of its own, such as R-Drop, takes the place of the cross-entropy.

    Args:
        config: the run.
        setup: the network and its training data.
        trust: a factor of every term that uses unlabeled images.
    """
    options, named = config.objective, config.objective.terms.chosen()
    terms = [named[name] for name in parse_method(config.method) if name in named]
    parts: list[Objective] = [] if any(term.own_loss for term in terms) else [CrossEntropy()]
    for term in terms:
        weight = Ramp(term.weight, options.ramp) if term.ramped else term.weight
        part = weight * term.build(setup)
        parts.append(trust * part if trust is not None and term.semi_supervised else part)
    if options.entropy:
        entropy = options.entropy * EntropyMinimization()
        parts.append(entropy if trust is None else trust * entropy)
    objective: Objective = sum(parts[1:], parts[0])
    return objective


def network_of(config: RunConfig, shape: Sequence[int], classes: int) -> nn.Module:
    """Return the configured network with its AdversarialDropout layer."""
    options = config.network.model_dump(exclude={"name"})
    layer = AdversarialDropout(**{name: options.pop(name) for name in Network.model_fields})
    return NETWORKS[config.network.name](layer, tuple(shape), classes, **options)
