"""kill -9 at any moment: the run goes on, and ends as if nothing had happened."""

import random
import signal

import torch
from safetensors.torch import load_file

from advdrop.lab.cli.main import main
from advdrop.lab.engine import RunDirectory
from processes import ended, mortal_advdrop

SETTINGS = [
    "network.name=mlp", "network.hidden=[32,16]", "network.dropout=0.3", "network.delta=0.2",
    "training.epoch_updates=10", "engine.checkpoint_seconds=0", "engine.accelerator=cpu",
]  # fmt: skip


def command(path, *settings):
    words = ["train", "--quiet", "--dataset", "digits", "--method", "vadd-kl+temporal", "--updates", "40"]
    return [*words, "--out", str(path), *(part for setting in (*SETTINGS, *settings) for part in ("--set", setting))]


def outcome(path):
    found = RunDirectory.open(path)
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in found.metrics()]
    return rows, load_file(found.model), found.result["test_error_percent"]


def test_sigkill_at_three_random_points_changes_no_bit(tmp_path):
    """At a random file that is opened or renamed: before, in the middle of and after the writing of a checkpoint."""
    assert main(command(tmp_path / "whole")) == 0
    cut, log, draw, killed = tmp_path / "cut", tmp_path / "log", random.Random(11), []
    words = command(cut)
    for _ in range(3):
        assert ended(mortal_advdrop, words, log, cut, draw.randrange(8, 30)) == -signal.SIGKILL, log.read_text()
        killed.append(torch.load(cut / "last.ckpt", weights_only=True)["update"])
        words = ["train", "--quiet", "--resume", str(cut)]
    assert 0 < killed[0] < killed[1] < killed[2] < 40
    assert not RunDirectory.open(cut).finished
    assert main(words) == 0
    (rows, weights, error), (rows_2, weights_2, error_2) = outcome(tmp_path / "whole"), outcome(cut)
    assert rows == rows_2
    assert error == error_2
    assert all(torch.equal(weights[name], weights_2[name]) for name in weights)
    assert not list(cut.glob(".*.part"))  # what a killed process was writing is gone


def test_a_process_killed_before_its_first_checkpoint_starts_again(tmp_path):
    cut, log = tmp_path / "cut", tmp_path / "log"
    words = command(cut, "engine.checkpoint_seconds=1e6")
    assert ended(mortal_advdrop, words, log, cut, 1, "metrics.csv") == -signal.SIGKILL, log.read_text()
    assert sorted(path.name for path in cut.glob("[a-z]*")) == ["config.yaml", "split.npz"]
    assert main(["train", "--quiet", "--resume", str(cut)]) == 0
    assert RunDirectory.open(cut).result["updates"] == 40
