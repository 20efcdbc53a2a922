"""kill -9 at any moment: the run goes on, and ends as if nothing had happened."""

import random
import signal
import subprocess
import sys
import time

import torch
from safetensors.torch import load_file

from advdrop.engine import RunDirectory

COMMAND = [sys.executable, "-m", "advdrop", "train", "--quiet"]
SETTINGS = [
    "network.name=mlp", "network.hidden=[32,16]", "network.dropout=0.3", "objective.delta=0.2",
    "training.epoch_updates=25", "engine.checkpoint_seconds=0.05", "engine.accelerator=cpu",
]  # fmt: skip


def arguments(path):
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return ["--dataset", "digits", "--method", "vadd-kl+temporal", "--updates", "600", "--out", str(path), *settings]


def outcome(path):
    found = RunDirectory.open(path)
    rows = [{name: value for name, value in row.items() if name != "seconds"} for row in found.metrics()]
    return rows, load_file(found.model), found.result["test_error_percent"]


def test_sigkill_at_three_random_points_changes_no_bit(tmp_path):
    subprocess.run([*COMMAND, *arguments(tmp_path / "whole")], check=True, capture_output=True)
    draw, killed = random.Random(11), []
    command = [*COMMAND, *arguments(tmp_path / "cut")]
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        path = tmp_path / "cut" / "last.ckpt"
        before = path.stat().st_mtime_ns if path.exists() else 0
        deadline = time.monotonic() + 60
        while (not path.exists() or path.stat().st_mtime_ns == before) and time.monotonic() < deadline:
            assert process.poll() is None, process.stderr.read().decode()
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.2))
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stderr.close()
        killed.append(torch.load(path, weights_only=True)["update"])
        command = [*COMMAND, "--resume", str(tmp_path / "cut")]
    assert 0 < killed[0] < killed[1] < killed[2] < 600
    assert not RunDirectory.open(tmp_path / "cut").finished
    subprocess.run(command, check=True, capture_output=True)
    (rows, weights, error), (rows_2, weights_2, error_2) = outcome(tmp_path / "whole"), outcome(tmp_path / "cut")
    assert rows == rows_2
    assert error == error_2
    assert all(torch.equal(weights[name], weights_2[name]) for name in weights)
    assert not list((tmp_path / "cut").glob(".*.part"))  # what a killed process was writing is gone


def test_a_process_killed_before_its_first_checkpoint_starts_again(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, *arguments(tmp_path / "cut"), "--set", "engine.checkpoint_seconds=1e6"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    while not (tmp_path / "cut" / "config.yaml").exists():
        assert process.poll() is None
        time.sleep(0.005)
    process.kill()
    process.wait()
    assert sorted(path.name for path in (tmp_path / "cut").glob("[a-z]*")) == ["config.yaml", "split.npz"]
    done = subprocess.run([*COMMAND, "--resume", str(tmp_path / "cut")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert RunDirectory.open(tmp_path / "cut").result["updates"] == 600
