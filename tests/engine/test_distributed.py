"""Two processes with gloo, started as users start them: the same curve as one process on the whole batch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from advdrop.engine import RunDirectory

SCRIPT = str(Path(__file__).with_name("ranks.py"))
LAUNCHERS = {
    "lightning": [sys.executable, SCRIPT],
    "torchrun": [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", SCRIPT],
}
# No batch norm couples the rows, and nothing is random: what is left is arithmetic in another order.
QUIET = ("network.p=0", "network.dropout=0")


def launch(launcher, folder, method, *words, check=True):
    command = [*LAUNCHERS[launcher], str(folder), method, *words]
    environment = {"PYTHONPATH": str(Path(__file__).parent.parent), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stderr[-3000:]
    return RunDirectory(folder)


def curve(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]


def assert_close(one, two):
    assert len(one) == len(two) > 0
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        assert left == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in right.items()}


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    return curve(launch("lightning", tmp_path_factory.mktemp("one") / "r", "sadd+temporal", *QUIET))


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_ranks_give_the_curve_of_one_process_on_the_union_batch(launcher, tmp_path, one_process):
    run = launch(launcher, tmp_path / "r", "sadd+temporal", "engine.devices=2", *QUIET)
    assert_close(curve(run), one_process)
    assert run.finished
    assert len(load_file(run.model)) > 0


def test_ranks_draw_different_noise_and_a_resumed_run_draws_it_again(tmp_path):
    words = ("engine.devices=2", "network.dropout=0.3")
    whole = launch("torchrun", tmp_path / "whole", "vadd-kl+temporal", *words)
    noise = [json.loads((tmp_path / f"whole-rank{rank}.json").read_text()) for rank in (0, 1)]
    assert len(noise[0]) == len(noise[1]) == 12
    assert not set(noise[0]) & set(noise[1])

    cut = launch("torchrun", tmp_path / "cut", "vadd-kl+temporal", *words, "stop-at=7", check=False)
    assert not cut.finished
    launch("torchrun", tmp_path / "cut", "vadd-kl+temporal", *words, "resume")
    assert curve(cut) == curve(whole)
    for rank in (0, 1):
        assert json.loads((tmp_path / f"cut-rank{rank}.json").read_text()) == noise[rank][7:]
