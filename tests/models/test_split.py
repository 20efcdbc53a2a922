import copy
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

from advdrop.masks import AdversarialDropout, handing
from advdrop.models import Split, adversarial_layers, cut
from advdrop.models.split import contains_layer


def dense(a, b):
    return nn.Linear(a, b)


def sequential():
    return nn.Sequential(dense(4, 6), nn.ReLU(), AdversarialDropout(0.5), dense(6, 3))


def nested():
    inner = nn.Sequential(dense(6, 6), nn.Sequential(nn.Tanh(), AdversarialDropout(0.5), dense(6, 5)), nn.Tanh())
    return nn.Sequential(dense(4, 6), nn.ReLU(), inner, dense(5, 3))


class Skip(nn.Module):
    """A skip connection around the layer, a parameter of its own above and a buffer of its own below."""

    def __init__(self):
        super().__init__()
        self.register_buffer("shift", torch.ones(4))
        self.lower = dense(4, 6)
        self.drop = AdversarialDropout(0.5)
        self.upper = dense(6, 6)
        self.gain = nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
        self.top = dense(6, 3)

    def forward(self, x):
        h = torch.tanh(self.lower(x - self.shift))
        return self.top(h + self.upper(self.drop(h))) * self.gain


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.middle, self.top = dense(4, 6), dense(6, 5), dense(5, 3)
        self.first, self.second = AdversarialDropout(0.5), AdversarialDropout(0.5)

    def forward(self, x):
        return self.top(self.second(self.middle(self.first(self.lower(x)).relu())))


class Scaled(nn.Sequential):
    def forward(self, x):
        return 10 * super().forward(x)


def scaled():
    return Scaled(dense(4, 6), AdversarialDropout(0.5), dense(6, 3))


def scaled_inside():
    return nn.Sequential(dense(4, 4), scaled(), dense(3, 3))


def custom_inside():
    return nn.Sequential(dense(4, 4), nn.Sequential(nn.Tanh(), Skip()), dense(3, 3))


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nested()

    def forward(self, x):
        return self.body(2 * x)


class Branch(nn.Sequential):
    """Cannot be traced: the forward pass looks at a value. Ten times what a plain Sequential would return."""

    def forward(self, x):
        return 10 * super().forward(x) if x.sum() < 1e9 else x


def branch():
    return Branch(dense(4, 6), AdversarialDropout(0.5), dense(6, 3))


def branch_inside():
    return nn.Sequential(dense(4, 4), branch(), dense(3, 3))


def only_the_layer():
    return nn.Sequential(AdversarialDropout(0.5), dense(4, 3))


TRACEABLE = (
    sequential, nested, Skip, TwoLayers, scaled, scaled_inside, custom_inside, Wrapper, only_the_layer,
)  # fmt: skip
traceable = pytest.mark.parametrize("build", TRACEABLE)
x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def halves(layer, h):
    """A mask that differs between units and examples, and not with the order of calls."""
    return (torch.arange(h.numel()).view_as(h) % 3 != 0).to(h.dtype)


def quietly(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


@traceable
@pytest.mark.parametrize("training", [True, False])
def test_the_two_parts_compute_the_whole(build, training):
    model = build().train(training)
    parts = cut(model)
    with handing(halves):
        assert torch.equal(parts.upper(parts.under(x)), model(x))
        assert torch.equal(parts(x), model(x))
    assert torch.equal(cut(model.eval())(x), model(x))


@traceable
def test_no_layer_is_left_below(build):
    model = build()
    parts = cut(model)
    assert not contains_layer(parts.under)
    assert adversarial_layers(parts.upper) == adversarial_layers(model)


@traceable
def test_the_parts_share_their_parameters_with_the_model(build):
    model = build()
    own, shared = list(model.parameters()), list(cut(model).parameters())
    assert {id(p) for p in shared} == {id(p) for p in own}
    with handing(halves):
        cut(model)(x).sum().backward()
    assert all(p.grad is not None for p in own)
    with torch.no_grad():
        for p in own:
            p.mul_(1.5)
    with handing(halves):
        assert torch.equal(cut(model)(x), model(x))


@traceable
def test_the_result_is_remembered(build):
    model = build()
    assert cut(model) is cut(model)
    assert cut(model) is not cut(build())


@traceable
def test_nothing_that_does_not_depend_on_a_mask_is_left_above(build):
    model = build().eval()
    calls = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Tanh):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    parts = cut(model)
    h = parts.under(x)
    below = set(calls)
    calls.clear()
    parts.upper(h)
    assert below.isdisjoint(calls)
    expected = {
        sequential: {"0"},
        nested: {"0", "2.0", "2.1.0"},
        Skip: {"lower"},
        TwoLayers: {"lower"},
        scaled: {"0"},
        scaled_inside: {"0", "1.0"},
        custom_inside: {"0", "1.0", "1.1.lower"},
        Wrapper: {"body.0", "body.2.0", "body.2.1.0"},
        only_the_layer: set(),
    }
    assert below == expected[build]


def test_a_sequential_is_cut_between_its_children():
    model = sequential()
    parts = cut(model)
    assert [*parts.under, *parts.upper] == list(model)
    assert (len(parts.under), len(parts.upper)) == (2, 2)


def test_a_nested_sequential_is_cut_inside():
    model = nested()
    parts = cut(model)
    assert list(parts.under) == [model[0], model[1], model[2][0], model[2][1][0]]
    assert list(parts.upper) == [model[2][1][1], model[2][1][2], model[2][2], model[3]]


def test_a_skip_connection_crosses_the_cut_once():
    hidden = cut(Skip()).under(x)
    assert [tuple(h.shape) for h in hidden if len(h) == len(x)] == [(5, 6)]


class InPlace(Skip):
    def forward(self, x):
        h = self.lower(x)
        return self.top(h.add_(self.drop(h)))


class InPlaceByName(Skip):
    def forward(self, x):
        h = self.lower(x)
        h.add_(self.drop(h))
        return self.top(h)


@pytest.mark.parametrize("build", [*TRACEABLE, InPlace, InPlaceByName])
def test_the_upper_part_can_run_again_on_the_same_hidden_values(build):
    model = build().eval()
    parts = quietly(cut, model)
    with torch.no_grad():
        hidden = parts.under(x)
        assert torch.equal(parts.upper(hidden), model(x))
        assert torch.equal(parts.upper(hidden), model(x))


def test_training_modes_make_a_new_cut():
    model = Skip()
    training = cut(model)
    model.eval()
    assert cut(model) is not training
    assert torch.equal(cut(model)(x), model(x))


class ModeDependent(Skip):
    def forward(self, x):
        return super().forward(x) if self.training else -super().forward(x)


def test_a_forward_pass_that_depends_on_the_mode_is_followed():
    model = ModeDependent()
    for training in (True, False, True):
        model.train(training)
        with handing(halves):
            assert torch.equal(cut(model)(x), model(x))


@pytest.mark.parametrize("build", [sequential, Skip])
def test_a_replaced_module_makes_a_new_cut(build):
    model = build().eval()
    cut(model)
    if build is Skip:
        model.lower = dense(4, 6)
    else:
        model[0] = dense(4, 6)
    assert torch.equal(cut(model)(x), model(x))


def test_a_replaced_parameter_makes_a_new_cut():
    model = Skip().eval()
    cut(model)
    model.gain = nn.Parameter(torch.tensor([5.0, 5.0, 5.0]))
    assert torch.equal(cut(model)(x), model(x))


def test_a_replaced_buffer_makes_a_new_cut():
    model = Skip().eval()
    cut(model)
    model.shift = torch.full((4,), 5.0)
    assert torch.equal(cut(model)(x), model(x))


def test_a_converted_model_makes_a_converted_cut():
    model = Skip().eval()
    cut(model)
    model.double()
    assert {t.dtype for t in (*cut(model).parameters(), *cut(model).buffers())} == {torch.float64}
    assert torch.equal(cut(model)(x.double()), model(x.double()))


@traceable
def test_a_copy_is_cut_for_itself(build):
    model = build().eval()
    cut(model)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for p in twin.parameters():
            p.add_(1.0)
    assert torch.equal(cut(twin)(x), twin(x))
    assert torch.equal(cut(model)(x), model(x))


@pytest.mark.parametrize("build", [branch, branch_inside])
def test_what_cannot_be_traced_runs_whole_and_says_so_once(build):
    model = build().eval()
    with pytest.warns(
        UserWarning, match=r"Branch could not be cut.*whole network.*Split\(under, upper\).*tracer said"
    ) as said:
        cut(model)
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = cut(model)
    assert torch.equal(parts(x), model(x))
    with handing(halves):
        assert torch.equal(parts.upper(parts.under(x)), model(x))


class StochasticGain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.drop = dense(4, 6), AdversarialDropout(0.0)

    def forward(self, x):
        return self.drop(self.lower(x)) * torch.rand(1)


def test_noise_drawn_in_a_traced_forward_stays_noise():
    parts = quietly(cut, StochasticGain())
    assert not torch.equal(parts(x), parts(x))


class Counting(Skip):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return super().forward(x)


def test_cutting_runs_no_side_effect_of_the_forward_pass():
    model = Counting()
    quietly(cut, model)
    assert model.calls == 0


@pytest.mark.parametrize(
    ("build", "at", "below"),
    [
        (sequential, "1", {"0"}),
        (sequential, "0", set()),
        (nested, "2", {"0"}),
        (nested, "2.1", {"0", "2.0"}),
        (nested, "2.1.0", {"0", "2.0"}),
        (nested, "3", {"0", "2.0"}),
        (Skip, "lower", set()),
        (Wrapper, "body.2", {"body.0"}),
        (scaled, "0", set()),
        (scaled_inside, "1", {"0"}),
        (branch_inside, "1", {"0"}),
    ],
)
def test_a_cut_at_a_named_module(build, at, below):
    model = build().eval()
    calls = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(lambda *_, name=name: calls.append(name))
    parts = cut(model, at=at)
    h = parts.under(x)
    assert set(calls) == below
    assert torch.equal(parts.upper(h), model(x))
    assert cut(model, at=at) is parts


def test_a_named_cut_of_a_split_and_of_a_model_without_a_layer():
    split = Split(nn.Sequential(dense(4, 6), nn.Tanh()), nn.Sequential(AdversarialDropout(0.5), dense(6, 3))).eval()
    plain = nn.Sequential(dense(4, 6), nn.Tanh(), dense(6, 3))
    for model, at in ((split, "under.1"), (plain, "1")):
        parts = cut(model, at=at)
        (linear,) = [m for m in parts.under.modules() if isinstance(m, nn.Linear)]
        assert linear.in_features == 4
        assert torch.equal(parts(x), model(x))


@pytest.mark.parametrize("at", ["5", "body", ""])
def test_an_unknown_name_is_refused_with_the_known_ones(at):
    with pytest.raises(ValueError, match=f"cannot cut at '{at}': the modules of this model are 0, 1, 2, 3$"):
        cut(sequential(), at=at)


@pytest.mark.parametrize("build", [lambda: nn.Sequential(dense(4, 6), dense(6, 3)), lambda: dense(4, 3)])
def test_a_model_without_a_layer_is_all_above(build):
    model = build()
    parts = cut(model)
    assert parts.under(x) is x
    assert torch.equal(parts(x), model(x))
    assert parts.upper is model


def test_a_layer_alone():
    layer = AdversarialDropout(0.5).eval()
    assert torch.equal(cut(layer)(x), x)
    assert adversarial_layers(cut(layer).upper) == (layer,)


def test_a_split_is_returned_as_it_is():
    split = Split(dense(4, 6), nn.Sequential(AdversarialDropout(0.5), dense(6, 3)))
    assert cut(split) is split


@pytest.mark.parametrize("under", [AdversarialDropout, sequential, nested])
def test_a_split_refuses_a_layer_below(under):
    with pytest.raises(ValueError, match=r"under network.*must not contain an AdversarialDropout.*upper network"):
        Split(under(), dense(3, 3))


def test_the_layers_of_a_model_each_once():
    layer, other = AdversarialDropout(), AdversarialDropout()
    assert adversarial_layers(nn.Sequential(layer, dense(2, 2), nn.Sequential(other, layer))) == (layer, other)
    assert adversarial_layers(dense(2, 2)) == ()


@pytest.mark.parametrize("build", [*TRACEABLE, branch, branch_inside, lambda: dense(4, 3)])
def test_a_forgotten_model_is_freed(build):
    model = build()
    quietly(cut, model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Temperature(Skip):
    def __init__(self):
        super().__init__()
        self.temperature = 1.0

    def forward(self, x):
        return super().forward(x) / self.temperature


def test_a_changed_attribute_makes_a_new_cut():
    model = Temperature().eval()
    cut(model)
    model.temperature = 100.0
    assert torch.equal(cut(model)(x), model(x))


class Gamble(Skip):
    def forward(self, x):
        return super().forward(x) * (1.0 if torch.rand(()) < 0.5 else 0.0)


def test_a_branch_on_noise_is_not_frozen_and_the_noise_is_put_back():
    model = Gamble().eval()
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    parts = quietly(cut, model)
    assert torch.equal(torch.rand(1), expected)
    assert len({bool(parts(x).abs().sum() > 0) for _ in range(20)}) == 2


class LateInPlace(Skip):
    """The change of h comes after the layer has read it; a cut would make it come before."""

    def __init__(self):
        super().__init__()
        self.side = nn.Sequential(nn.ReLU(inplace=True), dense(6, 6))

    def forward(self, x):
        h = self.lower(x)
        a = self.drop(h)
        return self.top(a + self.side(h))


class EarlyInPlace(Skip):
    def forward(self, x):
        return self.top(self.drop(nn.functional.relu(self.lower(x), inplace=True)).relu_())


@pytest.mark.parametrize(("build", "is_cut"), [(LateInPlace, False), (EarlyInPlace, True)])
def test_in_place_operations_stop_the_cut_only_where_they_reach_across(build, is_cut):
    model = build()
    parts = quietly(cut, model)
    with handing(halves):
        assert torch.equal(parts(x), model(x))
    assert (parts.upper is not model) == is_cut


@pytest.mark.parametrize("build", [sequential, Skip])
def test_hooks_of_what_would_be_cut_go_on_running(build):
    model = build().eval()
    cut(model)
    model.register_forward_hook(lambda module, args, output: output * 0)
    with pytest.warns(UserWarning, match="hooks"):
        parts = cut(model)
    assert (parts(x) == 0).all()
