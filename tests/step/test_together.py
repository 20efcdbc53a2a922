"""What is relied on when passes are shared, and above all what is not."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advdrop import AdversarialDropout
from advdrop.lab.models import all_cnn, conv_large, highway, mlp, mnist_cnn, network_in_network
from advdrop.lab.models.baselines import HighwayLayer
from advdrop.lab.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d
from advdrop.step.together import _KINDS, all_modules, before_noise, kind, rowwise, still


class Unknown(nn.Module):
    def forward(self, x):
        return x


class OwnLinear(nn.Linear):
    """A type of its own: who knows what it does."""


class OwnSequential(nn.Sequential):
    """The same."""


class OwnNoise(GaussianNoise):
    """What its parent says of itself does not hold for it."""


class Block(nn.Module):
    """Says what it is."""

    rowwise = "container"

    def __init__(self, *parts):
        super().__init__()
        self.parts = nn.ModuleList()
        self.first = nn.Sequential(*parts)


def hooked(module, register="register_forward_hook"):
    getattr(module, register)(lambda *_: None)
    return module


def patched(module):
    module.forward = lambda x: x - x.mean(0)
    return module


UNKNOWN = {
    "batch norm": nn.BatchNorm1d(4),
    "batch norm in evaluation": nn.BatchNorm2d(4).eval(),
    "mean-only batch norm": MeanOnlyBatchNorm2d(4),
    "instance norm": nn.InstanceNorm1d(4),
    "unknown": Unknown(),
    "subclass": OwnLinear(4, 4),
    "subclass of a container": OwnSequential(nn.Linear(4, 4)),
    "subclass of torch's noise": type("OwnDropout", (nn.Dropout,), {})(),
    "subclass of a module that says what it is": OwnNoise(0.1),
    "module list": nn.ModuleList([nn.Linear(4, 4)]),
    "flattened rows": nn.Flatten(0),
    "weight norm": weight_norm(nn.Linear(4, 4)),
    "feature alpha dropout": nn.FeatureAlphaDropout(),
    "unflatten": nn.Unflatten(0, (2, 2)),
    "softmax over anything": nn.Softmax(0),
    "multi-head attention": nn.MultiheadAttention(4, 1),
    "another forward": patched(nn.Linear(4, 4)),
    "hook": hooked(nn.Linear(4, 4)),
    "hook before": hooked(nn.Linear(4, 4), "register_forward_pre_hook"),
    "backward hook": hooked(nn.Linear(4, 4), "register_full_backward_hook"),
    "backward hook before": hooked(nn.Linear(4, 4), "register_full_backward_pre_hook"),
    "hook on a container": hooked(nn.Sequential(nn.Linear(4, 4))),
}


@pytest.mark.parametrize("module", UNKNOWN.values(), ids=UNKNOWN)
def test_what_is_not_known_is_not_relied_on(module):
    deep = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), module))
    for modules in ([module], [deep], [nn.Linear(4, 4), module]):
        assert not rowwise(modules)
        assert not still(modules)
    assert before_noise([nn.Linear(4, 4), module, nn.Dropout(0.5)]) == 0


def test_a_removed_hook_is_forgotten():
    module = nn.Linear(4, 4)
    hook = module.register_forward_hook(lambda *_: None)
    assert kind(module) is None
    hook.remove()
    assert kind(module) == "still"


@pytest.mark.parametrize("make", [nn.Dropout, nn.Dropout2d, Dropout, GaussianNoise])
def test_noise_is_rowwise_and_still_only_where_it_is_off(make):
    module = make(0.3)
    deep = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), module))
    assert rowwise([deep])
    assert not still([deep])
    module.eval()
    assert deep.training
    assert still([deep])
    assert rowwise([deep])
    off = make(0.0)
    assert off.training
    assert still([off])


def test_containers_are_looked_into():
    quiet = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sequential()), HighwayLayer(4), AdversarialDropout(0.5))
    assert still([quiet])
    assert rowwise([quiet])
    assert still([])
    assert rowwise([])
    assert not still([quiet, nn.Sequential(nn.Sequential(Dropout(0.1)))])
    assert kind(Block()) == "container"
    assert not rowwise([Block(nn.ReLU())])  # for its module list


def test_every_module_is_listed_once():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(nn.ReLU(), shared), nn.TransformerEncoderLayer(4, 2))
    model.register_module("nothing", None)
    assert len(all_modules(model)) == len(set(all_modules(model)))
    assert set(all_modules(model)) == set(model.modules())


EXAMPLES = {
    nn.Linear: (nn.Linear(6, 6), (6,)),
    nn.Conv1d: (nn.Conv1d(2, 3, 3), (2, 6)),
    nn.Conv2d: (nn.Conv2d(2, 3, 3), (2, 6, 6)),
    nn.Conv3d: (nn.Conv3d(2, 3, 3), (2, 6, 6, 6)),
    nn.LayerNorm: (nn.LayerNorm(6), (4, 6)),
    nn.GroupNorm: (nn.GroupNorm(2, 4), (4, 6)),
    nn.MaxPool1d: (nn.MaxPool1d(2), (2, 6)),
    nn.AvgPool1d: (nn.AvgPool1d(2), (2, 6)),
    nn.AdaptiveAvgPool1d: (nn.AdaptiveAvgPool1d(2), (2, 6)),
    nn.MaxPool2d: (nn.MaxPool2d(2), (2, 6, 6)),
    nn.AvgPool2d: (nn.AvgPool2d(2), (2, 6, 6)),
    nn.AdaptiveAvgPool2d: (nn.AdaptiveAvgPool2d(2), (2, 6, 6)),
    nn.Dropout1d: (nn.Dropout1d(0.5), (2, 6)),
    nn.Dropout2d: (nn.Dropout2d(0.5), (2, 6, 6)),
    nn.Dropout3d: (nn.Dropout3d(0.5), (2, 6, 6, 6)),
    AdversarialDropout: (AdversarialDropout(0.0), (6,)),
    HighwayLayer: (HighwayLayer(2), (2, 6, 6)),
}
STILL = [known for known, what in {**_KINDS, HighwayLayer: "still"}.items() if what == "still"]
NOISY = [known for known, what in {**_KINDS, Dropout: "noisy", GaussianNoise: "noisy"}.items() if what == "noisy"]


@pytest.mark.parametrize("known", STILL)
def test_a_row_of_a_still_module_depends_on_that_row_alone_and_on_no_noise(known):
    module, shape = EXAMPLES.get(known) or (known(), (6,))
    module.double()
    x = torch.randn(5, *shape, dtype=torch.float64)
    y, before = module(x), torch.get_rng_state()
    assert torch.equal(module(x), y)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(module(torch.cat([x[3:], x[:3]])), torch.cat([y[3:], y[:3]]))
    torch.testing.assert_close(torch.cat([module(x[:2]), module(x[2:])]), y)


@pytest.mark.parametrize("known", NOISY)
def test_noise_is_drawn_for_every_row(known):
    module, shape = EXAMPLES.get(known) or (known(0.5), (6,))
    y = module(torch.ones(64, *shape)).flatten(1)
    assert len(y.unique(dim=0)) > 2


BEFORE_NOISE = {
    "below the first noise": ([nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8)], 2),
    "through what is off": (
        [nn.Linear(4, 4), Dropout(0.5).eval(), nn.Dropout(0.0, inplace=True), nn.Sequential(nn.Tanh()), Dropout(0.1)],
        4,
    ),
    "all": ([nn.Linear(4, 8), nn.ReLU(inplace=True)], 2),
    "nothing": ([], 0),
    "noise at once": ([GaussianNoise(0.1), nn.Linear(4, 8)], 0),
    "batch norm first": ([nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)], 0),
    "hooked noise": ([nn.Linear(4, 4), hooked(nn.Dropout(0.5), "register_forward_pre_hook")], 0),
    "in-place noise": ([nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), nn.Linear(4, 4)], 0),
    "noise inside a container": ([nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Dropout(0.5))], 0),
}


@pytest.mark.parametrize(("modules", "expected"), BEFORE_NOISE.values(), ids=BEFORE_NOISE)
def test_what_passes_of_the_same_rows_can_share(modules, expected):
    assert before_noise(modules) == expected


NETWORKS = {  # whether rows are by themselves, and how many children come before the first noise
    "mnist-cnn": (mnist_cnn, True, 3),
    "mlp": (lambda: mlp(dropout=0.2), True, None),
    "conv-large": (lambda: conv_large(width=0.05), False, 0),
    "mean-only": (lambda: conv_large(width=0.05, norm="mean-only"), False, 0),
    "weight": (lambda: conv_large(width=0.05, norm="weight+mean-only"), False, 0),
    "no norm": (lambda: conv_large(width=0.05, norm="none"), True, 0),
    "no noise": (lambda: conv_large(width=0.05, norm="none", sigma=0.0, dropout=0.0), True, None),
    "highway": (highway, True, None),
    "all-cnn": (all_cnn, True, None),
    "nin": (network_in_network, True, None),
}


@pytest.mark.parametrize(("make", "separate", "shared"), NETWORKS.values(), ids=NETWORKS)
def test_the_papers_networks(make, separate, shared):
    model = make()
    assert rowwise([model]) == separate
    assert still([model.eval()]) == separate
    if shared is not None:
        assert before_noise(list(model.train())) == shared
