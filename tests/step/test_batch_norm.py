import copy
import pickle
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from advdrop.step.batch_norm import PASSES, UPDATING, RunningStatistics, frozen_statistics

NORMS = {
    "batch 1d": (lambda: nn.BatchNorm1d(3), (8, 3)),
    "batch 2d": (lambda: nn.BatchNorm2d(3), (8, 3, 4, 4)),
    "batch 3d": (lambda: nn.BatchNorm3d(3), (4, 3, 2, 2, 2)),
    "cumulative": (lambda: nn.BatchNorm1d(3, momentum=None), (8, 3)),
    "not affine": (lambda: nn.BatchNorm1d(3, affine=False), (8, 3)),
    "instance": (lambda: nn.InstanceNorm2d(3, track_running_stats=True), (8, 3, 4, 4)),
}
every_norm = pytest.mark.parametrize(("build", "shape"), NORMS.values(), ids=NORMS)


def used(build, shape):
    """A norm inside a network, with statistics that are not the initial ones, and an input from elsewhere."""
    model = nn.Sequential(nn.Identity(), nn.Sequential(build()))
    model(torch.randn(shape) - 1)
    return model, 2 * torch.randn(shape) + 5


def buffers(model):
    return {name: value.clone() for name, value in model.named_buffers()}


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@every_norm
def test_a_frozen_norm_uses_the_batch_and_updates_nothing(build, shape):
    model, x = used(build, shape)
    twin, before = copy.deepcopy(model), buffers(model)
    with frozen_statistics(model):
        frozen = model(x)
    with pytest.raises(RuntimeError, match="stop"), frozen_statistics(model):
        raise RuntimeError("stop")
    assert "1.0.num_batches_tracked" in before
    assert equal(buffers(model), before)
    assert torch.equal(frozen, twin(x))
    assert not equal(buffers(twin), before)
    model(x)  # also after an error, updates are allowed again
    assert equal(buffers(model), buffers(twin))


@every_norm
def test_evaluation_is_unaffected(build, shape):
    model, x = used(build, shape)
    model.eval()
    expected, before = model(x), buffers(model)
    with frozen_statistics(model):
        assert torch.equal(model(x), expected)
    assert equal(buffers(model), before)


@every_norm
def test_updates_can_be_switched_within_a_block(build, shape):
    model, x = used(build, shape)
    twin = copy.deepcopy(model)
    twin(x)
    with RunningStatistics(model.modules()).updates(False) as switch:
        model(x)
        switch(True)
        model(x)
        switch(False)
        model(x)
    assert equal(buffers(model), buffers(twin))
    model(x)
    assert not equal(buffers(model), buffers(twin))


def test_the_layers_with_statistics_are_found():
    model = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), nn.Linear(3, 3))
    statistics = RunningStatistics(model.modules())
    assert statistics.layers == [model[0], model[1]]
    assert [id(counter) for counter in statistics.counters()] == [id(model[0].num_batches_tracked)]
    with RunningStatistics([]).updates(False) as switch:
        switch(True)


def test_norms_that_never_tracked_stay_so():
    model = nn.Sequential(nn.BatchNorm1d(3, track_running_stats=False), nn.BatchNorm1d(3))
    with frozen_statistics(model):
        assert [norm.momentum for norm in model] == [0.1, 0.0]
    assert [norm.momentum for norm in model] == [0.1, 0.1]
    assert [norm.track_running_stats for norm in model] == [False, True]
    assert model[0].running_mean is None


@pytest.mark.parametrize("build", [nn.BatchNorm1d, partial(nn.InstanceNorm1d, track_running_stats=True)])
def test_blocks_nest_and_modules_may_repeat(build):
    norm, x = build(3), torch.randn(8, 3, 4) + 5
    model = nn.Sequential(norm)
    with frozen_statistics(model, norm):
        with frozen_statistics(model):
            model(x)
        model(x)
        assert norm.running_mean.tolist() == [0.0] * 3
    model(x)
    assert (norm.running_mean > 0).all()


def test_only_the_modules_named_are_frozen():
    frozen, free = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    with frozen_statistics(frozen):
        free(frozen(torch.randn(8, 3) + 5) + 5)
    assert frozen.num_batches_tracked == 0
    assert free.num_batches_tracked == 1


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
@every_norm
def test_a_copy_that_is_made_within_a_block_is_not_frozen(copied, build, shape):
    model, x = used(build, shape)
    with frozen_statistics(model):
        twin = copied(model)
        state = copy.deepcopy(model.state_dict())
    assert equal(buffers(twin), buffers(model))
    assert equal(state, buffers(model) | dict(model.named_parameters()))
    model(x)
    twin(x)
    assert equal(buffers(twin), buffers(model))
    assert [type(value) for value in twin.buffers()] == [torch.Tensor] * 3


class OwnNorm(nn.BatchNorm1d):
    """Has a rule of its own, which does not use the momentum."""

    def forward(self, x):
        if self.training and self.track_running_stats:
            self.running_mean = 0.5 * self.running_mean + 0.5 * x.detach().mean(0)
        return x - x.mean(0)


def test_a_norm_with_an_own_forward_is_told_not_to_track():
    norm = OwnNorm(3)
    with frozen_statistics(norm):
        norm(torch.ones(4, 3))
    assert (norm.running_mean == 0).all()
    norm(torch.ones(4, 3))
    assert (norm.running_mean == 0.5).all()
    assert norm.track_running_stats


@pytest.mark.parametrize("reentrant", [False, True])
def test_frozen_norms_in_an_activation_checkpoint_can_run_again_behind_the_block(reentrant):
    gradients = []
    for frozen in (False, True):
        model, x = used(lambda: nn.BatchNorm1d(3), (8, 3))
        x = torch.linspace(0, 1, 24).view(8, 3).requires_grad_()
        with frozen_statistics(*[model] * frozen):
            y = checkpoint(model, x, use_reentrant=reentrant)
        y.pow(3).sum().backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_gradients_are_those_of_an_ordinary_pass():
    model, x = used(lambda: nn.BatchNorm1d(3), (8, 3))
    x.requires_grad_()
    with frozen_statistics(model):
        (frozen,) = torch.autograd.grad(model(x).pow(3).sum(), x)
    (ordinary,) = torch.autograd.grad(model(x).pow(3).sum(), x)
    assert torch.equal(frozen, ordinary)


def test_the_passes_that_update_statistics_in_the_released_code():
    assert set(PASSES) - UPDATING == {"search", "input"}
    assert set(PASSES) > UPDATING
