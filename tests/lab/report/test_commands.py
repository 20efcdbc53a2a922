"""The commands of a report make the runs of its records again."""

import shlex
import subprocess

import pytest

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.recipes import resolve
from advdrop.lab.config.values import merged, overrides
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.commands import _as_yaml, more_seeds, run_again, shell
from advdrop.lab.suites.suite import Suite
from ledger import EXAMPLES, SHAPE, loose_of, run_of, suite_of


def table(suite, *records):
    (found,) = results_of(records, {suite.key: suite})
    return found


def test_rows_are_run_again_with_their_columns_and_seeds(suite):
    runs = [*(run_of(suite, "vadd", seed) for seed in range(3)), run_of(suite, "pi"), run_of(suite, "pi", column="all")]
    runs += [run_of(suite, "dropout"), run_of(suite, "dropout", 1, column="all")]
    found, start = table(suite, *runs), "advdrop reproduce small.yaml --protocol short"
    assert run_again(found) == [
        f"{start} --only dropout --columns 20 --seeds 1",
        f"{start} --only dropout --columns all --seeds 2",
        f"{start} --only pi --columns 20,all --seeds 1",
        f"{start} --only vadd --columns 20 --seeds 3",
    ]
    authors = table(suite, run_of(suite, preset="authors"))
    assert run_again(authors) == [f"{start} --preset authors --only vadd --columns 20 --seeds 1"]


@pytest.mark.parametrize(
    ("used", "option"),
    [
        ([None, None], ""),
        ([None, "AVX2"], " --instructions avx2"),
        (["AVX2", "AVX2"], " --instructions avx2"),
        (["AVX2", "AVX512"], ""),
        (["AVX2", "AVX512", "AVX2"], " --instructions avx2"),
        (["AVX512", None], ""),
    ],
)
def test_records_are_run_again_with_the_instructions_that_most_of_them_name(used, option, suite):
    machines = [{"instructions": name} if name else {} for name in used]
    found = table(suite, *(run_of(suite, "pi", seed, machine=machine) for seed, machine in enumerate(machines)))
    (command,) = run_again(found)
    words = "advdrop reproduce small.yaml --protocol short --only pi --columns 20"
    assert command == f"{words} --seeds {len(used)}{option}"


def test_a_table_of_the_package_is_run_by_its_name_and_a_changed_copy_by_its_file(tmp_path):
    own = suite_of(tmp_path, name="table1")
    assert run_again(table(own, run_of(own)))[0].startswith("advdrop reproduce table1.yaml ")
    paper = Suite.load("table1")
    record = run_of(paper, "pi", column="1000", preset="paper")
    assert run_again(table(paper, record))[0].startswith("advdrop reproduce table1 ")


def test_one_command_runs_rows_with_the_same_columns_and_seeds_and_nothing_else(suite):
    places = [("pi", "20", 0), ("pi", "20", 1), ("pi", "all", 0), ("vadd", "20", 0), ("vadd", "20", 1)]
    found = table(suite, *(run_of(suite, row, seed, column=column) for row, column, seed in places))
    commands = run_again(found)
    assert len(commands) == 2
    made = []
    for command in commands:
        words = shlex.split(command)
        given = dict(zip(words[3::2], words[4::2], strict=True))
        rows, columns = given["--only"].split(","), given["--columns"].split(",")
        cells = suite.cells(given["--protocol"], rows, columns, int(given["--seeds"]))
        made += [(key.row, key.column, key.seed) for key in cells]
    assert sorted(made) == sorted(places)


def test_runs_of_no_suite_have_one_command_or_one_for_each_seed():
    (found,) = results_of([loose_of(seed=0), loose_of(seed=1), loose_of("pi", 4)])
    what = "--dataset digits --labels 20 --preset robust --updates 40"
    assert sorted(run_again(found)) == [
        f"advdrop compare --methods vadd-kl {what} --seeds 2",
        f"advdrop train --method pi {what} --seed 4",
    ]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"network": {"delta": 0.1}, "engine": {"precision": "bf16", "clip": 2.0}, "training": {"labeled": 7}},
        {"network": {"name": "mnist-cnn", "dropout": 0.5}},
        {"network": {"name": "mlp", "hidden": [7, 5]}, "objective": {"terms": {"vadd-kl": {"weight": 1e-5}}}},
        {"objective": {"terms": {"vat": {"iterations": 2}}, "updating": []}},
        {"optimizer": {"ramp_up": 0.1}, "data": {"standardize": False, "scaling": "none"}},
    ],
)
@pytest.mark.parametrize("labels", [20, "all"])
def test_the_command_makes_the_same_configuration(settings, labels):
    about = {"shape": SHAPE, "examples": EXAMPLES, "labels": labels}
    asked = merged({"training": {"updates": 40}}, settings)
    method = "vadd-kl+vat"
    config = resolve("digits", **about, method=method, settings=asked)
    record = loose_of(method, labels=labels).model_copy(update={"config": config.model_dump(mode="json")})
    (found,) = results_of([record])
    (command,) = run_again(found)
    words = iter(shlex.split(command)[2:])
    options = list(zip(words, words, strict=True))
    given = {key.removeprefix("--"): value for key, value in options if key != "--set"}
    assert given.pop("methods") == method
    assert given.pop("seeds") == "1"
    typed = merged(
        {"training": {"updates": int(given.pop("updates"))}},
        overrides(value for key, value in options if key == "--set"),
    )
    assert given == {"dataset": "digits", "labels": str(labels), "preset": config.preset}
    again = resolve("digits", **about, method=method, preset=given["preset"], settings=typed)
    assert again == RunConfig.of(record.config)
    assert ("--set" in command) == bool(settings)


def test_the_command_knows_that_some_examples_have_no_label():
    about = {"shape": SHAPE, "examples": EXAMPLES, "labels": "all", "half_labeled": True, "method": "pi"}
    config = resolve("digits", **about, preset="authors", updates=40, settings={"objective": {"entropy": 0.0}})
    record = loose_of("pi", labels="all").model_copy(update={"half_labeled": True})
    (found,) = results_of([record.model_copy(update={"config": config.model_dump(mode="json")})])
    (command,) = run_again(found)
    assert shlex.split(command)[-4:] == ["--set", "objective.entropy=0.0", "--seeds", "1"]
    assert command.count("--set") == 1


def started(record, run):
    start = {"start": {"run": run, "sha256": "f" * 64}}
    return record.model_copy(update={"config": merged(record.config, start)}).sealed()


def test_a_run_that_started_with_the_weights_of_another_is_run_again_with_them():
    runs = [started(loose_of(seed=seed), "/my runs/first") for seed in range(2)]
    for record in runs:
        (found,) = results_of([record])
        (command,) = run_again(found)
        words = shlex.split(command)
        assert words[:4] == ["advdrop", "train", "--method", "vadd-kl"]
        assert words[words.index("--from") + 1] == "/my runs/first"
        assert words[-2:] == ["--seed", str(record.seed)]
        # The other run may have other options of the network, which would be taken.
        options = overrides(words[place + 1] for place, word in enumerate(words) if word == "--set")
        assert options == {"network": {**record.config["network"]}}
    (found,) = results_of(runs)
    assert len(run_again(found)) == 2  # compare does not have --from
    assert [shlex.split(command)[-1] for command in more_seeds(found, 3)] == ["0", "1", "2"]
    assert all("--from '/my runs/first'" in command for command in more_seeds(found, 3))


@pytest.mark.parametrize("name", ["my data/$(rm).npz", "<script>`x`'\\\n```é.npz", "it's"])
def test_a_shell_reads_the_word_as_it_was(name):
    line = shell(["printf", "%s", name])
    assert "\n" not in line
    assert "<" not in line
    assert "```" not in line
    assert subprocess.run(["bash", "-c", line], capture_output=True, check=True, timeout=20).stdout.decode() == name


@pytest.mark.parametrize("text", ["[", "&a [*a]", "!!timestamp x", "1", "cpu"])
def test_a_setting_of_any_text_is_read_back(text):
    assert overrides([f"engine.accelerator={_as_yaml(text)}"]) == {"engine": {"accelerator": text}}


def test_more_seeds_of_rows_with_the_same_settings_are_one_command(suite):
    (found,) = results_of([loose_of("dropout"), loose_of("vadd-kl"), loose_of("pi", 3)])
    what = "--dataset digits --labels 20 --preset robust --updates 40 --seeds 5"
    assert more_seeds(found) == [f"advdrop compare --methods dropout,vadd-kl,pi {what}"]
    runs = [run_of(suite, "pi"), run_of(suite, "vadd", column="all")]
    assert more_seeds(table(suite, *runs), 7) == [
        "advdrop reproduce small.yaml --protocol short --only pi,vadd --columns 20,all --seeds 7"
    ]
    authors = table(suite, run_of(suite, preset="authors"))
    assert more_seeds(authors)[0].startswith(
        "advdrop reproduce small.yaml --protocol short --preset authors --only vadd"
    )
