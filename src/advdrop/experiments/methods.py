"""From a configuration to what it names: the objective and the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from advdrop.divergences import Divergence, kl, qe
from advdrop.experiments.config import Objective as Options
from advdrop.experiments.config import RunConfig, parse_method
from advdrop.masks import AdversarialDropout, Iterated, Probe, RandomFlips, Search
from advdrop.models.build import build
from advdrop.models.split import Split
from advdrop.objectives import (
    AT,
    VAT,
    CrossEntropy,
    EntropyMinimisation,
    MutualExclusivity,
    Objective,
    PiModel,
    TemporalEnsembling,
    TransformationStability,
)
from advdrop.presets import Preset
from advdrop.schedules import Ramp

SEARCHES: dict[str, Callable[[Options], Search]] = {
    "first-order": lambda o: _preset(o).search(),
    "iterated": lambda o: Iterated(o.search_steps),
    "probe": lambda _: Probe(),
    "random": lambda _: RandomFlips(),
}


def _preset(o: Options) -> Preset:
    return Preset("configured", o.order, o.ties, o.scale, o.search_reversed, o.entropy, frozenset(o.moving))


def _vadd(o: Options, divergence: Divergence) -> Objective:
    search = SEARCHES[o.search](o)
    return _preset(o).vadd(divergence, delta=o.delta, search=search, noise=o.vadd_noise, budget=o.budget)


def _sadd(o: Options) -> Objective:
    return _preset(o).sadd(delta=o.delta, search=SEARCHES[o.search](o), noise=o.sadd_noise, budget=o.budget)


def _sajjadi(o: Options) -> Objective:
    return TransformationStability(o.sajjadi_passes) + o.mutual_exclusivity * MutualExclusivity()


OBJECTIVES: dict[str, Callable[[Options, int, int], Objective]] = {
    "at": lambda o, *_: AT(o.at_epsilon, o.at_norm, o.at_noise),
    "vat": lambda o, *_: VAT(o.vat_epsilon, o.vat_xi, o.vat_iterations, noise=o.vat_noise),
    "pi": lambda *_: PiModel(),
    "temporal": lambda o, examples, classes: TemporalEnsembling(examples, classes, o.temporal_momentum),
    "sajjadi": lambda o, *_: _sajjadi(o),
    "sadd": lambda o, *_: _sadd(o),
    "vadd-kl": lambda o, *_: _vadd(o, kl),
    "vadd-qe": lambda o, *_: _vadd(o, qe),
    "entropy": lambda *_: EntropyMinimisation(),
}


def objective_of(config: RunConfig, examples: int, classes: int) -> Objective:
    """CrossEntropy() + Σ λ(t)·term (formulas 6 and 7), as configured.

    Args:
        config: the run.
        examples: the number of training examples; temporal ensembling remembers each.
        classes: C.
    """
    options = config.objective
    objective: Objective = CrossEntropy()
    for term in parse_method(config.method):
        if term == "dropout":
            continue
        weight = options.weights[term]
        ramped = term in options.ramped
        objective += (Ramp(weight, options.ramp) if ramped else weight) * OBJECTIVES[term](options, examples, classes)
    return _preset(options).complete(objective)


def network_of(config: RunConfig, shape: Sequence[int], classes: int) -> Split:
    """The configured network, with its AdversarialDropout layer."""
    options = config.network.model_dump(exclude={"name", "p", "granularity"})
    layer = AdversarialDropout(
        config.network.p, config.objective.delta, config.objective.scale, config.network.granularity
    )
    return build(config.network.name, layer, shape, classes, **options)
