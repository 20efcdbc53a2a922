"""The README is true: its code runs, its commands parse, its tables are made from the records."""

import json
import re
import shlex
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_wine
from torch import nn

import advdrop
from advdrop.lab.cli.compare import results_table
from advdrop.lab.cli.main import parse
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.sections import in_words
from ledger import run_of, suite_of
from page import IMAGES, PAGES, TABLES, filled, images

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_it_begins_with_two_commands():
    first = re.search(r"```\w*\n(.*?)```", README, re.DOTALL)[1]
    commands = [line.split("#")[0].strip() for line in first.splitlines()]
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    assert all(f"\n{command.removeprefix('make ')}: setup\n" in makefile for command in commands)


def test_three_lines_train_a_torch_model():
    torch.manual_seed(0)
    layers = OrderedDict(
        conv=nn.Conv2d(1, 40, 3), avgpool=nn.AdaptiveAvgPool2d(1), flat=nn.Flatten(), out=nn.Linear(40, 3)
    )
    x, y, u = torch.rand(4, 1, 8, 8), torch.tensor([0, 1, 2, 0]), torch.rand(6, 1, 8, 8)
    network = nn.Sequential(layers)
    keys = list(network.state_dict())
    names = {"advdrop": advdrop, "model": network, "x": x, "y": y, "u": u, "update": 1, "updates": 2}
    assert len(BLOCKS[0].splitlines()) == 3
    exec(BLOCKS[0], names)
    names["loss"].backward()
    assert layers["conv"].weight.grad.abs().sum() > 0
    assert names["model"] is network
    assert list(network.state_dict()) == keys
    assert advdrop.remove(network) is network
    assert advdrop.places(network, x)[1].name == "avgpool"


def test_four_lines_fit_an_estimator():
    x, y = load_wine(return_X_y=True)
    names = {"X": x, "y": np.where(np.arange(len(y)) % 5 == 0, y, -1), "X_new": x}
    lines = [line for line in BLOCKS[1].splitlines() if line]
    assert len(lines) == 4
    exec("\n".join(lines[:-1]), names)
    assert (eval(lines[-1], names) == y).mean() > 0.9


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_made_from_the_records(name):
    page = (ROOT / name).read_text()
    assert filled(page) == page
    assert page.count("<!-- ") == 2 * len(re.findall("<!-- [a-z0-9-]+ -->\\n[|#!\\w]", page)) > 0


def test_the_answer_is_three_sentences_with_the_numbers_of_the_table(tmp_path):
    suite = suite_of(tmp_path)
    runs = [run_of(suite, "vadd", seed, (40.0, error)) for seed, error in enumerate((4.0, 4.1, 4.2))]
    runs += [run_of(suite, "pi", seed, (40.0, error)) for seed, error in enumerate((6.0, 6.1, 6.3))]
    (results,) = results_of(runs, {suite.key: suite})
    first, second, third = in_words(results)
    assert first == "With 20 labels, the test error of VAdD (KL) is lower than that of Π model by 2.03 ± 0.14."
    assert second == (
        "Of 2 comparisons, 1 held (VAdD (KL) below Π model, 20 labels), 0 turned out the other way around, and 1 are "
        "undecided."
    )
    assert third == (
        "Of 1 errors that have a number of the paper, 1 are higher here and 0 lower by more than their 95 % interval, "
        "after 40 updates instead of 1,000."
    )
    chance = [run_of(suite, row, seed, (40.0, 4.0 + seed * (row == "pi"))) for row in ("vadd", "pi") for seed in (0, 1)]
    assert in_words(*results_of(chance, {suite.key: suite}))[0].endswith(
        "which may be chance: 2 seeds would miss a true difference of 8.17 one time in five."
    )


def test_pictures_are_made_from_the_records():
    drawn = images()
    drawn_once = {"explain.svg", "passes.svg"}  # of a trained network, and a diagram without numbers
    assert {path.name for path in IMAGES.glob("*.svg")} == {*drawn, *drawn_once}
    for name, text in drawn.items():
        assert (IMAGES / name).read_text() == text, name


def test_pictures_of_the_pages_exist_and_are_described():
    for name in PAGES:
        for described, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / name).read_text()):
            assert len(described) > 20, target
            assert ((ROOT / name).parent / target).is_file(), target


def test_every_table_is_shown_somewhere():
    pages = "".join((ROOT / name).read_text() for name in PAGES)
    assert all(f"<!-- {name} -->" in pages for name in TABLES)


def test_demo_table_is_made_from_the_record():
    results = json.loads((ROOT / "results/demo.json").read_text())
    assert results_table(results) in README
    assert results["vadd-qe"][0]["test_error_percent"] < results["dropout"][0]["test_error_percent"]


def test_every_command_of_the_readme_parses():
    """Its options exist; other tests check what they do."""
    commands = re.findall(r"^advdrop (.+?)(?:  +#.*)?$", README, re.MULTILINE)
    assert len(commands) > 6
    for command in commands:
        parse(shlex.split(command))
