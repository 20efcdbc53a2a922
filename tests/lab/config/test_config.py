import pytest
import yaml

from advdrop import choices as library
from advdrop.lab import choices
from advdrop.lab.config.config import RunConfig, parse_method
from advdrop.lab.config.recipes import DATASETS, resolve
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import ConfigError, overrides

SECTIONS = ("data", "network", "objective", "optimizer", "training", "engine")
SHAPES = {"svhn": (3, 32, 32), "cifar10": (3, 32, 32), "digits": (1, 8, 8)}


def resolved(*settings, dataset="mnist", **options):
    shape = options.pop("shape", SHAPES.get(dataset, (1, 28, 28)))
    return resolve(
        dataset, shape=shape, examples=5000, settings=overrides(settings), **{"method": "vadd-kl", **options}
    )


def complaint(*settings, **options):
    with pytest.raises(ConfigError) as error:
        resolved(*settings, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def value(config, key):
    for name in key.split("."):
        config = getattr(config, name.replace("-", "_"))
    return config


@pytest.mark.parametrize(("preset", "method", "labels"), [("paper", "dropout", 100), ("authors", "vadd-qe+vat", "all")])
@pytest.mark.parametrize("dataset", [*DATASETS, "my/täble.npz"])
def test_what_is_dumped_is_read(tmp_path, preset, dataset, method, labels):
    shape = (7,) if dataset not in DATASETS else SHAPES.get(dataset, (1, 28, 28))
    config = resolve(
        dataset, shape=shape, examples=5000, preset=preset, method=method, labels=labels, data_dir=tmp_path / "dätä"
    )
    path = tmp_path / "config.yaml"
    path.write_bytes(config.dump().encode())
    assert RunConfig.read(path) == config
    assert set(yaml.safe_load(config.dump())) == set(RunConfig.model_fields)
    for section in SECTIONS:  # nothing is left to a default of another version
        written = yaml.safe_load(config.dump())[section]
        assert set(written) == set(type(getattr(config, section)).model_fields)
    for term, written in yaml.safe_load(config.dump())["objective"]["terms"].items():
        assert set(written) == set(METHODS[term].model_fields)


CHOICES = {
    "data.scaling": choices.Scaling,
    "data.padding": choices.Padding,
    "network.granularity": library.Granularity,
    "network.scale": library.Scale,
    "network.norm": choices.Norm,
    "objective.terms.vadd-kl.order": library.Order,
    "objective.terms.vadd-kl.ties": library.Ties,
    "objective.terms.vadd-kl.budget": library.BudgetOf,
    "objective.terms.vadd-kl.noise": library.Noise,
    "objective.terms.sadd.noise": library.Noise,
    "objective.terms.vat.noise": library.Noise,
    "objective.terms.at.noise": library.Noise,
    "objective.terms.at.norm": library.Ball,
}


def test_choices_are_those_of_the_library():
    options = {"dataset": "svhn", "method": "vadd-kl+sadd+vat+at"}
    for key, allowed in CHOICES.items():
        for choice in allowed.__args__:
            assert value(resolved(f"{key}={choice}", **options), key) == choice
        assert complaint(f"{key}=sideways", **options).startswith(f"{key} should be ")


def test_updating_takes_passes_of_the_library():
    every = library.PassName.__args__
    assert resolved(f"objective.updating=[{','.join(every)}]").objective.updating == every
    assert complaint("objective.updating=[clear]").startswith("objective.updating.0 should be 'labeled', 'clean'")


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("objectiv.ramp=1", "objectiv (did you mean objective?)"),
        ("data.zac=true", "data.zac (did you mean zca?)"),
        ("network.kernal=1", "network.kernal (did you mean kernel?)"),
        ("network.detla=1", "network.detla (did you mean delta?)"),
        ("vadd-kl.weigth=1", "objective.terms.vadd-kl.weigth (did you mean weight?)"),
        ("objective.terms.vadd-kl.step=1", "objective.terms.vadd-kl.step (did you mean steps?)"),
        ("objective.terms.vatt.epsilon=1", "objective.terms.vatt (did you mean vat?)"),
        ("vatt.epsilon=1", "vatt (did you mean vat?)"),
        ("delta=1", "delta (did you mean network.delta?)"),  # another section's
        ("vadd-kl.delta=1", "objective.terms.vadd-kl.delta (did you mean network.delta?)"),
        ("optimizer.learning_rat=1", "optimizer.learning_rat (did you mean learning_rate?)"),
        ("training.update=1", "training.update (did you mean updates?)"),
        ("engine.precison=32", "engine.precison (did you mean precision?)"),
        ("network.hidden=3", "network.hidden;"),  # another network's: no option here, and nothing close
        ("vadd-kl.epsilon=3", "objective.terms.vadd-kl.epsilon (did you mean optimizer.epsilon?);"),
        ("vadd-kl.xi=3", "objective.terms.vadd-kl.xi;"),
        ("mlp.hidden=3", "mlp;"),
        ("engine.xyz=3", "engine.xyz;"),
    ],
)
def test_an_unknown_key_is_named_with_the_nearest_one(setting, hint):
    assert complaint(setting).startswith(f"there is no option {hint}")


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        (["network.delta=1.5"], {}, "network.delta should be less than or equal to 1, got 1.5"),
        (["network.delta=-0.1"], {}, "network.delta should be greater than or equal to 0, got -0.1"),
        (["network.delta=.nan"], {}, "network.delta should be a finite number, got nan"),
        (["optimizer.learning_rate=.inf"], {}, "optimizer.learning_rate should be a finite number, got inf"),
        (["optimizer.learning_rate=0"], {}, "optimizer.learning_rate should be greater than 0, got 0"),
        (
            ["objective.terms.vadd-kl.weight=.nan"],
            {},
            "objective.terms.vadd-kl.weight should be a finite number, got nan",
        ),
        (
            ["objective.terms.vadd-kl.weight=-1"],
            {},
            "objective.terms.vadd-kl.weight should be greater than or equal to 0",
        ),
        (["network.delta=much"], {}, "network.delta should be a valid number"),
        (["network.delta=true"], {}, "network.delta should be a number, got True"),
        (["training.updates=yes"], {}, "training.updates should be a number, got True"),
        (["objective.terms.vadd-kl.weight=true"], {}, "objective.terms.vadd-kl.weight should be a number, got True"),
        (["training.updates=2.5"], {}, "training.updates should be a valid integer"),
        (["training.updates=0"], {}, "training.updates should be greater than or equal to 1, got 0"),
        (["training.unlabeled=-1"], {}, "training.unlabeled should be greater than or equal to 0"),
        (["data.pad_crop=-1"], {}, "data.pad_crop should be greater than or equal to 0"),
        (["data.zca=maybe"], {}, "data.zca should be a valid boolean"),
        (["optimizer.beta1=1"], {}, "optimizer.beta1 should be less than 1, got 1"),
        (
            ["sajjadi.passes=1"],
            {"method": "sajjadi"},
            "objective.terms.sajjadi.passes should be greater than or equal to 2",
        ),
        (["temporal.momentum=1"], {"method": "temporal"}, "objective.terms.temporal.momentum should be less than 1"),
        (["vat.epsilon=0"], {"method": "vat+pi"}, "objective.terms.vat.epsilon should be greater than 0, got 0"),
        (
            ["vadd-kl.search=probe", "vadd-kl.ties=dropped"],
            {},
            "objective.terms.vadd-kl: order=largest and ties=dropped are for the first-order search, not for probe",
        ),
        (["engine.precision=64"], {}, "engine.precision should be 'auto', '32', 'bf16' or 'fp16', got '64'"),
        (["network.name=mpl"], {}, "network.name is 'mpl', which is unknown (did you mean mlp?); there are mnist-cnn,"),
        (
            ["training.updates=" + "9" * 30],
            {},
            "training.updates should be less than or equal to 1000000000, got 99999",
        ),
        (
            ["training.epoch_updates=1000000001"],
            {},
            "training.epoch_updates should be less than or equal to 1000000000",
        ),
        (
            ["vat.iterations=1001"],
            {"method": "vat"},
            "objective.terms.vat.iterations should be less than or equal to 1000, got 1001",
        ),
        (
            ["vadd-kl.steps=1001"],
            {"method": "vadd-kl"},
            "objective.terms.vadd-kl.steps should be less than or equal to 1000, got 1001",
        ),
        (["network=mlp"], {}, "network should be a section of options, got 'mlp'"),
        (["network=null"], {}, "network should be a section of options, got None"),
        (["data=1"], {}, "data should be a section of options, got 1"),
        (["objective.terms=1"], {}, "objective.terms should be a section of options, got 1"),
        (["vadd-kl=1"], {}, "objective.terms.vadd-kl should be a section of options, got 1"),
        (
            ["vat.weight=1"],
            {},
            "objective.terms has options of vadd-kl, vat, but the method vadd-kl has the terms vadd-kl; choose the",
        ),
        (
            ["vat.weight=1"],
            {"method": "dropout"},
            "objective.terms has options of vat, but the method dropout has the terms none",
        ),
        (["vadd-kl=null"], {}, "objective.terms has options of none, but the method vadd-kl has the terms vadd-kl"),
        (["engine.devices=3"], {}, "training.labeled=128 cannot be divided among 1 nodes with 3 devices in 1 parts"),
        (["engine.accumulate=2", "engine.nodes=4", "training.unlabeled=20"], {}, "training.unlabeled=20 cannot be"),
        ([], {"labels": "some"}, "labels must be a number of examples or 'all', got 'some'"),
        ([], {"labels": 0}, "labels must be a number of examples or 'all', got 0"),
        ([], {"labels": "-3"}, "labels must be a number of examples or 'all', got '-3'"),
        ([], {"labels": True}, "labels must be a number of examples or 'all', got True"),
        ([], {"labels": 2.5}, "labels must be a number of examples or 'all', got 2.5"),
        ([], {"seed": -1}, "seed should be greater than or equal to 0, got -1"),
        ([], {"seed": 2**62}, f"seed should be less than {2**62}"),
        ([], {"method": "vad-kl"}, "method has 'vad-kl', which is unknown (did you mean vadd-kl?); there are dropout,"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(settings, options, message):
    assert complaint(*settings, **options).startswith(message)


@pytest.mark.parametrize(
    ("setting", "key", "expected"),
    [
        ("optimizer.learning_rate=1e-4", "optimizer.learning_rate", 1e-4),  # YAML 1.1 reads text
        ("vadd-kl.weight=2", "objective.terms.vadd-kl.weight", 2.0),
        ("objective.terms.vadd-kl.weight=2", "objective.terms.vadd-kl.weight", 2.0),
        ("vadd-kl={steps: 7}", "objective.terms.vadd-kl.steps", 7),
        ("training.updates=1_000", "training.updates", 1000),
        ("data.zca=yes", "data.zca", True),
        ("engine.precision=32", "engine.precision", "32"),
        ("engine.precision=bf16", "engine.precision", "bf16"),
        ("objective.updating=[]", "objective.updating", ()),
        ("network={name: mlp, hidden: [5]}", "network.hidden", (5,)),
        ("network.granularity=channel", "network.granularity", "channel"),
    ],
)
def test_what_is_typed_becomes_what_is_meant(setting, key, expected):
    assert value(resolved(setting), key) == expected


def test_text_of_a_number_of_labels_is_a_number():
    assert resolved(labels="20").labels == 20


def test_what_is_missing_is_named():
    whole = resolved().model_dump()
    for key in ("dataset", "labels", "method", "preset", "seed", "data", "network", "objective", "training"):
        with pytest.raises(ConfigError, match=f"^{key} is missing$"):
            RunConfig.of({name: value for name, value in whole.items() if name != key})
    with pytest.raises(ConfigError, match=r"^network\.name is missing; there are mnist-cnn"):
        RunConfig.of({**whole, "network": {"p": 0.5}})
    with pytest.raises(ConfigError, match=r"^objective\.updating is missing$"):
        RunConfig.of(whole | {"objective": {"terms": {"vadd-kl": {}}}})
    with pytest.raises(ConfigError, match=r"^objective\.terms is missing$"):
        RunConfig.of(whole | {"objective": {"updating": []}})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: [", "is not YAML: while parsing"),
        (b"\x00", "is not YAML"),
        (b"\xff\xff", "is not YAML"),
        (b"", "holds no configuration"),
        (b"- 1", "holds no configuration"),
        (b"datset: mnist", "there is no option datset (did you mean dataset?)|dataset is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path, content, message):
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(ConfigError) as error:
        RunConfig.read(tmp_path / "config.yaml")
    assert any(part in str(error.value) for part in message.split("|"))
    assert "\n" not in str(error.value)


def test_a_configuration_does_not_change():
    config = resolved()
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1
    with pytest.raises(ValueError, match="frozen"):
        config.network.delta = 0.1
    with pytest.raises(ValueError, match="frozen"):
        config.objective.terms.vadd_kl.weight = 2.0


@pytest.mark.parametrize(
    ("method", "terms"),
    [
        ("dropout", ("dropout",)),
        ("vadd-kl", ("vadd-kl",)),
        (" VAdD_QE+vat ", ("vadd-qe", "vat")),
        ("vat + pi+entropy", ("vat", "pi", "entropy")),
    ],
)
def test_a_method_is_a_sum_of_terms(method, terms):
    assert parse_method(method) == terms
    assert resolved(method=method).method == "+".join(terms)


def test_every_term_is_a_method():
    assert all(parse_method(term) == (term,) for term in ("dropout", *METHODS))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("", "method has '', which is unknown"),
        ("vat+", "method has ''"),
        ("vadd", r"method has 'vadd', which is unknown \(did you mean vadd-"),
        ("vat+pi+VAT", "has vat twice; set its weight instead"),
        ("dropout+vat", "dropout is the method without any term"),
    ],
)
def test_a_method_that_is_none_is_refused(method, message):
    with pytest.raises(ConfigError, match=message):
        parse_method(method)


def test_differences_name_each_key_once():
    config = resolved()
    assert config.differences(config) == []
    assert config.differences(resolved("network.delta=0.1", "data.flip=true", seed=3)) == [
        "data.flip",
        "network.delta",
        "seed",
    ]
    assert config.differences(resolved("vadd-kl.steps=7")) == ["objective.terms.vadd-kl.steps"]
    assert config.differences(resolved("network.name=mlp")) == [
        "network.batch_norm",
        "network.dropout",
        "network.earlier",
        "network.hidden",
        "network.kernel",
        "network.name",
    ]
    assert resolved(method="vat").differences(resolved(method="vadd-kl")) == [
        "method",
        "objective.terms.vadd-kl",
        "objective.terms.vat",
    ]
