"""What is counted on when passes are shared, and above all what is not."""

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrizations import weight_norm

from advdrop import AdversarialDropout, Split
from advdrop.models import all_cnn, conv_large, highway, mlp, mnist_cnn, network_in_network
from advdrop.models.highway import HighwayLayer
from advdrop.models.layers import Dropout, GaussianNoise, MeanOnlyBatchNorm2d
from advdrop.models.rowwise import NOISY, STILL, beginning, by_rows, still


class Unknown(nn.Module):
    def forward(self, x):
        return x


class OwnLinear(nn.Linear):
    """A type of its own: who knows what it does."""


class OwnSequential(nn.Sequential):
    """The same."""


def hooked(module, kind="forward"):
    register = module.register_forward_hook if kind == "forward" else module.register_forward_pre_hook
    register(lambda *_: None)
    return module


def compiled(module):
    module.compile(backend="eager")
    return module


NOT_BY_ROWS = {
    "batch norm": nn.BatchNorm1d(4),
    "batch norm in evaluation": nn.BatchNorm2d(4).eval(),
    "mean-only batch norm": MeanOnlyBatchNorm2d(4),
    "instance norm": nn.InstanceNorm1d(4),
    "unknown": Unknown(),
    "subclass": OwnLinear(4, 4),
    "subclass of a container": OwnSequential(nn.Linear(4, 4)),
    "own dropout": type("OwnDropout", (nn.Dropout,), {})(),
    "hook": hooked(nn.Linear(4, 4)),
    "hook before": hooked(nn.Linear(4, 4), "before"),
    "hook on a container": hooked(nn.Sequential(nn.Linear(4, 4))),
    "flattened rows": nn.Flatten(0),
    "weight norm": weight_norm(nn.Linear(4, 4)),
    "feature alpha dropout": nn.FeatureAlphaDropout(),
    "unflatten": nn.Unflatten(0, (2, 2)),
    "softmax over anything": nn.Softmax(0),
    "multi-head attention": nn.MultiheadAttention(4, 1),
}


@pytest.mark.parametrize("module", NOT_BY_ROWS.values(), ids=NOT_BY_ROWS)
def test_what_is_not_known_is_not_counted_on(module):
    deep = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), module))
    assert not by_rows(module)
    assert not still(module)
    assert not by_rows(deep)
    assert not still(deep)
    assert not by_rows(nn.Linear(4, 4), module)
    assert not by_rows(Split(module, nn.Linear(4, 4)))


@pytest.mark.parametrize("kind", ["forward", "before"])
def test_a_removed_hook_is_forgotten(kind):
    module = nn.Linear(4, 4)
    register = module.register_forward_hook if kind == "forward" else module.register_forward_pre_hook
    hook = register(lambda *_: None)
    assert not by_rows(module)
    hook.remove()
    assert by_rows(module)
    assert still(module)


NOISE = {
    "dropout": nn.Dropout(0.3),
    "ours": Dropout(0.3),
    "channels": nn.Dropout2d(0.3),
    "gaussian": GaussianNoise(0.3),
}


@pytest.mark.parametrize("module", NOISE.values(), ids=NOISE)
def test_noise_goes_by_rows_and_is_still_in_evaluation_only(module):
    deep = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), module))
    assert by_rows(module)
    assert by_rows(deep)
    assert not still(module)
    assert not still(deep)
    try:
        assert still(deep.eval())
        assert by_rows(deep)
        deep.train()
        module.eval()
        assert still(deep)
    finally:
        module.train()


@pytest.mark.parametrize("module", [nn.Dropout(0.0), Dropout(0.0), nn.Dropout2d(0.0), GaussianNoise(0.0)], ids=repr)
def test_noise_that_is_turned_off_is_still(module):
    assert module.training
    assert still(module)
    assert by_rows(module)
    assert still(nn.Sequential(nn.Linear(4, 4), module))


def test_nested_containers_are_looked_into():
    quiet = nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Sequential()), HighwayLayer(4), Split(nn.ReLU(), nn.Tanh()))
    assert still(quiet)
    assert by_rows(quiet)
    assert by_rows()
    assert still(nn.Sequential())
    assert not still(nn.Sequential(quiet, nn.Sequential(nn.Sequential(Dropout(0.1)))))


def test_adversarial_dropout_is_handed_its_mask():
    assert still(AdversarialDropout(0.5))
    assert by_rows(AdversarialDropout(0.5, granularity="channel"))


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
    GaussianNoise: (GaussianNoise(0.5), (6,)),
    AdversarialDropout: (AdversarialDropout(0.0), (6,)),
    HighwayLayer: (HighwayLayer(2), (2, 6, 6)),
}


@pytest.mark.parametrize("kind", sorted(STILL | {HighwayLayer}, key=str), ids=lambda kind: kind.__name__)
def test_a_row_of_a_still_module_depends_on_that_row_alone_and_on_no_noise(kind):
    module, shape = EXAMPLES.get(kind) or (kind(), (6,))
    module.double()
    x = torch.randn(5, *shape, dtype=torch.float64)
    y, before = module(x), torch.get_rng_state()
    torch.testing.assert_close(module(x), y, rtol=0, atol=0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(module(torch.cat([x[3:], x[:3]])), torch.cat([y[3:], y[:3]]))
    torch.testing.assert_close(torch.cat([module(x[:2]), module(x[2:])]), y)


@pytest.mark.parametrize("kind", sorted(NOISY, key=str), ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_noise_is_drawn_for_every_row(kind):
    module, shape = EXAMPLES.get(kind) or (kind(0.5), (6,))
    y = module.train()(torch.ones(64, *shape)).flatten(1)
    assert len(y.unique(dim=0)) > 2


def test_the_beginning_ends_below_the_first_noise():
    linear, relu, dropout, last = nn.Linear(4, 8), nn.ReLU(), Dropout(0.5), nn.Linear(8, 8)
    first, rest = beginning(nn.Sequential(linear, relu, dropout, last))
    assert list(first) == [linear, relu]
    assert list(rest) == [dropout, last]


def test_the_beginning_goes_through_what_is_turned_off():
    parts = [nn.Linear(4, 4), Dropout(0.5).eval(), Dropout(0.0), GaussianNoise(0.0), nn.Sequential(nn.Tanh())]
    first, rest = beginning(nn.Sequential(*parts, GaussianNoise(0.1), nn.Linear(4, 4)))
    assert list(first) == parts
    assert len(rest) == 2
    first, rest = beginning(nn.Sequential(Dropout(0.5), nn.Linear(4, 4)).eval())
    assert len(first) == 2
    assert isinstance(rest, nn.Identity)


def test_a_network_without_noise_is_all_beginning():
    for under in (nn.Sequential(nn.Linear(4, 8), nn.ReLU()), nn.Linear(4, 8), nn.Sequential(), nn.Identity()):
        first, rest = beginning(under)
        assert first is under
        assert isinstance(rest, nn.Identity)


def test_noise_at_the_very_first_leaves_nothing_to_share():
    under = nn.Sequential(GaussianNoise(0.1), nn.Linear(4, 8))
    first, rest = beginning(under)
    assert len(first) == 0
    assert list(rest) == list(under)


NO_BEGINNING = {
    "batch norm first": nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)),
    "unknown first": nn.Sequential(nn.Linear(4, 4), Unknown(), nn.Dropout(0.5)),
    "hook first": nn.Sequential(nn.Linear(4, 4), hooked(nn.ReLU()), nn.Dropout(0.5)),
    "hooked noise": nn.Sequential(nn.Linear(4, 4), hooked(nn.Dropout(0.5), "before")),
    "flattened rows": nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)),
    "in-place dropout behind": nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5, inplace=True), nn.Linear(4, 4)),
    "noise in a nested container": nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), nn.Dropout(0.5))),
    "own container": OwnSequential(nn.Linear(4, 4), nn.Dropout(0.5)),
    "hook on the container": hooked(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))),
    "hook before the container": hooked(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), "before"),
    "compiled in place": compiled(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))),
    "no container": Unknown(),
    "noise alone": nn.Dropout(0.5),
    "a still network with a hook": hooked(nn.Sequential(nn.Linear(4, 4))),
}


@pytest.mark.parametrize("under", NO_BEGINNING.values(), ids=NO_BEGINNING)
def test_what_cannot_be_shared_stays_whole(under):
    first, rest = beginning(under)
    if isinstance(first, nn.Sequential):
        assert len(first) == 0
        assert list(rest) == list(under)
    else:
        assert isinstance(first, nn.Identity)
        assert rest is under


def test_in_place_dropout_that_is_off_is_no_hindrance():
    under = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0, inplace=True), nn.ReLU(inplace=True), nn.Dropout(0.5))
    first, rest = beginning(under)
    assert (len(first), len(rest)) == (3, 1)


@pytest.mark.parametrize("training", [True, False])
def test_beginning_and_rest_are_the_network(training):
    under = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Dropout(0.2))
    under.train(training)
    first, rest = beginning(under)
    x = torch.randn(5, 4)
    torch.manual_seed(1)
    whole = under(x)
    torch.manual_seed(1)
    assert torch.equal(rest(first(x)), whole)


def test_the_beginning_of_the_papers_networks():
    first, rest = beginning(mnist_cnn().under)
    assert [type(part) for part in first] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]
    assert type(rest[0]) is Dropout
    first, rest = beginning(conv_large(width=0.05).under)
    assert len(first) == 0
    assert type(rest[0]) is GaussianNoise
    first, _ = beginning(conv_large(width=0.05, sigma=0.0, norm="none", dropout=0.0).under)
    assert len(first) > 20


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (mnist_cnn, True),
        (lambda: mlp(dropout=0.2), True),
        (lambda: conv_large(width=0.05), False),
        (lambda: conv_large(width=0.05, norm="mean-only"), False),
        (lambda: conv_large(width=0.05, norm="weight+mean-only"), False),
        (lambda: conv_large(width=0.05, norm="none"), True),
        (highway, True),
        (all_cnn, True),
        (network_in_network, True),
    ],
    ids=["mnist-cnn", "mlp", "batch", "mean-only", "weight", "none", "highway", "all-cnn", "nin"],
)
def test_the_papers_networks_by_rows(make, expected):
    model = make()
    assert by_rows(model) == expected
    assert not still(model)
    assert still(model.eval()) == expected
