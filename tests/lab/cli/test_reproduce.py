"""``advdrop reproduce`` and ``advdrop report``, as a user meets them."""

import json
import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from advdrop.lab.cli import reproduce
from advdrop.lab.cli.main import main
from advdrop.lab.engine import RunDirectory
from advdrop.lab.records.record import ERROR, Ledger, Record
from processes import ended, mortal_advdrop
from suites import small_suite

RESULTS = Path(__file__).parents[3] / "results"


@pytest.fixture
def suite(tmp_path):
    return str(small_suite(tmp_path))


def told(folder="results"):
    """What a ledger says, without the clock."""
    return {
        (record.row, record.seed): (record.curve[ERROR], record.config, record.split_checksum)
        for record in Ledger(Path(folder)).records()
    }


def test_a_suite_becomes_records_a_table_and_a_page(suite, capsys, tmp_path):
    assert main(["reproduce", suite, "--jobs", "1", "--only", "dropout,random"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\| Plain +\| 20.00 ± 1.00 +\| \d+\.\d\d ± \d\.\d\d +\| 2 \|", said)
    assert re.search(r"\| VAdD \(KL\) +\| \*\*15.00 ± 1.00\*\* \| not run", said)
    assert "Plain, 30 labels: higher than the paper by" in said
    files = sorted(path.relative_to(tmp_path) for path in (tmp_path / "results").rglob("*.json"))
    places = [f"results/small/short-paper/few/{row}-{seed}.json" for row in ("dropout", "random") for seed in (0, 1)]
    assert [str(path) for path in files] == places
    record = Record.read(files[0])
    run = next(Path("runs/reproduce").glob("digits-30-dropout-0-*"))
    assert record.test_error_percent == RunDirectory.open(run).result[ERROR]
    assert record.config["data_dir" if "data_dir" in record.config else "seed"] == 0  # no path of this machine
    assert str(tmp_path) not in files[0].read_text()
    assert "<title>A small suite" in (tmp_path / "runs/reproduce/small-short-paper.html").read_text()


def test_the_list_names_everything_that_can_be_asked_for(capsys):
    assert main(["reproduce"]) == 0
    lines = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert {"table1", "table2", "table-d1", "table-d2", "ladder", "figure2", "theory"} <= set(lines)
    assert lines["table1"].endswith("no-flips; columns 1000, all; protocols paper, short, long")


def test_runs_on_data_with_an_absolute_path_are_in_the_folder_of_the_runs(suite, tmp_path):
    y = np.arange(90) % 3
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "own.npz"
    np.savez(path, x_train=np.eye(3)[y], y_train=y, x_test=np.eye(3), y_test=np.arange(3))
    Path(suite).write_text(Path(suite).read_text().replace("dataset: digits", f"dataset: {path}"))
    assert main(["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1", "--quiet"]) == 0
    assert len(list(Path("runs/reproduce").glob("own-30-dropout-0-*/result.json"))) == 1
    assert list(path.parent.iterdir()) == [path]


def test_runs_and_records_of_data_that_have_changed_are_refused(suite, tmp_path, capsys):
    y, path = np.arange(90) % 3, tmp_path / "own.npz"
    arrays = {"x_train": np.eye(3)[y], "y_train": y, "x_test": np.eye(3), "y_test": np.arange(3)}
    np.savez(path, **arrays)
    Path(suite).write_text(Path(suite).read_text().replace("dataset: digits", f"dataset: {path}"))
    typed = ["reproduce", suite, "--jobs", "1", "--seeds", "1", "--quiet"]
    assert main([*typed, "--only", "dropout"]) == 0
    np.savez(path, **{**arrays, "x_test": np.eye(3)[::-1]})
    for options, what in (
        (["--only", "random"], "results/small/short-paper/few/dropout-0.json is the record of a run on other data: "),
        (["--only", "dropout", "--results", "new"], "is a run on other data: "),
    ):
        capsys.readouterr()
        assert main([*typed, *options]) == 2
        assert f"{what}{path} has changed since; delete it or" in capsys.readouterr().err
    # Another suite has the same cell, whose record is of the old data.
    other = str(small_suite(tmp_path, name="other"))
    Path(other).write_text(Path(other).read_text().replace("dataset: digits", f"dataset: {path}"))
    typed = ["reproduce", other, "--missing", "--jobs", "1", "--seeds", "1", "--only", "dropout", "--quiet"]
    assert main([*typed, "--out", "new", "--dry-run"]) == 0
    assert "1 of 1 runs are left" in capsys.readouterr().out


def test_a_second_time_everything_is_read_and_repeats_the_records(suite, capsys):
    typed = ["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"]
    main(typed)
    before = told()
    path = Ledger(Path("results")).path(next(Ledger(Path("results")).records()))
    stamp = path.stat().st_mtime_ns
    capsys.readouterr()
    assert main(typed) == 0
    assert "%, the same as in results/small/short-paper/few/dropout-0.json" in capsys.readouterr().out
    assert told() == before
    assert path.stat().st_mtime_ns == stamp


def test_a_record_of_another_result_is_left_as_it_is(suite, capsys):
    typed = ["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"]
    main(typed)
    ledger = Ledger(Path("results"))
    record = next(ledger.records())
    path = ledger.path(record)
    error = 100 * 7 / record.test_images
    curve = {**record.curve, ERROR: [*record.curve[ERROR][:-1], error]}
    other = record.model_copy(update={"curve": curve, ERROR: error})
    path.write_text(other.sealed().dump())
    text = path.read_text()
    capsys.readouterr()
    assert main(typed) == 0
    said = capsys.readouterr().out
    assert "%, not the same as in results/small/short-paper/few/dropout-0.json, which is left as it is" in said
    assert "another machine" not in said
    assert path.read_text() == text
    path.write_text(other.model_copy(update={"machine": record.machine | {"processor": "Z80"}}).sealed().dump())
    assert main(typed) == 0
    now = record.machine["processor"]
    assert f"It was made on another machine (processor Z80, now {now}), and another" in capsys.readouterr().out


@pytest.mark.parametrize("then", [None, "AVX2", "AVX512"])
@pytest.mark.parametrize("now", ["AVX2", "AVX512", "DEFAULT"])
def test_a_record_is_repeated_with_its_own_instructions(now, then, tmp_path, capsys):
    record = next(Ledger(RESULTS).records())
    ledger = Ledger(tmp_path)
    old, new = ({**record.machine, "instructions": name} for name in (then, now))
    old = {key: value for key, value in old.items() if value is not None}  # older records do not say
    ledger.add(record.model_copy(update={"machine": old}))
    curve = {**record.curve, ERROR: [0.0 for _ in record.curve[ERROR]]}
    reproduce.add(ledger, record.model_copy(update={"machine": new, "curve": curve}), "x")
    said = capsys.readouterr().out
    assert ("With --instructions avx2" in said) == (now == "AVX512" and then in (None, "AVX2"))
    assert ("Without --instructions avx2" in said) == (now == "AVX2" and then == "AVX512")


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"), reason="needs AVX2")
def test_instructions_can_be_limited(suite):
    typed = ["reproduce", suite, "--jobs", "2", "--only", "dropout", "--seeds", "2", "--instructions", "avx2"]
    command = [sys.executable, "-m", "advdrop", *typed]  # a process that has not imported torch yet
    subprocess.run(command, check=True, timeout=240)
    assert [record.machine["instructions"] for record in Ledger(Path("results")).records()] == ["AVX2", "AVX2"]


def test_another_processor_has_no_avx2(suite, capsys, monkeypatch):
    monkeypatch.setattr("os.environ", dict(os.environ))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert main(["reproduce", suite, "--instructions", "avx2"]) == 2
    assert "--instructions avx2: torch uses the instructions DEFAULT" in capsys.readouterr().err


def test_instructions_do_not_reach_the_workers_of_a_scheduler(suite, capsys, monkeypatch):
    monkeypatch.setattr("os.environ", dict(os.environ))
    assert main(["reproduce", suite, "--instructions", "avx2", "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "start them with ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2" in capsys.readouterr().err


def test_a_record_is_found_if_the_machine_chose_its_precision(suite, monkeypatch):
    text = Path(suite).read_text().replace("accelerator: cpu", "accelerator: cpu, precision: auto")
    Path(suite).write_text(text)
    typed = ["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1", "--quiet"]
    assert main(typed) == 0
    monkeypatch.setattr(
        reproduce, "run_cells", lambda cells, *_, **__: pytest.fail(f"runs {list(cells)}") if cells else ()
    )
    assert main([*typed, "--missing"]) == 0


def test_cells_with_a_record_are_left_out_on_demand(suite, capsys, monkeypatch, tmp_path):
    main(["reproduce", suite, "--jobs", "1", "--only", "dropout,vadd-kl", "--seeds", "1"])
    monkeypatch.setattr(
        reproduce, "run_cells", lambda cells, *_, **__: pytest.fail(f"runs {list(cells)}") if cells else ()
    )
    capsys.readouterr()
    assert main(["reproduce", suite, "--missing", "--only", "dropout", "--seeds", "1"]) == 0
    assert "Plain" in capsys.readouterr().out
    # Another suite has the same cells: their records are taken over, with a digest of their own.
    other = str(small_suite(tmp_path, name="other"))
    assert main(["reproduce", other, "--missing", "--only", "dropout", "--seeds", "1"]) == 0
    mine, yours = (Record.read(Path(f"results/{name}/short-paper/few/dropout-0.json")) for name in ("small", "other"))
    assert yours.suite == "other"
    assert yours.curve == mine.curve
    assert yours.digest != mine.digest
    main(["reproduce", other, "--missing", "--seeds", "1", "--dry-run"])
    said = capsys.readouterr().out
    assert "1 of 3 runs are left" in said
    assert "2 runs have a record and are left out" in said
    assert not Path("results/other/short-paper/few/vadd-kl-0.json").exists()  # --dry-run writes nothing


def test_failed_runs_are_told_at_the_end_and_tried_again(suite, capsys, monkeypatch):
    run_cells, tried = reproduce.run_cells, []

    def failing(cells, *arguments, **options):
        tried.append([key.row for key in cells])
        for key, outcome in run_cells(cells, *arguments, **options):
            yield key, RuntimeError("no space left") if key.row == "random" and len(tried) == 1 else outcome

    monkeypatch.setattr(reproduce, "run_cells", failing)
    typed = ["reproduce", suite, "--jobs", "1", "--only", "dropout,random", "--seeds", "1"]
    assert main(typed) == 1
    said = capsys.readouterr()
    assert "advdrop: few random seed 0: no space left" in said.err
    assert "1 runs failed; the same command tries them again" in said.err
    assert "Random flips" in said.out  # the rest is shown
    assert main(typed) == 0
    assert capsys.readouterr().err.count("failed") == 0
    assert tried == [["dropout", "random"]] * 2


def test_a_dry_run_shows_the_cells_and_leaves_nothing(suite, capsys, tmp_path):
    assert main(["reproduce", suite, "--dry-run", "--jobs", "2"]) == 0
    said = capsys.readouterr().out
    assert said.count("| few ") == 6
    assert re.search(r"6 of 6 runs are left, 2 at a time, 1 thread each: about 0:00:\d\d in all", said)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["small.yaml"]


def test_without_a_name_the_suites_are_listed(capsys):
    assert main(["reproduce"]) == 0
    said = capsys.readouterr().out
    assert "table1: Table 1: MNIST; rows dropout, at, vat, pi, sadd, vadd-kl" in said
    assert "columns svhn-1000, svhn-subset-1000, svhn-all, cifar10-4000, cifar10-all" in said


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["tabel1"], "suite 'tabel1', which is unknown (did you mean table1?)"),
        (["SUITE", "--only", "vad-kl"], "--only has 'vad-kl', which is unknown (did you mean vadd-kl?)"),
        (["SUITE", "--protocol", "long"], "protocol 'long', which is unknown"),
        (["SUITE", "--seeds", "0"], "'--seeds': Input should be greater than or equal to 1, got '0'"),
        (["SUITE", "--jobs", "0"], "'--jobs': Input should be greater than or equal to 1, got '0'"),
        (["SUITE", "--scheduler", "tcp://127.0.0.1:1"], "--scheduler tcp://127.0.0.1:1: no Dask scheduler answers"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(suite, capsys, tmp_path, typed, message, monkeypatch):
    monkeypatch.setattr("advdrop.lab.engine.cluster.TIMEOUT", 0.5)
    assert main(["reproduce", *(suite if word == "SUITE" else word for word in typed)]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
    assert not (tmp_path / "results").exists()


def test_killed_at_random_points_it_ends_with_the_same_ledger(suite, tmp_path):
    def words(name):
        more = ["--results", f"{name}-results", "--out", name, "--quiet", "--jobs", "1", "--seeds", "1"]
        return ["reproduce", suite, *more]

    assert main(words("whole")) == 0
    draw, log = random.Random(5), tmp_path / "log"
    for _ in range(2):  # at a file that is opened or renamed, in a run or in the ledger
        moment = draw.randrange(50, 100)
        assert ended(mortal_advdrop, words("cut"), log, tmp_path, moment) == -signal.SIGKILL, log.read_text()
    assert 0 < len(told("cut-results")) < 3
    assert main(words("cut")) == 0
    assert told("cut-results") == told("whole-results")
    assert len(told("cut-results")) == 3


def test_the_report_takes_records_and_run_directories_and_every_format(suite, capsys, tmp_path):
    main(["reproduce", suite, "--jobs", "1", "--only", "dropout,vadd-kl", "--seeds", "1"])
    capsys.readouterr()
    assert main(["report", "results", suite, "-o", "all.html"]) == 0
    assert capsys.readouterr().out == "written to all.html: 1 table from 2 records\n"
    assert main(["report", "runs/reproduce"]) == 0  # as runs that belong to no suite
    assert "advdrop compare --methods dropout" in Path("report.html").read_text()
    for ending, piece in (("csv", "suite,protocol"), ("tex", r"\begin{tabular}"), ("md", "## A small suite")):
        assert main(["report", "results", suite, "-o", f"new/all.{ending}"]) == 0
        assert piece in Path(f"new/all.{ending}").read_text()
    assert main(["report", "results", suite, "-o", "all.json"]) == 0
    assert len(json.loads(Path("all.json").read_text())["records"]) == 2


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["nowhere"], "nowhere does not exist"),
        (["."], "there is no record, no measurement and no finished run in ."),
        (["results"], "there are records of the suite 'small', which is unknown; name its YAML file as well"),
        (["results", "-o", "a.pdf"], "a.pdf does not end in .html or .md"),
    ],
)
def test_a_report_of_nothing_is_one_line(suite, capsys, typed, message):
    if "results" in typed:
        main(["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"])
    capsys.readouterr()
    assert main(["report", *typed]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_forged_record_is_refused_by_the_report(suite, capsys):
    main(["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"])
    ledger = Ledger(Path("results"))
    record = next(ledger.records())
    path = ledger.path(record)
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1', 1))
    capsys.readouterr()
    assert main(["report", "results", suite]) == 2
    assert "its digest is not that of its content" in capsys.readouterr().err
    config = {**record.config, "network": {**record.config["network"], "delta": 0.5}}
    path.write_text(record.model_copy(update={"config": config}).sealed().dump())
    assert main(["report", "results", suite]) == 2
    assert "is of a run with another network.delta than the suite's" in capsys.readouterr().err


def test_records_of_an_older_suite_are_refused_before_anything_is_trained(suite, capsys, tmp_path):
    main(["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"])
    small_suite(tmp_path, updates=30)
    capsys.readouterr()
    assert main(["reproduce", suite, "--jobs", "1", "--only", "dropout", "--seeds", "1"]) == 2
    assert "is of a run with another training.updates than the suite's" in capsys.readouterr().err
    assert len(list(Path("runs/reproduce").glob("*/config.yaml"))) == 1


def test_a_cell_computes_with_one_thread_however_many_run(suite, monkeypatch):
    seen = []

    def watched(cells, jobs, **_):
        seen.append((jobs.count, jobs.threads, torch.get_num_threads()))
        return iter(())

    monkeypatch.setattr(reproduce, "run_cells", watched)
    for jobs in ("1", "3"):
        main(["reproduce", suite, "--jobs", jobs])
    assert [(count, threads) for count, threads, _ in seen] == [(1, 1), (3, 1)]
    assert seen[0][2] == 1  # one job is this process
