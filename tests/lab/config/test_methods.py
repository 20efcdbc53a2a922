from dataclasses import replace
from types import SimpleNamespace

import pytest
from torch import nn

from advdrop import AdversarialDropout, schedules
from advdrop.divergences import kl, qe, reverse_kl
from advdrop.lab.config import methods
from advdrop.lab.config.methods import network_of, objective_of
from advdrop.lab.config.networks import NETWORKS
from advdrop.lab.config.recipes import resolve
from advdrop.lab.config.terms import METHODS, Setup
from advdrop.lab.config.values import ConfigError, overrides
from advdrop.lab.models.ladder import DenoisingCost
from advdrop.masks import FirstOrder, Iterated, Probe, RandomFlips
from advdrop.objectives import (
    AT,
    VAT,
    CatGAN,
    CrossEntropy,
    DeepSupervision,
    EntropyMinimization,
    FakeClass,
    FraternalDropout,
    Gamma,
    MeanTeacher,
    PiModel,
    RDrop,
    SAdD,
    TemporalEnsembling,
    TransformationStability,
    VAdD,
)
from advdrop.schedules import Factor

CLASSES = {
    "dropout": (),
    "at": (AT,),
    "vat": (VAT,),
    "pi": (PiModel,),
    "temporal": (TemporalEnsembling,),
    "sajjadi": (TransformationStability,),
    "sadd": (SAdD,),
    "vadd-kl": (VAdD,),
    "vadd-qe": (VAdD,),
    "no-flips": (VAdD,),
    "entropy": (EntropyMinimization,),
    "mean-teacher": (MeanTeacher,),
    "gamma": (Gamma,),
    "ladder": (DenoisingCost,),
    "catgan": (CatGAN,),
    "gan-fm": (FakeClass,),
    "dsn": (DeepSupervision,),
}
NETWORK = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 3))
SETUP = Setup(NETWORK, classes=3, examples=50, shape=(4,), pixels=False, to_input=lambda x: x)
OWN_LOSS = {"r-drop": RDrop, "fraternal": FraternalDropout}


def configured(method, *settings, **options):
    return resolve("mnist", shape=(1, 28, 28), examples=60_000, method=method, settings=overrides(settings), **options)


def parts(method, *settings, trust=None, **options):
    return objective_of(configured(method, *settings, **options), SETUP, trust).parts


def term(method, *settings):
    """The first term behind the cross-entropy."""
    return next(part for _, part in parts(method, *settings) if not isinstance(part, CrossEntropy))


def weights(method, *settings, progress=1.0, **options):
    """The weight of each term at this progress, by its class."""
    found = {}
    for factors, part in parts(method, *settings, **options):
        weight = 1.0
        for factor in factors:
            weight *= factor(progress) if callable(factor) else factor
        found[type(part)] = weight
    return found


def test_every_term_becomes_its_objective_behind_the_cross_entropy():
    for method in CLASSES:
        assert [type(part) for _, part in parts(method)] == [CrossEntropy, *CLASSES[method]]
    for method, kind in OWN_LOSS.items():  # they contain the cross-entropy of both passes
        assert [type(part) for _, part in parts(method)] == [kind]
        assert [type(part) for _, part in parts(f"vat+{method}")] == [VAT, kind]


def test_methods_add_up():
    assert list(weights("vadd-qe+vat+entropy")) == [CrossEntropy, VAdD, VAT, EntropyMinimization]


def test_the_divergence_is_that_of_the_name():
    assert term("vadd-kl").divergence is kl
    assert term("vadd-qe").divergence is qe
    assert term("pi").divergence is qe
    assert (term("no-flips").divergence, term("no-flips").delta) == (qe, 0.0)
    assert term("vadd-kl").delta is None  # that of the layer
    assert term("temporal").divergence is qe
    ensemble = term("temporal")
    assert (ensemble.examples, ensemble.classes) == (50, 3)


VIRTUAL = ("vadd-kl", "vadd-qe", "no-flips")
ADVERSARIAL = ("sadd", *VIRTUAL)
# (methods, option) -> (where it arrives, value); no value is a default
ARRIVES = {
    (ADVERSARIAL, "order"): (lambda t: t.search.order, "smallest"),
    (ADVERSARIAL, "ties"): (lambda t: t.search.ties, "dropped"),
    (ADVERSARIAL, "budget"): (lambda t: t.budget, "shared"),
    (VIRTUAL, "noise"): (lambda t: t.noise, "shared"),
    (VIRTUAL, "target"): (lambda t: t.target.__name__.removesuffix("_output"), "steady"),
    (VIRTUAL, "detach"): (lambda t: t.detach, True),
    (VIRTUAL, "confidence"): (lambda t: t.confidence, 0.5),
    (VIRTUAL, "fresh"): (lambda t: t.fresh, True),
    (("sadd",), "noise"): (lambda t: t.noise, "independent"),
    (("vat",), "epsilon"): (lambda t: t.epsilon, 1.25),
    (("vat",), "xi"): (lambda t: t.xi, 0.5),
    (("vat",), "iterations"): (lambda t: t.iterations, 3),
    (("vat",), "noise"): (lambda t: t.noise, "shared"),
    (("vat",), "at"): (lambda t: t.at, "2"),
    (("vat",), "per"): (lambda t: t.per, "token"),
    (("at",), "at"): (lambda t: t.at, "2"),
    (("at",), "per"): (lambda t: t.per, "token"),
    (("r-drop",), "alpha"): (lambda t: t.alpha, 4.0),
    (("fraternal",), "kappa"): (lambda t: t.kappa, 4.0),
    (("mean-teacher",), "decay"): (lambda t: t.teacher.decay, 0.5),
    (("at",), "epsilon"): (lambda t: t.epsilon, 0.75),
    (("at",), "norm"): (lambda t: t.norm, "l2"),
    (("at",), "noise"): (lambda t: t.noise, "shared"),
    (("temporal",), "momentum"): (lambda t: t.momentum, 0.25),
    (("sajjadi",), "passes"): (lambda t: t.passes, 7),
    (("sajjadi",), "mutual_exclusivity"): (lambda t: t.exclusivity, 0.5),
    (("gamma",), "noise"): (lambda t: t.noise, 0.75),
    (("ladder",), "weights"): (lambda t: list(t.weights), [7.0, 3.0]),
    (("catgan", "gan-fm"), "latent"): (lambda t: (t.latent == t.generator.layers[0].in_features) * t.latent, 9),
    (("catgan", "gan-fm"), "filters"): (lambda t: t.generator.layers[0].out_features // 8, 5),
    (("dsn",), "places"): (lambda t: list(t.places), ["0"]),
}


def test_an_option_arrives_at_its_term():
    for (of, option), (where, value) in ARRIVES.items():
        for method in of:
            assert where(term(method)) != value, (method, option)
            assert where(term(method, f"{method}.{option}={value}")) == value, (method, option)


def test_every_option_of_a_term_is_tested_here():
    elsewhere = {"weight", "ramped"}  # by their weights, below
    elsewhere |= {"search", "steps", "reversed_search"}  # in tests of their own
    elsewhere |= {"generator_rate", "generator_beta1"}  # of the second optimizer, in the tests of the engine
    for method, options in METHODS.items():
        here = {option for of, option in ARRIVES if method in of}
        assert here == set(options.model_fields) - elsewhere


DEFAULTS = {
    "at": AT(),
    "vat": VAT(),
    "temporal": TemporalEnsembling(50, 3),
    "sajjadi": TransformationStability(exclusivity=0.1),
    "gamma": Gamma(3),
    "ladder": DenoisingCost(),
    "sadd": SAdD(),
    "vadd-kl": VAdD(),
    "mean-teacher": MeanTeacher(),
    "r-drop": RDrop(),
    "fraternal": FraternalDropout(),
}


def test_what_is_not_set_is_the_terms_own_default():
    for method, default in DEFAULTS.items():
        places = [where for (of, _), (where, _) in ARRIVES.items() if method in of]
        assert places
        for where in places:
            assert where(term(method)) == where(default), method


@pytest.mark.parametrize("method", ADVERSARIAL)
def test_the_search_is_the_one_named(method):
    kinds = {"first-order": FirstOrder, "iterated": Iterated, "probe": Probe, "random": RandomFlips}
    for search, kind in kinds.items():
        found = term(method, f"{method}.search={search}", f"{method}.steps=7").search
        assert type(found) is kind
        assert search != "iterated" or found.steps == 7


def test_only_vadd_with_kl_searches_reversed():
    assert term("vadd-kl").search_divergence is None
    assert term("vadd-kl", "vadd-kl.reversed_search=true").search_divergence is reverse_kl
    assert [name for name, options in METHODS.items() if "reversed_search" in options.model_fields] == ["vadd-kl"]
    assert term("vadd-qe").search_divergence is None
    assert term("sadd").search_divergence is None


@pytest.mark.parametrize("ramped", [True, False])
def test_a_ramped_weight_rises_and_a_constant_one_does_not(ramped):
    for method in METHODS:
        settings = (f"{method}.ramped={ramped}", f"{method}.weight=4", "objective.ramp=0.5")
        for progress in (0.0, 0.2, 0.5, 0.7, 1.0):
            expected = 4.0 * (schedules.ramp_up(progress, 0.5) if ramped else 1.0)
            expected *= 1.0 - progress if method == "dsn" else 1.0  # companion losses fade
            found = weights(method, *settings, progress=progress)
            kind = OWN_LOSS.get(method) or CLASSES[method][0]
            assert found[kind] == pytest.approx(expected), method
            assert method in OWN_LOSS or found[CrossEntropy] == 1.0


def test_what_is_ramped_by_default():
    together = "+".join(name for name in METHODS if name != "gan-fm")  # there can be only one generator
    factors = {type(part): found for found, part in parts(together) + parts("gan-fm")}
    rising = {kind for kind, found in factors.items() if any(map(callable, found))}
    assert rising == {SAdD, VAdD, PiModel, TemporalEnsembling, MeanTeacher, DeepSupervision}


def test_heads_are_on_all_poolings_else_on_all_relus():
    assert term("dsn").places == (nn.ReLU,)
    assert [head.in_features for head in term("dsn").heads] == [8, 6]
    pooled = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.Flatten())
    objective = objective_of(configured("dsn"), replace(SETUP, network=pooled, shape=(1, 14, 14)))
    assert objective.parts[1][1].places == (nn.MaxPool2d, nn.AvgPool2d)


def test_a_network_without_hidden_activations_says_how_to_name_places():
    bare = replace(SETUP, network=nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    with pytest.raises(ValueError, match="has no such module; name others"):
        objective_of(configured("dsn"), bare)
    objective_of(configured("dsn", "objective.terms.dsn.places=['0']"), bare)


def test_the_ladder_brings_its_network():
    config = configured("ladder")
    assert (config.network.name, config.network.p, config.objective.updating) == ("ladder", 0.0, ())
    assert config.data.overlap
    assert not config.data.standardize  # its noise is for pixels from 0 to 1
    table = resolve("table.npz", shape=(13,), examples=100, method="ladder")
    assert (table.network.name, table.data.standardize) == ("ladder", True)
    assert configured("ladder", "network.name=mlp").network.name == "mlp"
    robust = configured("ladder", preset="robust")
    assert robust.objective.blend == 0.0  # a companion without trust would turn off the pass that updates batch norm


def test_the_entropy_of_unlabeled_images_is_trusted_like_the_other_terms():
    found = weights("pi", preset="authors", trust=Factor(0.0))
    assert found == {CrossEntropy: 1.0, PiModel: 0.0, EntropyMinimization: 0.0}


def test_two_generators_are_refused():
    with pytest.raises(ConfigError, match="has catgan, gan-fm, which have a generator each; use one of them"):
        configured("gan-fm+pi+catgan")


@pytest.mark.parametrize("method", ["vat", "pi", "vadd-kl", "sadd+vat"])
def test_the_authors_minimize_entropy_in_semi_supervised_methods(method):
    for progress in (0.0, 1.0):  # never ramped
        assert weights(method, preset="authors", progress=progress)[EntropyMinimization] == 1.0
    assert weights(method, "objective.entropy=0.25", preset="authors")[EntropyMinimization] == 0.25
    assert EntropyMinimization not in weights(method)
    assert EntropyMinimization not in weights(method, "objective.entropy=0", preset="authors")


@pytest.mark.parametrize("method", ["dropout", "at+sadd"])
def test_entropy_is_that_of_semi_supervised_methods_also_if_it_is_set(method):
    assert EntropyMinimization not in weights(method, "objective.entropy=1")
    assert weights(f"{method}+pi".removeprefix("dropout+"), "objective.entropy=1")[EntropyMinimization] == 1.0


@pytest.mark.parametrize("method", ["dropout", "at+sadd"])
def test_the_authors_do_not_minimize_it_where_labels_are_all_there_is(method):
    assert EntropyMinimization not in weights(method, preset="authors")


def test_entropy_that_is_asked_for_is_there_once():
    assert [type(part) for _, part in parts("vat+entropy", preset="authors")] == [
        CrossEntropy,
        VAT,
        EntropyMinimization,
    ]


def layer_of(model):
    (layer,) = (module for module in model.modules() if isinstance(module, AdversarialDropout))
    return layer


def test_the_layer_has_the_options_of_the_configuration():
    settings = ["network={name: mlp, hidden: [12, 9]}", "network.p=0.3", "network.granularity=channel"]
    config = configured("vadd-kl", *settings, "network.delta=0.4", "network.scale=none")
    layer = layer_of(network_of(config, (6,), 4))
    assert (layer.p, layer.delta, layer.scale, layer.granularity) == (0.3, 0.4, "none", "channel")


OPTIONS = {
    "mnist-cnn": {"kernel": 5, "dropout": 0.25, "batch_norm": True, "earlier": 2},
    "conv-large": {
        "norm": "mean-only",
        "momentum": 0.25,
        "top_bn": True,
        "sigma": 0.75,
        "width": 0.125,
        "units": 24,
        "dropout": 0.25,
        "second_dropout": False,
    },
    "resnet18": {"norm": "group", "width": 0.125},
    "network-in-network": {"dropout": 0.25},
    "all-cnn": {"input_dropout": 0.125, "dropout": 0.25},
    "highway": {"dropout": 0.375, "gate_bias": -1.0},
    "mlp": {"hidden": (5, 4), "dropout": 0.25},
    "ladder": {"hidden": (30, 20), "noise": 0.1},
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_builder_gets_all_options_of_its_network(monkeypatch, name):
    options = OPTIONS[name]
    assert not set(options.items()) & set(NETWORKS[name]().model_dump().items())
    builder = {name: lambda *given, **options: SimpleNamespace(given=given, options=options)}
    monkeypatch.setattr(methods, "NETWORKS", builder)
    values = ", ".join(f"{key}: {list(v) if isinstance(v, tuple) else v}" for key, v in options.items())
    found = network_of(configured("vat", f"network={{name: {name}, {values}}}"), (3, 32, 32), 7)
    layer, *rest = found.given
    assert rest == [(3, 32, 32), 7]
    assert isinstance(layer, AdversarialDropout)
    assert found.options == options


@pytest.mark.parametrize("name", ["mnist-cnn", "mlp"])
def test_the_network_is_the_one_named(name):
    model = network_of(configured("vat", f"network.name={name}"), (1, 28, 28), 7)
    assert model[-1].out_features == 7
    assert layer_of(model).delta == 0.005
