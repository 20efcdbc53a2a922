"""What every objective promises: one table, every promise."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn

from advdrop import PiModel, Step
from advdrop.checks import value_checks
from advdrop.randomness import NoiseState
from advdrop.step import sequential_network
from advdrop.step.passes import Passes
from small import FEATURES, Wrapped, batch, close, gradients, half, moved, noisy, passes_of, quiet, run, seeded
from table import TABLE, every
from waits import Waits

every_name = pytest.mark.parametrize("name", TABLE)

# These live on masks that are drawn for the batch, so the parts of a batch do not repeat the whole.
DRAWS_PER_BATCH = {"vadd probe", "vadd random", "vadd shared", "vat module", "vat module shared", "fake class"}
MIXES_ROWS = {"gamma", "catgan"}  # by the statistics of the batch
ADDITIVE = [name for name in TABLE if name not in DRAWS_PER_BATCH | MIXES_ROWS]


def warm(model, objective, **options):
    """A step of a copy of the model: temporal ensembling says nothing before it has seen the rows once.

    What a term remembers belongs to the copy. As in a resumed training, it is loaded for the model itself.
    """
    run(copy.deepcopy(model), objective, **options)
    objective.load_state_dict(objective.state_dict())
    return objective


@every
def test_a_step_gives_every_parameter_a_gradient_and_touches_no_other(make):
    model = noisy()
    objective = warm(model, make())
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    loss = run(model, objective, progress=0.1)
    assert loss.loss.shape == ()
    expected = sum(loss.weights[name] * value for name, value in loss.terms.items())
    assert loss.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    assert loss.weights.keys() == loss.terms.keys()
    for (name, parameter), gradient in zip(model.named_parameters(), gradients(model, loss.loss), strict=True):
        assert gradient.isfinite().all(), name
        assert gradient.abs().max() > 0, name
        assert (parameter.grad == 7.0).all(), name


UPDATES = {  # how often the running statistics below and above the layer are updated, by default
    "cross_entropy": (1, 1),
    "sadd": (1, 2),
    "sadd independent": (2, 2),
    "vadd": (2, 2),
    "vadd shared": (1, 2),
    "vadd iterated": (2, 2),
    "vadd probe": (2, 2),
    "vadd random": (2, 2),
    "vadd exhaustive": (2, 2),
    "pi": (2, 2),
    "temporal": (1, 1),
    "at": (1, 1),
    "at shared": (1, 1),
    "vat": (1, 1),
    "vat shared": (1, 1),
    "stability": (4, 4),
    "exclusivity": (1, 1),
    "entropy": (1, 1),
    "gamma": (1, 1),
    "deep supervision": (1, 1),
    "catgan": (1, 1),
    "fake class": (1, 1),
    "formula 6": (3, 3),
    "formula 7": (3, 3),
    "authors": (3, 3),
    "r-drop": (2, 2),
    "fraternal": (2, 2),
    "mean teacher": (1, 1),
    "vadd teacher": (2, 2),
    "vadd ema": (2, 2),
    "at module": (1, 1),
    "vat module": (1, 1),
    "vat module shared": (1, 1),
}


@every_name
def test_running_statistics_are_updated_by_the_passes_that_may_and_no_other(name):
    model = noisy()
    before = [buffer.clone() for buffer in model.buffers()]
    run(model, TABLE[name](), updating=())
    assert len(before) == 6
    assert all(torch.equal(one, other) for one, other in zip(before, model.buffers(), strict=True))
    run(model, TABLE[name]())
    assert tuple(int(m.num_batches_tracked) for m in model if isinstance(m, nn.BatchNorm1d)) == UPDATES[name]


@every
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_precisions_down_to_a_batch_of_one(make, dtype):
    double = dtype == torch.float64
    model, rows = noisy(norm=False), batch(1, 1, dtype=torch.float64 if double else torch.float32)
    if double:
        model.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=not double):
        loss = run(model, warm(model, make(), rows=rows), rows).loss
    assert loss.dtype == (torch.float64 if double else torch.float32)
    assert all(tensor.isfinite().all() for tensor in (loss, *gradients(model, loss)))


@every
def test_copies_and_a_resumed_step_give_the_same_loss(make):
    model = noisy()
    step = Step(model, warm(model, make()))
    resumed = Step(noisy(), make())
    resumed.load_state_dict(copy.deepcopy(step.state_dict()))
    twins, losses = [copy.deepcopy(step), pickle.loads(pickle.dumps(step)), resumed], []
    for one in (step, *twins):
        torch.manual_seed(1)
        losses.append(one(**batch(), progress=1.0, generator=seeded()).loss)
    assert len({loss.item() for loss in losses}) == 1


# They move the input of the network itself, or make inputs of their own.
INPUT_MOVES = {"at", "at shared", "vat", "vat shared", "formula 7", "catgan", "fake class"}
NAMES = {"at module", "vat module", "vat module shared", "vadd teacher"}  # a module by name, or the input of a teacher


@pytest.mark.parametrize("name", [name for name in TABLE if name not in INPUT_MOVES | NAMES])
def test_an_encoder_in_front_of_the_batch_is_trained_like_a_part_of_the_network(name, apart):
    encoder, model, rows = nn.Linear(FEATURES, FEATURES).double(), quiet(0.5).double(), batch(dtype=torch.float64)
    both, found = nn.Sequential(encoder, *model), []
    for step, encode in ((Step(model, TABLE[name]()), encoder), (Step(both, TABLE[name]()), nn.Identity())):
        for turn in range(2):
            given = {key: encode(x) if x.is_floating_point() else x for key, x in moved(rows, turn).items()}
            loss = step(**given, progress=1.0, generator=seeded()).loss
        found.append([loss, *gradients(both, loss)])
    close(*found)
    assert found[0][1].abs().max() > 0


# These make several passes that need nothing of each other.
TOGETHER = {
    *("sadd independent", "vadd", "vadd iterated", "vadd probe", "vadd random", "vadd exhaustive"),
    *("pi", "stability", "formula 6", "formula 7", "authors", "r-drop", "fraternal", "vadd teacher", "vadd ema"),
}


@every_name
def test_passes_together_and_apart_come_to_the_same(name, monkeypatch):
    calls, forward = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: calls.append(len(x)) or forward(layer, x))
    p = 0.5 if name == "vadd shared" else 0.0  # its search would be blind
    model, rows, results, numbers = quiet(p).double(), batch(dtype=torch.float64), [], []
    for change in (
        (),
        (sequential_network, "before_noise", lambda modules: 0),
        (Passes, "_separable", lambda *_: ([], [])),
    ):
        if change:
            monkeypatch.setattr(*change)
        step, generator = Step(model, TABLE[name]()), seeded()
        for turn in range(2):
            calls.clear()
            loss = step(**moved(rows, turn), progress=1.0, generator=generator)
        numbers.append(len(calls))
        results.append([loss.loss, *loss.terms.values(), *gradients(model, loss.loss)])
    assert any(gradient.abs().max() > 0 for gradient in results[0][-4:])
    close(results[1], results[0])
    close(results[2], results[0])
    assert (numbers[1] < numbers[2]) == (name in TOGETHER)


@pytest.mark.parametrize("name", ADDITIVE)
def test_two_halves_accumulate_to_the_whole(name):
    model, rows = quiet().double(), batch(dtype=torch.float64)
    whole, parts = Step(model, TABLE[name]()), Step(model, TABLE[name]())
    for turn in range(2):
        loss = whole(**moved(rows, turn), progress=1.0, generator=seeded()).loss
        expected, generator = gradients(model, loss), seeded()
        seen = [parts(**half(moved(rows, turn), i), progress=1.0, generator=generator).loss for i in range(2)]
    assert any(gradient.abs().max() > 0 for gradient in expected)
    close(gradients(model, sum(seen) / 2), expected, 1e-7)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name in ADDITIVE:
        torch.manual_seed(0)
        model, rows = quiet().double(), batch(dtype=torch.float64)
        step = nn.parallel.DistributedDataParallel(Step(model, TABLE[name]()))
        for turn in range(2):  # a parameter that took no part would be noticed at the second step
            part = (rank + turn) % 2  # the other half each time: what one rank learned the other must know
            generator = seeded()
            if part == 1:  # the second half of what one process would draw
                torch.empty_like(half(rows, 0)["unlabeled"]).normal_(generator=generator)
            step.zero_grad()
            step(**half(moved(rows, turn), part), progress=1.0, generator=generator).loss.backward()
        results[name] = [parameter.grad.clone() for parameter in model.parameters()]
    torch.manual_seed(0)
    results["mask"] = passes_of(noisy(), PiModel(), seed=None).clean("unlabeled").masks[0]
    torch.save(results, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_ranks_equal_one_process(tmp_path):
    # Forked by a process of their own that has no threads yet.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    started = subprocess.Popen([sys.executable, __file__, tmp_path], env=environment, start_new_session=True)
    try:
        assert started.wait(timeout=300) == 0
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(2)]
    for name in ADDITIVE:
        torch.manual_seed(0)
        model, rows = quiet().double(), batch(dtype=torch.float64)
        step = Step(model, TABLE[name]())
        for turn in range(2):
            expected = gradients(model, step(**moved(rows, turn), progress=1.0, generator=seeded()).loss)
        assert any(gradient.abs().max() > 0 for gradient in expected), name
        for rank in ranks:
            for ours, one in zip(rank[name], expected, strict=True):
                torch.testing.assert_close(ours, one, msg=lambda text, name=name: f"{name}: {text}")
    assert not torch.equal(ranks[0]["mask"], ranks[1]["mask"])  # though both have the same seed


# The exhaustive search walks through all masks in Python: it is there to judge the others by.
QUICK = [name for name in TABLE if name != "vadd exhaustive"]
CASES = [(name, lambda net: net) for name in QUICK] + [
    (name, Wrapped) for name in ("vadd", "vadd shared", "vat shared")
]


@pytest.mark.parametrize(("name", "wrap"), CASES)
def test_no_objective_waits_for_the_device(name, wrap, monkeypatch):
    """Nothing may look at values. Tensors on the meta device have none; on the CPU those who look are counted."""
    monkeypatch.setattr(NoiseState, "equals", lambda *_: True)  # the states of all generators are on the CPU
    model = wrap(noisy())
    step = Step(model, TABLE[name]())
    for turn in range(2):  # temporal ensembling has something to say from the second time on
        with value_checks("never"), Waits() as waits:
            step(**batch(), progress=1.0, generator=seeded(), measure=True).loss.backward()
        assert not waits.counted, turn

    class NoNoise:  # there is no generator for the meta device
        get_rng_state = staticmethod(lambda device: torch.zeros(1))
        set_rng_state = staticmethod(lambda state, device: None)

    monkeypatch.setattr(torch, "get_device_module", lambda device: NoNoise)
    rows = {key: torch.empty(16, FEATURES, device="meta") for key in ("x", "unlabeled", "second_view")}
    index = torch.empty(16, dtype=torch.long, device="meta")
    model.zero_grad()
    step = Step(model, TABLE[name]()).to("meta")
    step(**rows, y=index, index=index, progress=1.0, generator=seeded(), measure=True).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


if __name__ == "__main__":
    multiprocessing.start_processes(_rank, (sys.argv[1],), nprocs=2, start_method="fork")
