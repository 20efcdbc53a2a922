from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch

from advdrop.lab import choices
from advdrop.lab.config.recipes import DATASETS, recipe, resolve
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import ConfigError, overrides
from advdrop.lab.data import DataSet, Examples
from advdrop.lab.data.sources import SOURCES
from advdrop.masks import flip_budget

SIZES = {"mnist": 60_000, "fashion-mnist": 60_000, "mnist5k": 4000, "digits": 1297, "svhn": 73_257, "cifar10": 50_000}
SHAPES = {"svhn": (3, 32, 32), "cifar10": (3, 32, 32), "digits": (1, 8, 8), "own": (30,)}


def resolved(dataset, *settings, **options):
    shape, examples = SHAPES.get(dataset, (1, 28, 28)), SIZES.get(dataset, 1000)
    return resolve(
        dataset,
        **{"method": "vadd-kl", "shape": shape, "examples": examples, "settings": overrides(settings), **options},
    )


def value(config, key):
    for name in key.split("."):
        config = getattr(config, name.replace("-", "_"))
    return config


# Appendix B, and what FIDELITY.md says of it, by the keys of a resolved configuration.
MNIST = {
    "network.name": "mnist-cnn",
    "network.kernel": 3,
    "network.p": 0.5,
    "network.granularity": "unit",
    "network.delta": 0.005,
    "objective.ramp": 30 / 100,
    "optimizer.learning_rate": 0.001,
    "optimizer.beta1": 0.9,
    "optimizer.beta2": 0.999,
    "optimizer.ramp_up": 0.0,
    "optimizer.ramp_down": 0.0,
    "training.updates": 100 * 468,
    "training.epoch_updates": 60_000 // 128,
    "training.labeled": 128,
    "training.unlabeled": 128,
    "data.scaling": "unit",
    "data.standardize": False,
    "data.zca": False,
    "data.pad_crop": 0,
    "data.flip": False,
}
CONV_LARGE = {
    "network.name": "conv-large",
    "network.p": 0.0,
    "network.granularity": "unit",
    "network.width": 1.0,
    "network.dropout": 0.5,
    "network.delta": 0.05,
    "objective.ramp": 80 / 300,
    "optimizer.learning_rate": 0.003,
    "optimizer.ramp_up": 80 / 300,
    "optimizer.ramp_down": 50 / 300,
    "optimizer.beta1": 0.9,
    "optimizer.beta1_end": 0.5,
    "optimizer.beta2": 0.999,
    "training.updates": 300 * 400,
    "training.epoch_updates": 400,
    "training.labeled": 32,
    "training.unlabeled": 128,
    "data.scaling": "centered",
    "data.standardize": False,
    "data.pad_crop": 2,
    "data.noise": 0.0,
}
SVHN = CONV_LARGE | {"data.zca": False, "data.flip": False, "network.norm": "batch", "objective.terms.vat.epsilon": 3.5}
CIFAR10 = CONV_LARGE | {"data.zca": True, "data.flip": True, "objective.terms.vat.epsilon": 8.0}
OF_THE_METHOD = {
    "paper": {
        "objective.terms.vadd-kl.order": "largest",
        "objective.terms.vadd-kl.ties": "exact",
        "objective.terms.vadd-kl.reversed_search": False,
        "network.scale": "inverted",
        "objective.entropy": 0.0,
        "data.overlap": False,
    },
    "authors": {
        "objective.terms.vadd-kl.order": "largest",
        "objective.terms.vadd-kl.ties": "dropped",
        "objective.terms.vadd-kl.reversed_search": True,
        "network.scale": "renormalized",
        "objective.entropy": 1.0,
        "data.overlap": True,
    },
}
BOTH = {
    "objective.updating": ("adversarial", "clean", "labeled", "second"),
    "objective.terms.vadd-kl.search": "first-order",
    "objective.terms.vadd-kl.budget": "layer",
    "objective.terms.vadd-kl.noise": "independent",
    "objective.terms.vat.iterations": 1,
    "objective.terms.vat.xi": 1e-2,
    "objective.terms.at.norm": "linf",
    **{f"objective.terms.{term}.ramped": True for term in ("sadd", "vadd-kl", "vadd-qe", "pi", "temporal")},
    **{f"objective.terms.{term}.ramped": False for term in ("at", "vat", "sajjadi")},
}
TABLE = {
    ("mnist", "paper"): MNIST,
    ("mnist", "authors"): MNIST,
    ("fashion-mnist", "paper"): MNIST,
    ("svhn", "paper"): SVHN | {"network.momentum": 0.999, "network.sigma": 0.15, "network.top_bn": False},
    ("svhn", "authors"): SVHN | {"network.momentum": 0.99, "network.sigma": 0.0, "network.top_bn": True},
    ("cifar10", "paper"): CIFAR10
    | {
        "network.momentum": 0.999,
        "network.sigma": 0.15,
        "network.top_bn": False,
        "network.norm": "weight+mean-only",
    },
    ("cifar10", "authors"): CIFAR10
    | {"network.momentum": 0.99, "network.sigma": 0.15, "network.top_bn": False, "network.norm": "mean-only"},
}


@pytest.mark.parametrize(("dataset", "preset"), TABLE)
def test_the_recipe_is_that_of_appendix_b(dataset, preset):
    config = resolved(
        dataset, labels=1000, preset=preset, method="+".join(set(METHODS) - {"entropy", "ladder", "gan-fm"})
    )
    expected = {**TABLE[dataset, preset], **OF_THE_METHOD[preset], **BOTH}
    assert {key: value(config, key) for key in expected} == expected
    assert (config.dataset, config.preset, config.labels) == (dataset, preset, 1000)


def test_delta_allows_the_changes_that_the_paper_counts():
    assert flip_budget(resolved("mnist").network.delta, 2048) == 10
    assert flip_budget(resolved("svhn").network.delta, 128) == 6


def test_the_weights_are_those_of_appendix_b():
    one = {"vadd-kl": 1.0, "sadd": 1.0, "vat": 1.0, "at": 1.0}
    for dataset, preset, labels in product(SIZES, ("paper", "authors"), (1000, "all")):
        quadratic = 30.0 if "mnist" in dataset else 25.0
        if (dataset, preset, labels) == ("svhn", "authors", "all"):
            quadratic = 10.0
        config = resolved(dataset, method="vadd-kl+vadd-qe+pi+sadd+vat+at", preset=preset, labels=labels)
        found = {term: options.weight for term, options in config.objective.terms.chosen().items()}
        assert found == {**one, "vadd-qe": quadratic, "pi": quadratic}, (dataset, preset, labels)


@pytest.mark.parametrize("preset", ["paper", "authors"])
@pytest.mark.parametrize("labels", [1000, "all"])
def test_the_subset_of_svhn_has_the_recipe_of_svhn(preset, labels):
    whole, subset = (
        resolved(name, shape=(3, 32, 32), examples=10_000, preset=preset, labels=labels, method="vadd-qe")
        for name in ("svhn", "svhn-subset")
    )
    assert whole.differences(subset) == ["dataset"]


def test_the_authors_add_entropy_to_semi_supervised_methods():
    without = ["dropout", "at", "sadd", "at+sadd", "entropy", "vat+entropy"]  # it has its own weight; twice would be 2
    for method in [*without, "vat", "pi", "temporal", "sajjadi", "vadd-kl", "vadd-qe", "sadd+vat"]:
        authors, paper = (resolved("mnist", method=method, preset=preset) for preset in ("authors", "paper"))
        assert authors.objective.entropy == (0.0 if method in without else 1.0), method
        assert paper.objective.entropy == 0.0, method


@pytest.mark.parametrize(
    ("dataset", "batch", "epochs"),
    [("mnist", 128, 100), ("svhn", 100, 300), ("cifar10", 100, 300), ("mnist5k", 128, 6)],
)
def test_all_labels_are_one_stream_and_an_epoch_is_the_training_set(dataset, batch, epochs):
    training = resolved(dataset, labels="all").training
    assert (training.labeled, training.unlabeled) == (batch, 0)
    assert training.epoch_updates == SIZES.get(dataset, 1000) // batch
    assert training.updates == epochs * training.epoch_updates


def test_all_labels_of_few_images_are_an_update_an_epoch():
    assert resolved("mnist5k", examples=7, labels="all").training.epoch_updates == 1


@pytest.mark.parametrize("examples", [7, 100_000])
def test_your_own_data_with_all_labels_are_one_stream_of_the_usual_length(examples):
    training = resolved("own", examples=examples, labels="all").training
    assert (training.labeled, training.unlabeled) == (64, 0)
    assert (training.updates, training.epoch_updates) == (1000, 100)


def test_all_labels_of_your_own_data_are_used_and_a_hundred_of_a_source():
    assert resolved("own").labels == "all"
    assert {resolved(name).labels for name in DATASETS} == {100}
    assert resolved("own", labels=30).labels == 30


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("preset", "side", "network", "batches"),
    [
        ("robust", 40, "mnist-cnn", (32, 64)),
        ("robust", 64, "mnist-cnn", (16, 32)),
        ("robust", 65, "resnet18", (16, 32)),
        ("paper", 41, "resnet18", (16, 32)),
    ],
)
def test_larger_images_get_smaller_batches_and_a_residual_network(channels, preset, side, network, batches):
    config = resolved("own", shape=(channels, side, side), half_labeled=True, preset=preset)
    assert config.network.name == network
    assert (config.training.labeled, config.training.unlabeled) == batches
    assert config.data.pad_crop == 2
    if network == "resnet18":
        assert (config.network.norm, config.network.width) == ("group", 0.25)


def test_pictures_are_configured_as_they_were_read():
    x, y = torch.zeros(4, 3, 20, 30, dtype=torch.uint8), torch.arange(4) % 2
    data = DataSet("mine", Examples(x, y), Examples(x, y), ("a", "b"))
    assert (recipe(data).data.size, recipe(data).data.color) == (None, None)
    config = recipe(replace(data, pictures=True), settings={"data": {"flip": True, "size": "auto"}})
    assert (config.data.size, config.data.color, config.data.flip) == ((20, 30), "rgb", True)
    assert recipe(replace(data, pictures=True)).data.size == (20, 30)


def test_all_labels_of_some_images_are_two_streams():
    assert resolved("svhn", labels="all", half_labeled=True).training == resolved("svhn", labels=1000).training


def test_the_schedules_shrink_with_the_length():
    config = resolved("svhn", updates=3000)
    assert config.training.updates == 3000
    assert config.optimizer == resolved("svhn").optimizer
    assert config.objective == resolved("svhn").objective


@pytest.mark.parametrize("labels", [100, "all"])
def test_what_the_user_sets_wins(labels):
    plain = resolved("svhn", preset="authors", labels=labels)
    for setting in (
        "network.delta=0.2",
        "objective.entropy=0.5",
        "objective.terms.vadd-kl.ties=exact",
        "objective.terms.vadd-kl.weight=7.0",
        "objective.ramp=0.9",
        "network.momentum=0.5",
        "network.sigma=0.3",
        "training.updates=11",
        "training.unlabeled=6",
        "training.labeled=6",
        "data.overlap=false",
        "optimizer.ramp_down=0.0",
        "engine.devices=2",
    ):
        config = resolved("svhn", setting, preset="authors", labels=labels)
        key, text = setting.split("=")
        assert str(value(config, key)).lower() == text
        assert config.differences(plain) == [key]


@pytest.mark.parametrize(
    ("updates", "epoch"), [(5, 1), (9, 1), (10, 1), (99, 9), (100, 10), (199, 19), (200, 100), (250, 100), (600, 100)]
)
@pytest.mark.parametrize("method", ["vadd-kl", "dropout"])
def test_a_short_training_with_a_companion_has_epochs_of_a_tenth_of_it(updates, epoch, method):
    # Unlabeled images count from the end of the first epoch on.
    options = {"method": method, "labels": 100}
    for config in (
        resolved("mnist5k", updates=updates, **options),
        resolved("mnist5k", f"training.updates={updates}", **options),
    ):
        assert (config.training.updates, config.training.epoch_updates) == (updates, epoch)
    config = resolved("mnist5k", "training.epoch_updates=300", updates=updates, **options)
    assert config.training.epoch_updates == 300
    config = resolved("mnist5k", "objective.blend=0", updates=updates, **options)
    assert config.training.epoch_updates == 100


def test_another_network_drops_the_options_of_the_first_one():
    config = resolved("svhn", "network.name=all-cnn", "network.input_dropout=0.1", preset="authors")
    assert config.network.model_dump() == {
        "name": "all-cnn",
        "p": 0.0,
        "delta": 0.05,
        "scale": "renormalized",
        "granularity": "unit",
        "input_dropout": 0.1,
        "dropout": 0.5,
    }
    assert resolved("mnist", "network.name=mlp").network.p == 0.5
    assert resolved("mnist", "network.name=mlp").network.delta == 0.005
    assert resolved("mnist", "network.name=mlp", "network.p=0.3").network.p == 0.3
    with pytest.raises(ConfigError, match=r"^there is no option network\.momentum;"):
        resolved("svhn", "network.name=mlp", "network.momentum=0.9")


def test_naming_the_network_of_the_recipe_changes_nothing():
    for preset in ("paper", "authors"):
        named = resolved("svhn", "network.name=conv-large", preset=preset)
        assert named == resolved("svhn", preset=preset)


@pytest.mark.parametrize(
    ("shape", "network", "scaling", "pad_crop"),
    [
        ((3, 32, 32), "conv-large", "unit", 2),
        ((1, 20, 20), "mnist-cnn", "unit", 0),
        ((2, 9, 9), "mlp", "unit", 0),
        ((30,), "mlp", "none", 0),
    ],
)
def test_own_data_get_the_recipe_of_their_shape(shape, network, scaling, pad_crop):
    config = resolved("some/data.npz", shape=shape, data_dir=Path("/data"), preset="paper", half_labeled=True)
    assert config.network.name == network
    assert (config.data.scaling, config.data.standardize, config.data.pad_crop) == (scaling, True, pad_crop)
    assert (config.training.labeled, config.training.unlabeled, config.training.updates) == (32, 128, 1000)
    assert config.data_dir == Path("/data")


def test_the_robust_preset_is_that_of_all_data_but_the_papers():
    presets = {name: resolved(name).preset for name in ("mnist", "svhn", "cifar10", "mnist5k", "digits", "own.npz")}
    assert [name for name, preset in presets.items() if preset == "paper"] == ["mnist", "svhn", "cifar10"]
    assert set(presets.values()) == {"paper", "robust"}


@pytest.mark.parametrize(
    ("shape", "network", "pad_crop"), [((3, 32, 32), "mnist-cnn", 2), ((1, 8, 8), "mlp", 0), ((30,), "mlp", 0)]
)
def test_the_robust_recipe(shape, network, pad_crop):
    config = resolved("some/data.npz", shape=shape)
    assert (config.network.name, config.data.pad_crop) == (network, pad_crop)
    assert config.data.standardize
    assert config.optimizer.ramp_down == 0.3
    term = config.objective.terms.chosen()["vadd-kl"]
    assert term.weight == 1.0
    assert resolved("some/data.npz", method="pi").objective.terms.chosen()["pi"].weight == 30.0
    assert config.objective.blend == pytest.approx(1 / 3)


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_robust_preset_suits_every_source(dataset):
    network = resolved(dataset, preset="robust").network
    assert network == resolved("own", shape=SHAPES.get(dataset, (1, 28, 28)), preset="robust").network


def test_the_papers_presets_have_no_companion():
    for preset in ("paper", "authors"):
        config = resolved("mnist", preset=preset)
        term = config.objective.terms.chosen()["vadd-kl"]
        assert (term.target, term.detach, term.confidence, config.objective.blend) == ("clean", False, 0.0, 0.0)


def test_own_data_do_not_change_the_recipes():
    before = resolved("mnist")
    resolved("mnist", "network.name=mlp", "network.delta=0.5", labels="all", method="vat")
    assert resolved("mnist") == before


def test_what_is_given_by_itself_is_not_one_of_the_settings():
    for name in ("dataset", "data_dir", "unlabeled", "labels", "method", "preset", "seed"):
        with pytest.raises(ConfigError, match=f"^{name} is not one of the settings"):
            resolved("mnist", f"{name}=1")


def test_an_unknown_preset_is_refused():
    with pytest.raises(ConfigError, match=r"^preset must be one of auto, paper, authors, robust, got 'papre'$"):
        resolved("mnist", preset="papre")


def test_every_source_has_a_recipe():
    assert set(DATASETS) == set(SOURCES) == set(choices.DATASETS)


@pytest.mark.parametrize(("dataset", "network", "units"), [("mnist5k", "mnist-cnn", 2048), ("digits", "mlp", 256)])
def test_the_small_data_sets_take_minutes(dataset, network, units):
    config = resolved(dataset)
    assert config.network.name == network
    assert config.training.updates <= 1000
    assert flip_budget(config.network.delta, units) > 0


def test_the_authors_entropy_is_for_semi_supervised_learning():
    settings = {"shape": (3, 32, 32), "examples": 50_000, "preset": "authors", "method": "vadd-kl"}
    assert resolve("cifar10", labels=4000, **settings).objective.entropy == 1.0
    assert resolve("cifar10", labels="all", **settings).objective.entropy == 0.0
    assert resolve("own.npz", labels="all", half_labeled=True, **settings).objective.entropy == 1.0


def test_a_term_may_be_named_without_its_place():
    settings = {"vadd-qe": {"weight": 3.0}}
    assert resolve("own.npz", shape=(5,), examples=50, settings=settings).objective.terms.vadd_qe.weight == 3.0


def test_your_own_few_images_are_all_in_the_unlabeled_stream():
    for preset in ("paper", "authors"):
        assert resolve("own.npz", shape=(5,), examples=50, preset=preset).data.overlap
