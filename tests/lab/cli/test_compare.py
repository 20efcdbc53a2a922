"""``advdrop compare`` with several jobs, as a user meets it."""

import json
import re

from advdrop.lab.cli import compare
from advdrop.lab.cli.main import main
from advdrop.lab.engine import RunDirectory
from advdrop.lab.engine.jobs import Jobs
from advdrop.lab.engine.loop import DivergedError
from advdrop.lab.engine.signals import StoppedError

TINY = [
    "--dataset", "digits", "--labels", "20", "--set", "network.name=mlp", "--set", "network.hidden=[16,8]",
    "--set", "network.delta=0.3", "--set", "training.epoch_updates=20",
    "--set", "engine.accelerator=cpu", "--set", "engine.checkpoint_seconds=1e6",
]  # fmt: skip


def outcomes_in(monkeypatch, found, **errors):
    """Let the runs come to an end in another order than they were asked for, with these errors."""

    def backwards(cells, jobs, data, progress):
        found.append((list(cells), jobs))
        for (method, seed), _ in reversed(cells.items()):
            error = errors.get(method.replace("-", "_"))
            yield (method, seed), error or {"test_error_percent": 10.0 * int(seed), "milliseconds_per_update": 5.0}

    monkeypatch.setattr(compare, "run_cells", backwards)


def test_the_table_is_in_the_order_of_the_methods(monkeypatch, capsys, tmp_path):
    diverged = DivergedError("update 3: the loss is not finite")
    outcomes_in(monkeypatch, found := [], pi=diverged, vat=RuntimeError("full disk"))
    (tmp_path / "c").mkdir()
    typed = ["compare", *TINY, "--methods", "dropout,pi,vat,vadd-kl", "--seeds", "2", "--out", "c", "--jobs", "3"]
    assert main(typed) == 1
    said = capsys.readouterr()
    rows = re.findall(r"^\| ([\w-]+) +\| (.*?) +\| (\d)", said.out, re.MULTILINE)
    spread = "5.00 ± 7.07"
    assert rows == [("dropout", spread, "2"), ("pi", "failed", "0"), ("vat", "failed", "0"), ("vadd-kl", spread, "2")]
    written = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert list(written) == ["dropout", "pi", "vat", "vadd-kl"]
    assert [run["test_error_percent"] for run in written["dropout"]] == [0.0, 10.0]
    assert [line[:31] for line in said.err.splitlines()] == [
        "advdrop: [2/8] pi seed 0: updat", "advdrop: [3/8] vat seed 0: full", "advdrop: [6/8] pi seed 1: updat",
        "advdrop: [7/8] vat seed 1: full",
    ]  # fmt: skip
    assert found[0][1] == Jobs(3, 1)


def test_what_is_asked_for_wrongly_is_no_table(monkeypatch, capsys, tmp_path):
    outcomes_in(monkeypatch, [], pi=ValueError("engine: no"), dropout=ValueError("engine: no"))
    assert main(["compare", *TINY, "--methods", "dropout,pi", "--jobs", "2"]) == 2
    assert capsys.readouterr().err == "advdrop: engine: no\n"
    assert list(tmp_path.iterdir()) == []


def test_a_stop_says_how_to_go_on(monkeypatch, capsys):
    def stopped(*_, **__):
        raise StoppedError("stopped with 1 of 3 runs done; go on")

    monkeypatch.setattr(compare, "run_cells", stopped)
    assert main(["compare", *TINY]) == 130
    assert capsys.readouterr().err == "advdrop: stopped with 1 of 3 runs done; the same command continues\n"


def test_dry_run_tells_the_jobs_and_divides_the_time(monkeypatch, capsys, tmp_path):
    class Guess:
        seconds = 100.0

    seen = []
    monkeypatch.setattr(compare, "estimate", lambda config, data: seen.append(config.method) or Guess)
    typed = ["compare", *TINY, "--methods", "dropout,pi", "--seeds", "2", "--dry-run"]
    assert main([*typed, "--jobs", "2"]) == 0
    assert "\n4 of 4 runs are left, 2 at a time, 1 thread each: about 0:03:20 in all" in capsys.readouterr().out
    assert main([*typed, "--jobs", "3"]) == 0  # three, and then the fourth
    assert "\n4 of 4 runs are left, 3 at a time, 1 thread each: about 0:03:20 in all" in capsys.readouterr().out
    assert main([*typed, "--jobs", "1"]) == 0
    assert "\n4 of 4 runs are left, 1 at a time, 1 thread each: about 0:06:40 in all" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    main(["train", *TINY, "--updates", "2", "--method", "pi", "--out", "c/pi-0", "--quiet"])
    capsys.readouterr()
    assert main([*typed, "--updates", "2", "--jobs", "1", "--out", "c"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| pi +\| 0 +\| 2 +\| done +\|", out)
    assert "about 0:05:00 in all" in out


def test_one_choice_of_the_machine_is_made_for_all_runs(monkeypatch, capsys, tmp_path):
    asked = []
    formats = iter(["contiguous", "channels_last"])

    def resolve_auto(config):
        asked.append(config.method)
        return config.model_copy(update={"engine": config.engine.model_copy(update={"memory_format": next(formats)})})

    monkeypatch.setattr(compare, "resolve_auto", resolve_auto)
    typed = ["compare", *TINY, "--updates", "2", "--methods", "dropout,pi", "--jobs", "1", "--quiet", "--out", "c"]
    assert main(typed) == 0
    assert main([*typed, "--seeds", "2"]) == 0  # as before, whatever would be chosen now
    assert asked == ["dropout"]
    found = {path.name: RunDirectory.open(path).config.engine.memory_format for path in (tmp_path / "c").glob("*-*")}
    assert found == dict.fromkeys(("dropout-0", "dropout-1", "pi-0", "pi-1"), "contiguous")
    assert main([*typed, "--set", "engine.memory_format=channels_last"]) == 2
    assert "c/dropout-0 is a run with another engine.memory_format; delete it" in capsys.readouterr().err
