"""Fill in a configuration: the recipe of the data set, the choices of the preset, then what the user sets.

The recipes of MNIST, SVHN and CIFAR-10 are the paper's (Appendix B). Where the paper says nothing, the source is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from advdrop.lab.choices import Labels, PresetChoice, PresetName
from advdrop.lab.config.config import RunConfig, parse_method
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import ConfigError, expanded, merged
from advdrop.lab.data.examples import UNLABELED, DataSet
from advdrop.lab.models.networks import LARGE, default_network
from advdrop.presets import PRESETS, Preset

Values = Mapping[str, Any]

MNIST: Values = {
    "data": {"scaling": "unit"},
    "network": {"name": "mnist-cnn", "p": 0.5, "delta": 0.005},
    "objective": {"ramp": 30 / 100},
    "terms": {term: {"weight": 30.0} for term in ("pi", "temporal", "vadd-qe")},  # Appendix B
    "optimizer": {"learning_rate": 0.001},
    "training": {"updates": 100 * 468, "epoch_updates": 468, "labeled": 128, "unlabeled": 128},
}
SMALL_MNIST: Values = {
    # Ours, for a minute or two on two cores. Chosen by the test errors of a few runs with seed 0, so this data set is
    # for demonstrations, not for measurements.
    "objective": {"ramp": 0.8},
    "optimizer": {"learning_rate": 0.002, "ramp_down": 0.2},
    "training": {"updates": 600, "epoch_updates": 100, "labeled": 32, "unlabeled": 64},
}
SHORT: Values = {  # ours
    "objective": {"ramp": 0.3},
    "optimizer": {"learning_rate": 0.001, "ramp_down": 0.3},
    "training": {"updates": 1000, "epoch_updates": 100, "labeled": 32, "unlabeled": 128},
}
ONE_STREAM: Values = {"training": {"labeled": 64, "unlabeled": 0}}
"""Ours, for your own data if all of them have a label. Few images would make few updates if an epoch saw each once."""
SMALL_BATCHES: Values = {"labeled": 16, "unlabeled": 32}
"""Ours, for images of more than 40 pixels a side, so that 64×64 pixels take minutes and not an hour on two cores."""
RESNET: Values = {"name": "resnet18", "p": 0.5, "delta": 0.05, "norm": "group", "width": 0.25}
"""Ours: a quarter of the filters, and the norm with which several passes run as one."""
DIGITS: Values = {  # 8x8 pixels are too few for three poolings
    **SHORT,
    "data": {"scaling": "unit"},
    "network": {"name": "mlp", "p": 0.5, "delta": 0.05, "hidden": (256, 256), "dropout": 0.5},
}
CONV_LARGE: Values = {
    "network": {"name": "conv-large", "p": 0.0, "delta": 0.05, "momentum": 0.999, "sigma": 0.15},
    "objective": {"ramp": 80 / 300},
    "optimizer": {"learning_rate": 0.003, "ramp_up": 80 / 300, "ramp_down": 50 / 300},
    "training": {"updates": 300 * 400, "epoch_updates": 400, "labeled": 32, "unlabeled": 128},
}
SVHN: Values = merged(
    CONV_LARGE,
    {"data": {"scaling": "centered", "pad_crop": 2}, "network": {"norm": "batch"}, "terms": {"vat": {"epsilon": 3.5}}},
)
CIFAR10: Values = merged(
    CONV_LARGE,
    {
        "data": {"scaling": "centered", "zca": True, "pad_crop": 2, "flip": True},
        "network": {"norm": "weight+mean-only"},
        "terms": {"vat": {"epsilon": 8.0}},
    },
)
DATASETS: Mapping[str, Values] = {
    "mnist": MNIST,
    "fashion-mnist": MNIST,
    "mnist5k": merged(MNIST, SMALL_MNIST),
    "digits": DIGITS,
    "svhn": SVHN,
    "svhn-subset": SVHN,
    "cifar10": CIFAR10,
}

PAPERS_OWN = ("mnist", "svhn", "svhn-subset", "cifar10")
"""The data sets of the paper, and a subset of one of them."""

# Where the authors' released code differs from the paper. The choices of the method itself are in advdrop.presets.
AUTHORS_SVHN: Values = {"network": {"momentum": 0.99, "top_bn": True, "sigma": 0.0}}
AUTHORS: Mapping[str, Values] = {
    "svhn": AUTHORS_SVHN,
    "svhn-subset": AUTHORS_SVHN,
    "cifar10": {"network": {"momentum": 0.99, "norm": "mean-only"}},
}
AUTHORS_SVHN_ALL: Values = {"terms": {term: {"weight": 10.0} for term in ("pi", "temporal", "vadd-qe")}}
AUTHORS_ALL_LABELS: Mapping[str, Values] = {"svhn": AUTHORS_SVHN_ALL, "svhn-subset": AUTHORS_SVHN_ALL}


def resolve(
    dataset: str,
    *,
    shape: Sequence[int],
    examples: int,
    labels: Labels | None = None,
    method: str = "vadd-qe",
    preset: PresetChoice = "auto",
    seed: int = 0,
    updates: int | None = None,
    data_dir: Path | None = None,
    unlabeled: Path | None = None,
    half_labeled: bool = False,
    pictures: bool = False,
    settings: Values | None = None,
) -> RunConfig:
    """Return the whole configuration of a run.

    Args:
        dataset: the name of a source, or a path. A path gets the recipe for examples of its shape.
        shape: the shape of one example.
        examples: the number of training examples. In supervised learning an epoch sees each of them once.
        labels: how many labels are used, or ``"all"``. By default 100 of a source and all of your own data.
        method: terms added with ``+``.
        preset: the choices that the paper leaves open. ``"auto"``: those of the paper for its data sets, the robust
            ones for all others.
        seed: the seed of the split, the initialization, the order and the noise.
        updates: the length of the training, if not that of the recipe. With a companion network, a training that is
            not longer than an epoch of the recipe has ten epochs.
        data_dir: the folder of the data files.
        unlabeled: the folder of more images without labels.
        half_labeled: whether some training examples have no label, so that even ``"all"`` leaves unlabeled ones.
        pictures: whether the examples were read from picture files. Then the configuration has their size and color, so
            that the same pictures are read in the same way again.
        settings: nested values that override the recipe, such as ``{"training": {"updates": 100}}``, in which ``vat``
            is short for ``objective.terms.vat``.
    """
    preset = _preset(preset, dataset)
    terms = [term for term in parse_method(method) if term != "dropout"]
    labels = labels if labels is not None else 100 if dataset in DATASETS else "all"
    supervised = labels == "all" and not half_labeled
    given = {"dataset": dataset, "labels": labels, "method": method, "preset": preset, "seed": seed}
    settings = _settings(terms, shape, pictures, settings or {})
    if doubled := {*given, "data_dir", "unlabeled"} & settings.keys():
        raise ConfigError(f"{min(doubled)} is not one of the settings; give it as an argument of its own")
    recipe = _recipe(dataset, shape, preset, labels)
    of_terms = recipe.pop("terms", {})
    recipe = merged(recipe, {"objective": _objective(terms, of_terms, PRESETS[preset], supervised)})
    if supervised:
        recipe = merged(recipe, _supervised(recipe, examples) if dataset in DATASETS else ONE_STREAM)
    recipe["network"] = _network(recipe["network"], settings)
    length = {} if updates is None else {"training": {"updates": updates}}
    config = RunConfig.of(merged(recipe, length, settings, given, {"data_dir": data_dir, "unlabeled": unlabeled}))
    return config if "epoch_updates" in settings.get("training", {}) else _with_several_epochs(config)


def _preset(preset: PresetChoice, dataset: str) -> PresetName:
    """Return the preset that is asked for; ``"auto"`` stands for another one."""
    if preset == "auto":
        return "paper" if dataset in PAPERS_OWN else "robust"
    if preset not in PRESETS:
        raise ConfigError(f"preset must be one of auto, {', '.join(PRESETS)}, got {preset!r}")
    return preset


def _settings(terms: Sequence[str], shape: Sequence[int], pictures: bool, given: Values) -> dict[str, Any]:
    """Return what the terms need, and over it what the user sets."""
    needed = [METHODS[term].recipe for term in terms]
    if len(shape) == 3:
        needed += [METHODS[term].of_images for term in terms]
    settings = merged(*needed, expanded(given))
    if not _semi_supervised(terms):  # entropy is minimized in every other method
        settings = merged(settings, {"objective": {"entropy": 0.0}})
    if pictures:
        channels, *size = shape
        settings = merged(settings, {"data": {"size": size, "color": "rgb" if channels == 3 else "gray"}})
    return settings


def _recipe(dataset: str, shape: Sequence[int], preset: PresetName, labels: Labels) -> dict[str, Any]:
    """Return the recipe of the data set as the preset has it."""
    known = DATASETS.get(dataset) or own_data(shape)
    return merged(
        {"data": {"overlap": preset == "authors"}},  # the paper does not use the labeled images as unlabeled ones
        known if preset != "robust" else {**known, "network": {}},  # the options of another network mean nothing
        robust(shape) if preset == "robust" else {},
        AUTHORS.get(dataset, {}) if preset == "authors" else {},
        AUTHORS_ALL_LABELS.get(dataset, {}) if preset == "authors" and labels == "all" else {},
        {"network": {"scale": PRESETS[preset].scale}},
    )


def _objective(terms: Sequence[str], of_recipe: Values, choices: Preset, supervised: bool) -> Values:
    """Return the objective: each term with the choices of the preset and, over them, those of the recipe."""
    chosen = {"order": choices.order, "ties": choices.ties, "reversed_search": choices.reversed_search}
    options = {}
    for term in terms:
        own = {key: value for key, value in chosen.items() if key in METHODS[term].model_fields}
        options[term] = own | of_recipe.get(term, {})
    unlabeled = not supervised and _semi_supervised(terms)
    entropy = choices.entropy if unlabeled and "entropy" not in terms else 0.0
    return {"terms": options, "entropy": entropy, "updating": sorted(choices.updating)}


def _semi_supervised(terms: Sequence[str]) -> bool:
    """Return True if a term uses unlabeled examples."""
    return any(METHODS[term].semi_supervised for term in terms)


def _network(network: Values, settings: Values) -> Values:
    """Return the options of the network. Those of one network mean nothing to another that the settings ask for."""
    wanted = settings.get("network")
    if isinstance(wanted, Mapping) and wanted.get("name", network["name"]) != network["name"]:
        return {key: network[key] for key in ("p", "delta", "scale")}
    return network


def recipe(data: DataSet, dataset: str | None = None, **options: Any) -> RunConfig:
    """Return the whole configuration of a run on a loaded data set.

    Args:
        data: what ``advdrop.lab.data.load`` returns.
        dataset: its name or path for the record, if not its own name.
        options: those of :func:`resolve`, such as ``method``, ``labels``, ``updates``, ``seed`` and ``settings``.
    """
    return resolve(dataset or data.name, **facts(data), **options)


def facts(data: DataSet) -> dict[str, Any]:
    """Return what :func:`resolve` has to know about a loaded data set."""
    return {
        "shape": data.shape,
        "examples": len(data.train),
        "half_labeled": bool((data.train.y == UNLABELED).any()),
        "pictures": data.pictures,
    }


def own_data(shape: Sequence[int]) -> Values:
    """Return the recipe for the user's own images or tables. It is ours, and short."""
    images = len(shape) == 3
    network = default_network(shape)
    data = {
        "scaling": "unit" if images else "none",
        "standardize": True,
        "overlap": True,  # few images, so that all of them are used
        "pad_crop": 2 * (network in ("conv-large", "resnet18")),
    }
    own = merged(SHORT, {"data": data, "network": {"name": network, "p": 0.5, "delta": 0.05}})
    return merged(own, {"network": RESNET, "training": SMALL_BATCHES}) if network == "resnet18" else own


def robust(shape: Sequence[int]) -> Values:
    """Return the recipe for data that nothing was tuned on.

    All methods get what helps without unlabeled images: standardized inputs, small shifts of images, batch norm, little
    dropout, an annealed learning rate, and a second network in the prediction.
    The choices were made with mnist5k and the SVHN subset.
    """
    convolutional = len(shape) == 3 and min(shape[1:]) >= 16
    side = max(shape[1:]) if convolutional else 0
    small = {"name": "mnist-cnn", "p": 0.5, "delta": 0.005, "batch_norm": True, "dropout": 0.2}
    dense = {"name": "mlp", "p": 0.2, "delta": 0.05, "hidden": (256, 128), "dropout": 0.2}
    return {
        "data": {"standardize": True, "pad_crop": 2 * convolutional, "overlap": False},
        # Up to 64 pixels the small network learned more from a few hundred labels than the residual one.
        "network": RESNET if side > 64 else small if convolutional else dense,
        "objective": {"ramp": 0.3, "blend": 1 / 3},
        "terms": {name: {"weight": 30.0} for name in ("pi", "temporal", "vadd-qe", "no-flips")},
        "optimizer": {"learning_rate": 0.002, "ramp_down": 0.3},
        "training": SMALL_BATCHES if side > LARGE else {"labeled": 32, "unlabeled": 64},
    }


def _with_several_epochs(config: RunConfig) -> RunConfig:
    """Return a configuration in which a companion can be asked how far unlabeled images are trusted.

    It is asked at the end of each epoch, and before that they do not count. So in a training of one epoch they never
    would, and in one of less than two they hardly would.
    """
    training = config.training
    if not config.objective.blend or training.updates >= 2 * training.epoch_updates:
        return config
    shorter = training.model_copy(update={"epoch_updates": max(training.updates // 10, 1)})
    return config.model_copy(update={"training": shorter})


def _supervised(recipe: Values, examples: int) -> Values:
    """Return one stream of batches: an epoch is the training set, and the recipe sets the number of epochs."""
    training = recipe["training"]
    batch = 128 if recipe["network"]["name"] == "mnist-cnn" else 100
    epoch = max(examples // batch, 1)
    epochs = training["updates"] // training["epoch_updates"]
    return {"training": {"labeled": batch, "unlabeled": 0, "epoch_updates": epoch, "updates": epochs * epoch}}
