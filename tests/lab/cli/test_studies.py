"""``advdrop reproduce figure2``, ``figure3``, ``theory`` and ``advdrop explain``, as a user meets them."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sklearn import datasets
from sklearn.utils import Bunch

from advdrop.lab.cli import studies
from advdrop.lab.cli.main import main
from advdrop.lab.data.sources import load
from advdrop.lab.records.measurement import Measurement, measurements
from advdrop.lab.studies import autoencoders, paths


@pytest.fixture
def _short(monkeypatch):
    for name, settings in autoencoders.VARIANTS.items():
        monkeypatch.setitem(autoencoders.VARIANTS, name, replace(settings, hidden=16, updates=20, batch=16))
    monkeypatch.setattr(studies, "DATASETS", (*studies.DATASETS, "digits"))  # read in no time
    monkeypatch.setattr(paths, "DELTAS", (0.0, 0.1))
    monkeypatch.setattr(paths, "PROBLEMS", 5)
    monkeypatch.setattr(paths, "PENALTIES", (0.01, 1.0))
    whole = datasets.load_diabetes()
    few = Bunch(data=whole.data[:30, :4], target=whole.target[:30], feature_names=whole.feature_names[:4])
    monkeypatch.setattr(datasets, "load_diabetes", lambda: few)


@pytest.mark.usefixtures("_short", "quick_processes")
def test_autoencoders_become_measurements_figures_and_a_page(capsys):
    words = ["--columns", "digits", "--seeds", "2", "--only", "dropout,adversarial"]
    assert main(["reproduce", "figure2", *words, "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\| adversarial dropout +\| 0\.\d{4} ± 0\.\d{4} +\|", said)
    assert "Fewer dead units with adversarial dropout than with dropout: " in said
    found = sorted(path.name for path in Path("results").rglob("*.json"))
    assert found == ["adversarial-0.json", "adversarial-1.json", "dropout-0.json", "dropout-1.json"]
    first = Measurement.read(Path("results/autoencoder/digits/dropout-0.json"))
    assert first.picture
    assert first.settings["updates"] == 20
    assert first.machine["threads"] == 1
    assert not Measurement.read(Path("results/autoencoder/digits/dropout-1.json")).picture
    ElementTree.parse("runs/reproduce/figure2-digits-0.svg")
    assert "Figure 2" in Path("runs/reproduce/figure2.html").read_text()

    # The second figure is made of the same autoencoders, and nothing is trained again.
    before = {path: path.stat().st_mtime_ns for path in Path("runs").rglob("autoencoder-*.json")}
    assert main(["reproduce", "figure3", *words]) == 0
    assert "the same as in results/autoencoder/digits/dropout-0.json" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in Path("runs").rglob("autoencoder-*.json")}
    assert len(list(Path("runs/reproduce").glob("figure3-digits-*.svg"))) == 2

    # The page of everything has them too.
    assert main(["report", "results", "-o", "all.html"]) == 0
    assert "written to all.html: 0 tables and 1 study from 4 records" in capsys.readouterr().out
    for path in Path("runs").rglob("autoencoder-*.json"):
        path.unlink()
    assert main(["reproduce", "figure2", *words, "--missing", "--dry-run"]) == 0
    assert "0 of 4 autoencoders to train: none" in capsys.readouterr().out


@pytest.mark.usefixtures("_short")
def test_the_theorem_becomes_a_measurement_and_figures(capsys):
    assert main(["reproduce", "theory"]) == 0
    said = capsys.readouterr().out
    assert "with the linearized mask: holds" in said
    assert "7 of 7 converged" in said
    (found,) = measurements(Path("results"))
    assert found.series["training/parameter"] == [0.0, 0.1]
    assert len(list(Path("runs/reproduce").glob("theory-diabetes-*.svg"))) == 5
    assert main(["reproduce", "theory"]) == 0
    assert "the same as in results/linear-regression/diabetes/paths-0.json" in capsys.readouterr().out


def test_dry_runs_write_nothing(capsys):
    for name in ("figure2", "theory"):
        assert main(["reproduce", name, "--dry-run"]) == 0
    assert "12 of 12 autoencoders to train: none seed 0, dropout seed 0" in capsys.readouterr().out
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["figure2", "--columns", "mnist6k"], "--columns has 'mnist6k'"),
        (["figure2", "--only", "dropot"], "did you mean dropout"),
        (["figure3", "--seeds", "0"], "'--seeds': Input should be greater than or equal to 1, got '0'"),
    ],
)
def test_what_is_asked_wrongly_is_told(typed, message, capsys):
    assert main(["reproduce", *typed]) == 2
    assert message in capsys.readouterr().err
    assert not list(Path().iterdir())


def test_a_measurement_that_was_changed_is_refused(capsys):
    path = Path("results/autoencoder/mnist5k/dropout-0.json")
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"format": "advdrop measurement 1", "digest": "0"}))
    assert main(["report", "results"]) == 2
    assert "dropout-0.json is not a record" in capsys.readouterr().err


def test_a_place_without_anything_is_told(capsys):
    Path("empty").mkdir()
    assert main(["report", "empty"]) == 2
    assert "no record, no measurement and no finished run in empty" in capsys.readouterr().err


def test_the_list_has_the_figures(capsys):
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert "figure2: " in said
    assert "theory: " in said


@pytest.fixture
def run():
    """A small run on the 8 x 8 digits."""
    typed = ["train", "small", "--dataset", "digits", "--labels", "50", "--updates", "5", "--quiet"]
    assert main([*typed, "--set", "network.delta=0.2"]) == 0
    return Path("runs/small")


def test_an_image_is_explained(run, capsys):
    capsys.readouterr()
    assert main(["explain", str(run), "--image", "3"]) == 0
    said = capsys.readouterr().out
    assert re.match(r"Test image 3 of digits: \d\. \d+ units, \d+ of them kept by the sampled mask\.", said)
    assert "flipped units, the largest gain first: " in said
    root = ElementTree.parse("explain-3.svg").getroot()
    assert root.tag.endswith("svg")
    first = Path("explain-3.svg").read_text()
    assert main(["explain", str(run), "--image", "4", "-o", "other/four.svg"]) == 0
    assert Path("other/four.svg").read_text() != first


def test_what_cannot_be_explained_is_told(run, capsys):
    for typed, message in (
        ([str(run), "--image", "99999"], "--image must be from 0 to"),
        (["nowhere"], "nowhere is not a run"),
    ):
        assert main(["explain", *typed]) == 2
        assert message in capsys.readouterr().err
    assert not list(Path().glob("*.svg"))


def test_runs_are_audited_side_by_side(run, capsys):
    typed = ["train", "other", "--dataset", "digits", "--labels", "50", "--updates", "5", "--quiet", "--method", "pi"]
    assert main(typed) == 0
    capsys.readouterr()
    assert main(["audit", str(run), "runs/other", "--images", "30"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\| units lost \| vadd-qe: worst +\| vadd-qe: random +\| pi: worst", said)
    assert re.search(r"^\| 4 +\| ", said, re.MULTILINE)
    ElementTree.parse("audit.svg")
    assert main(["audit", "runs", "--images", "10", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert {value["name"] for value in values} == {"vadd-qe", "pi"}
    assert len(values[0]["fewest"]) == len(values[0]["sample"]) == 10
    classes = load("digits").test.y[values[0]["sample"]]
    assert sorted(classes.tolist()) == list(range(10))  # one of each class
    assert values[0]["sample"] == values[1]["sample"]


def test_all_layers_of_a_run_are_ranked(run, capsys):
    capsys.readouterr()
    typed = ["audit", str(run), "--images", "20", "--layers", "all", "--faults", "stuck:1,bit:exponent"]
    assert main(typed) == 0
    said = capsys.readouterr().out
    assert re.search(r"\| layer +\| kind +\| units +\| bypassed \| 0 lost \| 1 lost", said)
    assert re.search(r"\| layer \| fault +\| 1 +\| 2 ", said)
    assert "| stuck at 1 " in said
    assert "| bit flip (exponent) |" in said
    ElementTree.parse("audit.svg")
    assert main([*typed, "--json"]) == 0
    (values,) = json.loads(capsys.readouterr().out)
    means = [layer["mean_worst"] for layer in values["layers"]]
    assert len(means) > 1
    assert means == sorted(means)
    name = values["layers"][0]["layer"]["name"]
    assert main(["audit", str(run), "--images", "10", "--layers", name, "--json"]) == 0
    assert [layer["layer"]["name"] for layer in json.loads(capsys.readouterr().out)[0]["layers"]] == [name]


def test_runs_of_one_name_keep_their_figures_apart(run, capsys):
    shutil.copytree(run, "other/small")
    capsys.readouterr()
    assert main(["audit", str(run), "other/small", "--images", "10", "--layers", "4"]) == 0
    assert re.findall(r"^the figure is (.*)", capsys.readouterr().out, re.MULTILINE) == [
        "audit-runs-small.svg",
        "audit-other-small.svg",
    ]
    assert "runs/small" in Path("audit-runs-small.svg").read_text()
    assert "other/small" in Path("audit-other-small.svg").read_text()


def test_what_cannot_be_audited_is_told(run, capsys):
    for typed, message in (
        ([str(run), "--images", "0"], "'--images': Input should be greater than or equal to 1, got '0'"),
        (["nowhere"], "nowhere is not a run"),
        ([str(run), "--faults", "sign"], "--faults are measured in layers: add --layers all"),
        ([str(run), "--layers", "all", "--faults", "sing"], "there is no fault 'sing'"),
        ([str(run), "--layers", "hed"], "there is no module 'hed'"),
    ):
        assert main(["audit", *typed]) == 2
        assert message in capsys.readouterr().err
