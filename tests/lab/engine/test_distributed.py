"""Two processes with gloo: the same curve as one process on the whole batch."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.engine.failures import of_another_process
from processes import started
from ranks import torchrun_rank
from runs import rings, tiny

TESTS = Path(__file__).parents[2]
# No batch norm couples the rows, and nothing is random: what is left is arithmetic in another order.
QUIET = ("network.p=0", "network.dropout=0")


def by_lightning(folder, *words):
    """Started as a user's script: Lightning starts the second process."""
    path = os.pathsep.join([str(TESTS), *sys.path])
    environment = {"PYTHONPATH": path, "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(TESTS / "ranks.py"), str(folder), *words]
    options = {"env": environment, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with subprocess.Popen(command, **options) as process:
        try:
            _, said = process.communicate(timeout=240)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def by_torchrun(folder, *words):
    """Started with the environment of torchrun's processes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with ExitStack() as stack:
        ranks = [stack.enter_context(started(torchrun_rank, n, port, str(folder), *words)) for n in range(2)]
        for process in ranks:
            process.join(240)
        return max(process.exitcode or 0 for process in ranks), ""


def launch(launcher, folder, method, *words, check=True):
    code, said = launcher(folder, method, "engine.devices=2", *words)
    assert not check or code == 0, said[-3000:]
    return RunDirectory(folder)


def curve(run):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in run.metrics()]


def assert_close(one, two):
    assert len(one) == len(two) > 0
    for left, right in zip(one, two, strict=True):
        assert left.keys() == right.keys()
        assert left == {name: pytest.approx(value, rel=1e-4, abs=1e-5) for name, value in right.items()}


@pytest.mark.parametrize("launcher", [by_lightning, by_torchrun])
def test_two_ranks_give_the_curve_of_one_process_on_the_union_batch(launcher, tmp_path):
    train(tiny(*QUIET, method="sadd+temporal"), tmp_path / "one", data=rings(), progress=False)
    run = launch(launcher, tmp_path / "two", "sadd+temporal", *QUIET)
    assert_close(curve(run), curve(RunDirectory(tmp_path / "one")))
    assert run.finished
    assert len(load_file(run.model)) > 0


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("gamma", ["objective.blend=0.3", "objective.terms.gamma.noise=0"]),  # it rests in the first epoch
        ("ladder", ["network={name: ladder, hidden: [6], noise: 0}", "objective.terms.ladder.weights=[0, 0, 1]"]),
    ],
)
def test_parameters_that_a_loss_leaves_out_are_those_of_one_process(method, words, tmp_path):
    words = [*(QUIET if method == "gamma" else ()), *words]
    one = tiny(*words, "engine.accumulate=2", method=method)
    train(one, tmp_path / "one", data=rings(), progress=False)
    run = launch(by_torchrun, tmp_path / "two", method, *words)
    found = run, RunDirectory(tmp_path / "one")
    losses = [[{name: row[name] for name in row if name.startswith("train/")} for row in curve(each)] for each in found]
    assert_close(*losses)
    two, one = (torch.load(each.checkpoint)["optimizer"]["state"] for each in found)
    assert all(two[key]["step"] == one[key]["step"] for key in one)  # Adam counts no update of a term that rests


def test_ranks_draw_different_noise_and_a_resumed_run_draws_it_again(tmp_path):
    words = ("vadd-kl+temporal", "network.dropout=0.3")
    whole = launch(by_torchrun, tmp_path / "whole", *words)
    noise = [json.loads((tmp_path / f"whole-rank{rank}.json").read_text()) for rank in (0, 1)]
    assert len(noise[0]) == len(noise[1]) == 12
    assert not set(noise[0]) & set(noise[1])

    cut = launch(by_torchrun, tmp_path / "cut", *words, "stop-at=7", check=False)
    assert not cut.finished
    launch(by_torchrun, tmp_path / "cut", *words, "resume")
    assert curve(cut) == curve(whole)
    for rank in (0, 1):
        assert json.loads((tmp_path / f"cut-rank{rank}.json").read_text()) == noise[rank][7:]


def test_a_killed_rank_ends_the_other_one_with_a_line_that_says_how_to_continue(tmp_path):
    words = ("vadd-kl", "network.dropout=0.3", "engine.checkpoint_seconds=0")
    whole = launch(by_torchrun, tmp_path / "whole", *words)
    cut = launch(by_torchrun, tmp_path / "cut", *words, "die-at=7", check=False)
    assert not cut.finished
    said = (tmp_path / "cut-rank0.txt").read_text()
    begin, _, end = said.partition(" (")
    assert begin == "another process of this run has died or does not answer"
    assert end.endswith(f"); what it printed says why; resume with: advdrop train --resume {cut.path}")
    assert len(said) < 200 + len(str(cut.path))
    assert "gloo" not in said
    launch(by_torchrun, tmp_path / "cut", *words, "resume")
    assert curve(cut) == curve(whole)


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("[/gloo/pair.cc:537] Read error [::1]:5: Connection reset by peer. Good luck", "(Connection reset by peer)"),
        ("[/gloo/pair.cc:547] Connection closed by peer [127.0.0.1]:12", "(Connection closed by peer [127.0.0.1]:12)"),
        ("[/gloo/buffer.cc:78] Timed out waiting 3000ms for recv", "(Timed out waiting 3000ms for recv)"),
        ("shapes (1, 2) and (3, 4) do not fit\nmore", "a process stopped (shapes (1, 2) and (3, 4) do not fit)"),
    ],
)
def test_the_long_texts_of_gloo_become_one_reason(reason, said):
    assert said in of_another_process(RuntimeError(reason))


PROCESS = """
import atexit, sys
import torch
from advdrop.__main__ import main
from advdrop.lab.cli import train

meeting, out, rank = sys.argv[1:]

def fake(*_, **__):
    torch.distributed.init_process_group("gloo", init_method="file://" + meeting, rank=0, world_size=1)
    torch.distributed.get_rank = lambda: int(rank)
    atexit.register(print, "Python ends")
    return {}

train.train = fake
sys.argv[1:] = ["train", "--dataset", "digits", "--labels", "50", "--quiet", "--out", out]
sys.exit(main())
"""


@pytest.mark.parametrize(("rank", "said"), [(0, "Python ends\n"), (1, "")])
def test_another_process_leaves_without_an_end_of_python_that_a_thread_of_gloo_could_abort(rank, said, tmp_path):
    command = [sys.executable, "-c", PROCESS, str(tmp_path / "meeting"), str(tmp_path / "run"), str(rank)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, said), done.stderr
