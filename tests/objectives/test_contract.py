"""What every objective must keep: one table, every promise."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import multiprocessing, nn

from advdrop import (
    VAT,
    CrossEntropy,
    PiModel,
    Split,
    TrainingStep,
    VAdD,
)
from advdrop.objectives import Objective, Passes
from advdrop.objectives import passes as passes_module
from small import batch, gradients, half, moved, noisy, quiet, seeded
from table import TABLE, every

# These live on masks that are drawn for the batch, so the parts of a batch do not repeat the whole.
DRAWS_PER_BATCH = {"vadd probe", "vadd random", "vadd shared"}

additive = pytest.mark.parametrize("name", [name for name in TABLE if name not in DRAWS_PER_BATCH])


def warm(objective: Objective, model: nn.Module) -> Objective:
    """Temporal ensembling says nothing before it has seen the rows once."""
    objective(copy.deepcopy(model), batch(), generator=seeded())
    return objective


@every
def test_gradient_reaches_every_parameter(make):
    model = noisy()
    loss = warm(make(), model)(model, batch(), generator=seeded())
    assert loss.total.shape == ()
    assert loss.total.isfinite()
    for name, parameter in zip(dict(model.named_parameters()), gradients(model, loss.total), strict=True):
        assert parameter.isfinite().all(), name
        assert parameter.abs().max() > 0, name


@every
def test_total_is_the_weighted_sum_of_the_means(make):
    loss = make()(noisy(), batch(), progress=0.1)
    expected = sum(loss.weights[name] * value for name, value in loss.terms.items())
    assert loss.total.item() == pytest.approx(expected.item(), rel=1e-6)


@every
def test_accumulated_gradients_are_left_alone(make):
    model = noisy()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 7.0)
    make()(model, batch())
    assert all((parameter.grad == 7.0).all() for parameter in model.parameters())


def counts(model: nn.Module) -> list[int]:
    return [int(m.num_batches_tracked) for m in model.modules() if isinstance(m, nn.BatchNorm1d)]


MOVES = {  # objective: how often the running statistics below and above the layer move, by default
    "cross_entropy": (1, 1),
    "sadd": (1, 2),
    "sadd independent": (2, 2),
    "vadd kl": (2, 2),
    "vadd shared": (1, 2),
    "vadd iterated": (2, 2),
    "vadd probe": (2, 2),
    "vadd exhaustive": (2, 2),
    "pi": (2, 2),
    "temporal": (1, 1),
    "at": (1, 1),
    "vat": (1, 1),
    "vat shared": (1, 1),
    "stability": (4, 4),
    "entropy": (1, 1),
    "formula 6": (3, 3),
    "formula 7": (3, 3),
}


@pytest.mark.parametrize(("name", "moves"), MOVES.items(), ids=MOVES)
def test_batch_norm_moves_with_the_passes_that_may_and_no_other(name, moves):
    model = noisy()
    TABLE[name]()(model, batch())
    assert tuple(counts(model)) == moves


@every
def test_batch_norm_stays_where_no_pass_may_move_it(make):
    model = noisy()
    before = {k: v.clone() for k, v in model.named_buffers()}
    make()(model, batch(), moving=())
    assert all(torch.equal(before[k], v) for k, v in model.named_buffers())
    assert len(before) == 6


def test_each_pass_moves_batch_norm_when_it_alone_may():
    objective = CrossEntropy() + VAdD(noise="shared") + VAT() + PiModel()
    expected = {"labelled": 1, "clean": 1, "second": 1, "adversarial": 1, "search": 1, "input": 2}
    for name, times in expected.items():
        model = noisy()
        objective(model, batch(), moving={name})
        assert counts(model)[1] == times, name


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_precisions(make, dtype):
    model = noisy(norm=False)
    if dtype == torch.float64:
        model.double()
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
        rows = batch(dtype=torch.float64 if dtype == torch.float64 else torch.float32)
        loss = warm(make(), model)(model, rows, generator=seeded()) if dtype != torch.float64 else make()(model, rows)
    assert loss.total.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert all(gradient.isfinite().all() for gradient in gradients(model, loss.total))


@every
def test_deepcopy_of_model_and_objective_gives_the_same_loss(make):
    model = noisy()
    objective = warm(make(), model)
    twin_model, twin = copy.deepcopy(model), copy.deepcopy(objective)
    torch.manual_seed(1)
    first = objective(model, batch(), generator=seeded()).total
    torch.manual_seed(1)
    assert torch.equal(twin(twin_model, batch(), generator=seeded()).total, first)


@every
def test_state_survives_a_resumption(make):
    model = noisy()
    objective, fresh = warm(make(), model), make()
    fresh.load_state_dict(copy.deepcopy(objective.state_dict()))
    torch.manual_seed(1)
    first = objective(model, batch(), generator=seeded()).total
    torch.manual_seed(1)
    assert torch.equal(fresh(model, batch(), generator=seeded()).total, first)


# These make several passes that need nothing of each other.
TOGETHER = {
    *("sadd independent", "vadd kl", "vadd qe", "vadd ce", "vadd iterated", "vadd probe", "vadd random"),
    *("vadd exhaustive", "pi", "stability", "formula 6", "formula 7", "authors"),
}


@pytest.mark.parametrize("below", ["shared", "not shared"])
@pytest.mark.parametrize("name", TABLE)
def test_passes_together_and_apart_come_to_the_same(name, below, monkeypatch):
    calls, forward = [], nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda layer, x: calls.append(len(x)) or forward(layer, x))
    if below == "not shared":
        monkeypatch.setattr(passes_module, "beginning", lambda under: (nn.Identity(), under))
    p = 0.5 if name == "vadd shared" else 0.0  # its search would be blind
    model, rows, results, numbers = quiet(p).double(), batch(dtype=torch.float64), [], []
    for together in (True, False):
        if not together:
            monkeypatch.setattr(Passes, "_on_their_own", lambda passes: False)
        objective, generator = TABLE[name](), seeded()
        for turn in range(2):  # temporal ensembling says nothing before it has seen the rows once
            calls.clear()
            loss = objective(model, moved(rows, turn), generator=generator)
        numbers.append(len(calls))
        results.append([loss.total, *loss.terms.values(), *gradients(model, loss.total)])
    assert any(gradient.abs().max() > 0 for gradient in results[0][-4:])
    for joined, expected in zip(*results, strict=True):
        torch.testing.assert_close(joined, expected, rtol=1e-10, atol=1e-12)
    if below == "not shared":
        assert (numbers[0] < numbers[1]) == (name in TOGETHER)


# torch's own compiler looks at .grad of a non-leaf on its way.
compiler_noise = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")


@compiler_noise
@every
def test_compiled_parts_give_the_same_loss_and_gradients(make, apart):
    torch._dynamo.reset()
    model = quiet(p=0.5).double()
    compiled = Split(torch.compile(model.under, backend="eager"), torch.compile(model.upper, backend="eager"))
    rows, results = batch(dtype=torch.float64), []
    for network in (model, compiled):
        loss = make()(network, rows, generator=seeded()).total
        results.append([loss, *gradients(model, loss)])
    for ours, expected in zip(*results, strict=True):
        torch.testing.assert_close(ours, expected)


@every
def test_batch_of_one(make):
    objective, model = make(), noisy(norm=False)
    loss = objective(model, batch(labelled=1, unlabelled=1))
    assert loss.total.isfinite()


@additive
def test_two_halves_accumulate_to_the_whole(name):
    make = TABLE[name]
    model, rows = quiet().double(), batch(dtype=torch.float64)
    whole = make()
    for turn in range(2):
        expected = gradients(model, whole(model, moved(rows, turn), generator=seeded()).total)
    assert any(gradient.abs().max() > 0 for gradient in expected)
    parts, generator = make(), seeded()
    for turn in range(2):
        generator.manual_seed(0)
        seen = [half(moved(rows, turn), i) for i in range(2)]
        halves = [gradients(model, parts(model, one, generator=generator).total) for one in seen]
    for one, other, both in zip(*halves, expected, strict=True):
        torch.testing.assert_close((one + other) / 2, both)


def _rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    results = {}
    for name, make in TABLE.items():
        if name in DRAWS_PER_BATCH:
            continue
        torch.manual_seed(0)
        model, rows = quiet().double(), batch(dtype=torch.float64)
        step = nn.parallel.DistributedDataParallel(TrainingStep(model, make()))
        for turn in range(2):  # a parameter that took no part would be noticed at the second step
            part = (rank + turn) % 2  # the other half each time: what one rank learnt the other must know
            generator = seeded()
            if part == 1:  # the second half of what one process would draw
                torch.empty_like(half(rows, 0).u).normal_(generator=generator)
            step.zero_grad()
            step(half(moved(rows, turn), part), generator=generator).total.backward()
        results[name] = [p.grad.clone() for p in model.parameters()]
    torch.manual_seed(0)
    results["mask"] = Passes(noisy(), batch()).clean("unlabelled").masks[0]
    torch.save(results, Path(folder) / f"{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """The results of two gloo ranks, forked by a process of their own that has no threads yet."""
    folder = tmp_path_factory.mktemp("ranks")
    path = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, __file__, folder], env=os.environ | {"PYTHONPATH": path}, timeout=120, check=True)
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@additive
def test_two_ranks_equal_one_process(name, ranks):
    model, rows, objective = quiet().double(), batch(dtype=torch.float64), TABLE[name]()
    for turn in range(2):
        expected = gradients(model, objective(model, moved(rows, turn), generator=seeded()).total)
    assert any(gradient.abs().max() > 0 for gradient in expected)
    for first, second, one in zip(ranks[0][name], ranks[1][name], expected, strict=True):
        torch.testing.assert_close(first, one)
        torch.testing.assert_close(second, one)


def test_ranks_seeded_alike_draw_different_masks(ranks):
    assert not torch.equal(ranks[0]["mask"], ranks[1]["mask"])


@compiler_noise
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch's compiler needs a C++ compiler")
def test_inductor_compiles_under_and_upper(apart):
    torch._dynamo.reset()
    model = quiet(p=0.5)
    compiled = Split(torch.compile(model.under), torch.compile(model.upper))
    objective = CrossEntropy() + VAdD()
    loss, expected = (objective(network, batch(), generator=seeded()).total for network in (compiled, model))
    torch.testing.assert_close(loss, expected)
    for ours, eager in zip(gradients(model, loss), gradients(model, expected), strict=True):
        torch.testing.assert_close(ours, eager)


if __name__ == "__main__":
    multiprocessing.start_processes(_rank, (sys.argv[1],), nprocs=2, start_method="fork")
