"""What a step takes, what it gives back, and what it refuses."""

import copy
import gc
import pickle
import re
import threading
import time
import warnings
from collections import namedtuple
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from transformers.modeling_outputs import SequenceClassifierOutput

from advdrop import (
    AT,
    EMA,
    VAT,
    AdversarialDropout,
    CrossEntropy,
    EntropyMinimization,
    PiModel,
    Probe,
    SAdD,
    Step,
    TemporalEnsembling,
    Term,
    VAdD,
    explain,
    mse,
)
from advdrop.insertion import insert
from advdrop.randomness import borrowed_noise
from advdrop.step.batch import Batch
from small import CLASSES, FEATURES, HIDDEN, Wrapped, batch, close, gradients, noisy, only, quiet, run, seeded
from table import TABLE, every

CPU = torch.device("cpu")
Named = namedtuple("Named", ["features", "logits"])


@dataclass
class Plain:
    logits: torch.Tensor


class Returning(nn.Module):
    """A network whose output is made into something else."""

    def __init__(self, net, make):
        super().__init__()
        self.net, self.make = net, make

    def forward(self, x):
        return self.make(self.net(x))


OUTPUTS = {
    "tensor": (lambda z: z, None),
    "named tuple": (lambda z: Named(z.exp(), z), None),
    "named tuple, by position": (lambda z: Named(z.exp(), z), 1),
    "named tuple, by name": (lambda z: Named(z, z.exp()), "features"),
    "object, by name": (lambda z: Named(z.exp(), Plain(z)), lambda output: output.logits.logits),
    "dataclass, by name": (Plain, "logits"),
    "dict": (lambda z: {"logits": z, "features": z.exp()}, None),
    "dict, by key": (lambda z: {"scores": z}, "scores"),
    "model output": (lambda z: SequenceClassifierOutput(logits=z), None),
    "object": (Plain, None),
    "tuple": (lambda z: (z.exp(), z), 1),
    "tensor, by position": (lambda z: z, 0),  # not its first row
    "list from its end": (lambda z: [z.exp(), z], -1),
    "function": (lambda z: ((z[:, None],),), lambda output: output[0][0].squeeze(1)),
}


@pytest.mark.parametrize(("make", "logits"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_any_kind(make, logits, apart):
    model, objective, results = quiet(0.5), CrossEntropy() + SAdD() + VAdD() + VAT(), []
    for network, where in ((model, None), (Returning(model, make), logits)):
        loss = run(network, objective, logits=where).loss
        results.append([loss, *gradients(model, loss)])
    close(*results, 1e-6)


BAD_OUTPUTS = {
    "tuple": (lambda z: (z, z), None, r"logits \(B, C\) or \(B, C, \*D\), got tuple; say where they are with Step\("),
    "dict": (lambda z: {"scores": z}, None, r"got dict; say where"),
    "no tensor": (lambda z: {"logits": "none"}, None, r"got dict; say where"),
    "sequence": (lambda z: z[:, None], None, r"labels of shape \(8,\) do not fit.*\(8, 1, 3\), which need.*\(8, 3\)"),
    "no such name": (lambda z: Named(z, z), "scores", r"got Named without 'scores'$"),
    "no such key": (lambda z: {"logits": z}, "scores", r"got dict without 'scores'$"),
    "no such position": (lambda z: (z, z), 2, r"got tuple without 2$"),
    "one value": (lambda z: z[:, 0], None, r"got \(8,\); if it is one value per example, use.*unsqueeze\(1\)"),
    "wrong part": (lambda z: (z, z[0]), 1, r"\(B, C, \*D\), got \(3,\)$"),
}


@pytest.mark.parametrize(("make", "logits", "message"), BAD_OUTPUTS.values(), ids=BAD_OUTPUTS)
def test_outputs_without_logits_are_refused(make, logits, message):
    with pytest.raises(ValueError, match=message):
        run(Returning(quiet(), make), CrossEntropy(), logits=logits)


def test_auxiliary_outputs_in_training_alone(apart):
    """As torchvision's GoogLeNet has them."""

    class Auxiliary(Returning):
        def forward(self, x):
            return super().forward(x) if self.training else self.net(x)

    model, losses = quiet(0.5), []
    for network in (model, Auxiliary(model, lambda z: (z, z.exp()))):
        losses.append(run(network, CrossEntropy() + VAdD(target=EMA(0.9), search=Probe()), logits=0).loss)
    close([losses[0]], [losses[1]], 1e-6)


class Taking(nn.Module):
    """A network of two arguments, the second of which may be missing."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, weights=None):
        return self.net(x if weights is None else x * weights)


class Request:
    """The inputs as an object of the network's own."""

    def __init__(self, x):
        self.x = x


class TakingRequests(Taking):
    def forward(self, request):
        return super().forward(request.x)


ONES = {8: torch.ones(8, 1), 16: torch.ones(16, 1)}
INPUTS = {
    "tuple": (Taking, lambda x: (x,)),
    "tuple of two": (Taking, lambda x: (x, ONES[len(x)])),
    "dict": (Taking, lambda x: {"x": x}),
    "dict of two": (Taking, lambda x: {"weights": ONES[len(x)], "x": x}),
    "object": (TakingRequests, Request),
    "dict for a sequential network": (lambda net: net, lambda x: {"input": x}),
    "tuple for a sequential network": (lambda net: net, lambda x: (x,)),
}


@pytest.mark.parametrize(("wrap", "make"), INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("labeled", [True, False], ids=["labeled", "all"])
def test_inputs_of_any_kind(wrap, make, labeled, apart):
    model, rows = quiet(0.5), batch()
    if labeled:
        rows = {**only(rows, "x", "y"), "second_view": rows["x"] + 0.3}
    objective, results = CrossEntropy() + SAdD() + VAdD() + PiModel(), []
    made = {name: make(given) if name in ("x", "unlabeled", "second_view") else given for name, given in rows.items()}
    for network, given in ((model, rows), (wrap(model), made)):
        loss = run(network, objective, given).loss
        results.append([loss, *gradients(model, loss)])
    close(*results, 1e-6)


class Changing(Taking):
    """Puts other features in the place of the given ones, as networks for graphs do."""

    def forward(self, given, key):
        kept = vars(given) if isinstance(given, Request) else given
        kept[key] = kept[key] / 2
        return super().forward(kept[key] * 2)


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda x: (Request(x), "x"),
        lambda x: ([x], 0),
        lambda x: {"given": {"x": x}, "key": "x"},
    ],
    ids=["object", "list", "dict in a dict"],
)
def test_every_pass_gets_the_inputs_of_the_first(make, reuse):
    """Halves are exact, so that the losses are the same bit for bit."""
    objective = CrossEntropy() + SAdD() + VAdD() + PiModel()
    rows, results = only(batch(), "x", "y"), []
    for wrap, x in ((Taking, (rows["x"],)), (Changing, make(rows["x"]))):
        torch.manual_seed(0)
        results.append(Step(wrap(quiet(0.5)), objective, reuse=reuse)(x, rows["y"]).loss)
    assert torch.equal(*results)


@dataclass(slots=True)
class Cache:
    """What a network has seen: an object with slots, a list in it, and another object in it."""

    x: torch.Tensor
    seen: list
    scale: Request


class Remembering(Taking):
    """Appends to a cache and goes on with all that is in it, as attention with the keys of the past does."""

    def forward(self, given):
        cache = given[0] if isinstance(given, tuple) else given
        cache.seen.append(cache.x)
        cache.x, cache.scale.x = cache.x / 2, cache.scale.x * 2
        return super().forward(torch.stack(cache.seen).sum(0) * cache.scale.x / 2)


Pair = namedtuple("Pair", ["cache", "other"])


@pytest.mark.parametrize("reuse", [True, False])
@pytest.mark.parametrize("wrap", [lambda cache: cache, lambda cache: ((cache, 0),), lambda cache: Pair(cache, 0)])
def test_what_is_inside_of_the_inputs_is_that_of_the_first_pass_too(wrap, reuse):
    objective, rows, losses = CrossEntropy() + SAdD() + VAdD() + PiModel(), only(batch(), "x", "y"), []
    cache = Cache(rows["x"], [], Request(1.0))
    for network, x in ((Taking, (rows["x"],)), (Remembering, wrap(cache))):
        torch.manual_seed(0)
        losses.append(Step(network(quiet(0.5)), objective, reuse=reuse)(x, rows["y"]).loss)
    assert torch.equal(*losses)
    assert cache.x is rows["x"]
    assert (cache.seen, cache.scale.x) == ([], 1.0)


def test_an_object_that_is_in_the_inputs_twice_stays_one():
    class Twice(Taking):
        def forward(self, one, other):
            assert one[0] is other
            assert other.own is other
            return super().forward(other.x)

    rows = only(batch(), "x", "y")
    request = Request(rows["x"])
    request.own = request
    Step(Twice(quiet(0.5)), CrossEntropy() + VAdD())(([request], request), rows["y"])


class Handle:
    """Frees something at its end."""

    freed = 0

    def __init__(self, x):
        self.x = x

    def __del__(self):
        Handle.freed += 1


def test_an_object_that_frees_something_is_not_copied():
    rows = only(batch(), "x", "y")
    handle = Handle(rows["x"])
    Step(TakingRequests(quiet(0.5)), CrossEntropy() + VAdD())(handle, rows["y"])
    gc.collect()
    assert Handle.freed == 0


def test_an_input_that_is_changed_in_place_is_told():
    class InPlace(Taking):
        def forward(self, x):
            return super().forward(x.div_(255))

    x, y = batch()["x"], batch()["y"]
    step = Step(InPlace(quiet(0.5)), CrossEntropy() + SAdD(), reuse=False)
    with pytest.warns(UserWarning, match=r"InPlace changes its input in place.*different inputs.*x = x / 255"):
        step(x.clone(), y)
    step(x.clone(), y)  # once is enough
    Step(InPlace(quiet(0.5)), CrossEntropy())(x.clone(), y)  # one pass gets what was given


@pytest.mark.parametrize("reuse", [True, False])
def test_complex_inputs(reuse):
    """Such as the samples of a radio signal."""

    class Radio(nn.Module):
        def __init__(self):
            super().__init__()
            self.filter, self.rest = nn.Linear(4, FEATURES, dtype=torch.complex64), quiet()

        def forward(self, x):
            return self.rest(self.filter(x).abs())

    torch.manual_seed(0)
    model, rows = Radio(), {"x": torch.randn(8, 4, dtype=torch.complex64), "y": torch.arange(8) % CLASSES}
    objective, filtered = CrossEntropy() + SAdD(delta=0.2), rows | {"x": model.filter(rows["x"]).abs()}
    found = run(model, objective, rows, reuse=reuse)
    torch.testing.assert_close(found.loss, run(model.rest, objective, filtered).loss)
    with pytest.raises(TypeError, match=r"one dense floating-point tensor, got torch\.complex64"):
        run(model, VAT(), rows, reuse=reuse)


def test_labeled_and_unlabeled_inputs_of_different_kinds(apart):
    model, rows, results = Taking(quiet(0.5)), batch(), []
    step = Step(model, CrossEntropy() + VAdD())
    for x in (rows["x"], (rows["x"],), {"x": rows["x"]}):
        results.append(step(**{**rows, "x": x}, generator=seeded()).loss)
    assert results[0] == results[1] == results[2]
    sequential = Step(model.net, CrossEntropy() + VAdD())
    for kind in (
        {},
        {"x": (rows["x"],)},
        {"unlabeled": (rows["unlabeled"],)},
        {"second_view": (rows["second_view"],)},
        {},
    ):
        assert sequential(**{**rows, **kind}, generator=seeded()).loss == results[0]


def test_a_schedule_needs_to_know_the_progress():
    def slope(progress):
        return 1.0 - progress

    model, objective = quiet(), CrossEntropy() + slope * VAT()
    with pytest.raises(ValueError, match=r"weight of vat is a schedule.*progress=update / updates"):
        run(model, objective, progress=None)
    assert run(model, objective, progress=0.25).weights == {"cross_entropy": 1.0, "vat": 0.75}
    assert run(model, 2.0 * CrossEntropy(), progress=None).weights == {"cross_entropy": 2.0}
    for progress, error in ((2.0, ValueError), (float("nan"), ValueError), ("half", TypeError)):
        with pytest.raises(error, match="progress must be"):
            run(model, CrossEntropy(), progress=progress)


@dataclass
class Broken(Term):
    """Gives NaN, and notes that it ran."""

    rows: str = "labeled"
    ran: int = 0

    def per_example(self, passes):
        self.ran += 1
        return passes.clean(self.rows).logits.sum(1) * float("nan")


def test_a_term_of_weight_zero_does_not_run():
    broken, model = Broken(), quiet()
    loss = run(model, CrossEntropy() + 0.0 * broken + (lambda progress: 1.0 - progress) * EntropyMinimization())
    assert broken.ran == 0
    assert list(loss.terms) == ["cross_entropy"]
    assert loss.weights == {"cross_entropy": 1.0, "broken": 0.0, "entropy_minimization": 0.0}
    assert loss.loss.item() == loss.terms["cross_entropy"].item()
    assert all(gradient.isfinite().all() for gradient in gradients(model, loss.loss))
    with pytest.raises(ValueError, match="every term of the objective has weight 0: cross_entropy, broken"):
        run(model, 0 * (CrossEntropy() + broken))


@pytest.mark.parametrize("weight", [-3.0, float("nan"), float("inf"), -float("inf"), 10**400])
def test_a_schedule_must_give_a_weight(weight):
    with pytest.raises(ValueError, match=r"weight of vat must be finite and not negative, got .* at progress=0.5"):
        run(quiet(), CrossEntropy() + (lambda progress: weight) * VAT(), progress=0.5)


@pytest.mark.parametrize("factors", [(-3.0, -3.0), (0.0, -3.0), (0.0, float("inf")), (1e200, 1e200)])
def test_each_factor_of_a_weight_is_checked(factors):
    one, other = (lambda progress, value=value: value for value in factors)
    for objective in (one * (other * VAT()), other * (one * VAT())):
        with pytest.raises(ValueError, match=r"weight of vat must be finite and not negative, got .* at progress=0.5"):
            run(quiet(), CrossEntropy() + objective, progress=0.5)


@pytest.mark.parametrize("value", [None, "1.0", 1j, (1.0,), torch.ones(2), torch.ones(0)])
def test_a_schedule_that_gives_no_number_is_told(value):
    with pytest.raises(TypeError, match=r"a schedule of vat must return a number, got .* at progress=0.5"):
        run(quiet(), CrossEntropy() + (lambda progress: value) * VAT(), progress=0.5)


@pytest.mark.parametrize("value", [torch.tensor(2.0), np.float32(2.0), 2, Fraction(2)])
def test_a_schedule_may_give_any_kind_of_number(value):
    assert run(quiet(0.5), CrossEntropy() + (lambda progress: value) * VAT(), progress=0.5).weights["vat"] == 2.0


@every
def test_inference_mode_is_refused_in_words(make):
    rows = batch()
    with torch.inference_mode(), pytest.raises(RuntimeError, match=r"inference_mode.*use torch.no_grad\(\)"):
        run(quiet(0.5), make(), rows)


@every
def test_transforms_of_torch_are_refused_in_words(make):
    step, rows = Step(quiet(0.5), make()), batch()

    def loss(parameters):
        return torch.func.functional_call(step, parameters, kwargs=dict(rows, progress=1.0)).loss

    for transform in (torch.func.grad, torch.func.jacrev, torch.func.vmap):
        with pytest.raises(RuntimeError, match=r"inside torch.func.*loss.backward\(\)"):
            transform(loss)({name: value.detach()[None] for name, value in step.named_parameters()})


def test_a_functional_call_is_a_step_of_other_parameters():
    step, rows = Step(quiet(0.5), CrossEntropy() + VAdD()), dict(batch(), generator=seeded())
    other = {name: torch.randn_like(value).requires_grad_() for name, value in step.named_parameters()}
    loss = torch.func.functional_call(step, other, kwargs=rows).loss
    found = torch.autograd.grad(loss, list(other.values()))
    step.load_state_dict(other)
    expected = step(**dict(rows, generator=seeded())).loss
    assert loss.item() == expected.item()
    close(list(found), gradients(step, expected), 1e-6)


@pytest.mark.parametrize("name", ["x", "unlabeled", "second_view"])
@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: (x,), lambda x: {"input": x}])
def test_inputs_from_inference_mode_are_refused_in_words(name, wrap):
    rows = {key: wrap(value) if key in ("x", "unlabeled", "second_view") else value for key, value in batch().items()}
    with torch.inference_mode():
        rows[name] = wrap(batch()[name].clone())
    with pytest.raises(RuntimeError, match=rf"{name} was made under torch.inference_mode\(\).*clone\(\)"):
        run(quiet(0.5), CrossEntropy() + VAdD(), rows)


ONE_OUTPUT = r"one output, and the softmax of one output is always 1.*one output per class.*advdrop.mse"


# Fraternal dropout compares values, a teacher has as many outputs as the table's networks, and modules have names.
OTHERS = {"fraternal", "vadd teacher", "at module", "vat module", "vat module shared"}
OTHERS |= {"gamma", "deep supervision", "fake class"}  # they learn from one output, too


@pytest.mark.parametrize("name", [name for name in TABLE if name not in OTHERS])
@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped])
def test_one_output_is_told_once(name, wrap):
    """Every value is constant, so it would be 0 (or -1) forever."""
    objective = TemporalEnsembling(16, 1) if name == "temporal" else TABLE[name]()
    net = nn.Sequential(*quiet(0.5)[:-1], nn.Linear(8, 1))
    step, rows = Step(wrap(net), objective), dict(batch(), y=torch.zeros(8).long())
    for seed in range(3):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loss = step(**rows, progress=1.0, generator=seeded(seed)).loss
        told = [warning for warning in caught if re.search(ONE_OUTPUT, str(warning.message))]
        assert len(told) == (seed == 0)
        assert all(gradient.abs().max() == 0 for gradient in gradients(net, loss))


def test_one_output_that_is_a_value_is_not_told():
    net = nn.Sequential(*quiet(0.5)[:-1], nn.Linear(8, 1))
    loss = run(net, VAdD(divergence=mse) + PiModel(divergence=mse) + VAT(divergence=mse)).loss
    assert all(gradient.abs().max() > 0 for gradient in gradients(net, loss))


def test_evaluation_mode():
    model, rows = noisy().eval(), batch()
    before = [buffer.clone() for buffer in model.buffers()]
    loss = run(model, CrossEntropy() + SAdD() + PiModel(), only(rows, "x", "y", "unlabeled"))
    torch.testing.assert_close(loss.terms["cross_entropy"], nn.functional.cross_entropy(model(rows["x"]), rows["y"]))
    assert loss.terms["pi_model"] == 0
    assert loss.terms["sadd_cross_entropy"] > loss.terms["cross_entropy"]
    assert all(torch.equal(one, other) for one, other in zip(before, model.buffers(), strict=True))


class Centered(nn.Tanh):
    """Mixes the rows of a batch."""

    def forward(self, x):
        return super().forward(x - x.mean(0))


CHANGES = {
    "another module": lambda net: net.__setitem__(0, nn.Linear(FEATURES, 16)),
    "another layer": lambda net: net.__setitem__(5, AdversarialDropout(0.9)),
    "no layer": lambda net: net.__setitem__(5, nn.Identity()),
    "one module more": lambda net: net.append(nn.Dropout(0.5)),
    "a module that runs once more": lambda net: net.append(net[1]),
    "a class that mixes rows": lambda net: setattr(net[1], "__class__", Centered),
    "evaluation": lambda net: net.eval(),
    "one module in evaluation": lambda net: net[2].eval(),
    "no dropout": lambda net: setattr(net[2], "p", 0.0),
    "more dropout": lambda net: setattr(net[8], "p", 0.9),
    "a hook": lambda net: net[4].register_forward_hook(lambda module, given, output: 2 * output),
    "a hook on the whole": lambda net: net.register_forward_hook(lambda module, given, output: 2 * output),
    "an inserted layer": lambda net: insert(net, after="1", p=0.5),
    "another forward": lambda net: setattr(net, "forward", lambda x: x[:, :CLASSES].exp()),
}


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped], ids=["sequential", "any"])
@pytest.mark.parametrize("change", [*CHANGES.values(), None], ids=[*CHANGES, "another network"])
def test_a_change_between_steps_is_noticed(change, wrap):
    def loss(step):
        torch.manual_seed(5)
        return step(**batch(), generator=seeded()).loss.item()

    first = None
    for steps in (1, 0):
        torch.manual_seed(3)
        net, other = noisy(p=0.3, norm=False), noisy(p=0.3, norm=False)
        step = Step(wrap(net), CrossEntropy() + PiModel() + EntropyMinimization())
        before = [loss(step) for _ in range(steps)]
        torch.manual_seed(4)
        if change is None:
            step.model = wrap(other)
        else:
            change(net)
        after = loss(step)
        first = first or after
        assert after not in before
    assert after == first


@pytest.mark.parametrize("make", [lambda: nn.Dropout(0.0), lambda: nn.Dropout(0.5).eval()], ids=["p", "mode"])
def test_noise_that_is_turned_on_between_steps_is_noticed(make):
    noise = make()
    step = Step(nn.Sequential(noise, nn.Linear(FEATURES, CLASSES)), PiModel())
    rows = only(batch(), "unlabeled")
    assert step(**rows).loss == 0
    noise.p, noise.training = 0.5, True
    assert step(**rows).loss > 1e-4


class Jitter(nn.Module):
    """Noise whose strength is a buffer."""

    rowwise = "noisy"

    def __init__(self, name):
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(()))

    def forward(self, x):
        return x + self.get_buffer(self.name) * torch.randn_like(x)


@pytest.mark.parametrize("name", ["sigma", "strength"])
def test_noise_of_a_strength_that_is_no_number_is_noise(name):
    noise = Jitter(name)
    step = Step(nn.Sequential(noise, nn.Linear(FEATURES, CLASSES)), PiModel())
    rows = only(batch(), "unlabeled")
    assert step(**rows).loss == 0
    noise.get_buffer(name).fill_(0.5)
    assert step(**rows).loss > 1e-4


def test_hooks_that_take_turns_are_told_apart():
    step, rows = Step(quiet(), CrossEntropy()), only(batch(), "x", "y")
    step(**rows)
    calls = []
    for module in (step.model[0], step.model):
        hook = module.register_forward_hook(lambda module, given, output: calls.append(module))
        step(**rows)
        hook.remove()
    assert calls == [step.model[0], step.model]
    step(**rows)
    backward = step.model.register_full_backward_hook(lambda *_: calls.append("backward"))
    step(**{**rows, "x": rows["x"].clone().requires_grad_()}).loss.backward()
    assert calls[-1] == "backward"
    backward.remove()
    hook = step.model[0].register_forward_hook(lambda *_: None)
    step(**rows)
    hook.remove()
    insert(step.model, after="0")  # as many hooks as before
    assert len(step.passes(Batch(**rows), (CrossEntropy(),)).clean("labeled").masks) == 2


def test_copies_do_not_share():
    step = Step(noisy(), CrossEntropy() + VAdD() + TemporalEnsembling(16, CLASSES))
    new = len(pickle.dumps(step))
    step(**batch())
    assert len(pickle.dumps(step)) < new + 100  # nothing of the step itself
    for twin in (copy.deepcopy(step), pickle.loads(pickle.dumps(step))):
        assert twin.updating == step.updating
        twin(**batch()).loss.backward()
        assert step.objective.parts[2][1].seen.tolist() == [1.0] * 16
        assert twin.objective.parts[2][1].seen.tolist() == [2.0] * 16
        assert all(parameter.grad is None for parameter in step.parameters())


class Alone(nn.Module):
    """Counts the passes that run at the same time as another one."""

    busy, overlaps = threading.Lock(), 0

    def forward(self, x):
        free = self.busy.acquire(blocking=False)
        Alone.overlaps += not free
        time.sleep(0.002)
        if free:
            self.busy.release()
        return x


def test_threads_wait_for_each_other():
    objective, rows = CrossEntropy() + VAdD() + VAT(noise="shared"), batch()
    steps = [Step(wrap(nn.Sequential(Alone(), *quiet(0.5))), objective) for wrap in (nn.Sequential, Wrapped)]
    alone = [step(**rows, generator=seeded()).loss.item() for step in steps]
    start, found = threading.Barrier(4, timeout=60), [[] for _ in range(4)]

    def losses(step, into):
        start.wait()
        for _ in range(3):
            into.append(step(**rows, generator=seeded()).loss.item())

    threads = [threading.Thread(target=losses, args=(steps[i % 2], found[i])) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [[alone[i % 2]] * 3 for i in range(4)]
    assert Alone.overlaps == 0


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped])
def test_threads_do_not_disturb_the_noise_of_each_other(wrap):
    """With the noise of the clean pass and no flips, the adversarial pass is the clean pass, so VAdD is exactly 0.

    Other threads may draw as well, from generators of their own, and look into networks.
    """
    steps = [Step(wrap(noisy(norm=False)), VAdD(noise="shared", delta=0.0)) for _ in range(2)]
    audited, rows, found, done = noisy(norm=False), only(batch(), "unlabeled"), {}, threading.Event()

    def train(number):
        found[number] = [steps[number](**rows).loss.item() for _ in range(600)]

    def others():
        own = torch.Generator().manual_seed(0)
        while not done.is_set():
            torch.rand(100, generator=own)
            with borrowed_noise(CPU):
                torch.rand(100)
            explain(audited, rows["unlabeled"][0])

    threads = [threading.Thread(target=train, args=(number,)) for number in range(2)]
    for thread in (*threads, drawing := threading.Thread(target=others)):
        thread.start()
    for thread in threads:
        thread.join(120)
    done.set()
    drawing.join(60)
    assert found == {0: [0.0] * 600, 1: [0.0] * 600}


def test_the_state_has_the_model_and_what_the_terms_remember():
    def step():
        return Step(quiet(), CrossEntropy() + TemporalEnsembling(16, CLASSES) + TemporalEnsembling(16, CLASSES))

    first, second = step(), step()
    first(**batch())
    state = first.state_dict()
    names = [f"model.{name}" for name in first.model.state_dict()]
    kept = [f"objective.temporal_ensembling{n}.{name}" for n in ("", "_2") for name in ("ensemble", "seen")]
    assert sorted(state) == sorted(names + kept)
    second.load_state_dict(copy.deepcopy(state))
    assert second.state_dict().keys() == state.keys()
    assert all(torch.equal(second.state_dict()[name], state[name]) for name in state)
    outer = nn.ModuleDict({"lost": nn.Linear(1, 1), "step": step()})
    outer.load_state_dict({f"step.{name}": value for name, value in state.items()}, strict=False)
    assert torch.equal(outer["step"].objective.parts[1][1].ensemble, state[kept[0]])


def test_a_state_that_does_not_fit_is_told():
    step = Step(quiet(), TemporalEnsembling(16, CLASSES))
    state = step.state_dict()
    less = {name: value for name, value in state.items() if "seen" not in name}
    with pytest.raises(RuntimeError, match=r"Missing key\(s\).*objective.temporal_ensembling.seen"):
        step.load_state_dict(less)
    assert step.load_state_dict(less, strict=False).missing_keys == ["objective.temporal_ensembling.seen"]
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*objective.temporal_ensembling.ensemble"):
        Step(quiet(), CrossEntropy()).load_state_dict(state)
    with pytest.raises(RuntimeError, match=r"\(16, 3\) and \(5, 3\)"):
        Step(quiet(), TemporalEnsembling(5, CLASSES)).load_state_dict(state)


def test_the_step_is_a_module():
    step = Step(noisy(), CrossEntropy())
    assert [id(parameter) for parameter in step.parameters()] == [id(p) for p in step.model.parameters()]
    assert not step.eval().model.training
    assert step.double().model[0].weight.dtype == torch.float64


def test_what_an_objective_measures_is_given_back_when_asked_for():
    objective = CrossEntropy() + VAdD(delta=0.3) + VAdD(delta=0.1)
    assert run(noisy(), objective).measures == {}
    measures = run(noisy(), objective, measure=True).measures
    assert 0 < measures["vadd_kl/flips"] <= int(0.3 * HIDDEN)
    assert 0 < measures["vadd_kl_2/flips"] <= int(0.1 * HIDDEN)
    assert all(not value.requires_grad and value.dim() == 0 for value in measures.values())
    losses = []
    for measure in (False, True):
        torch.manual_seed(4)
        losses.append(run(noisy(), objective, measure=measure).loss)
    assert torch.equal(*losses)


def test_a_global_hook_that_comes_later_runs_as_in_full_passes():
    def note(seen, module, *_):
        seen.append(type(module).__name__)

    calls = []
    for reuse in (True, False):
        step = Step(quiet(), CrossEntropy() + SAdD(), reuse=reuse)
        step(**only(batch(), "x", "y"))
        seen = []
        hook = nn.modules.module.register_module_forward_hook(partial(note, seen))
        try:
            step(**only(batch(), "x", "y"))
        finally:
            hook.remove()
        calls.append([name for name in seen if name == "Sequential"])
    assert calls[0] == calls[1] != []


def distributed():
    model = nn.parallel.DistributedDataParallel.__new__(nn.parallel.DistributedDataParallel)
    nn.Module.__init__(model)
    return model


REFUSED = {
    "objective first": (lambda: Step(CrossEntropy(), quiet()), TypeError, "got CrossEntropy and Sequential"),
    "class of an objective": (lambda: Step(quiet(), CrossEntropy), TypeError, "a network and an objective"),
    "pass": (lambda: Step(quiet(), CrossEntropy(), updating={"cleen"}), ValueError, r"subset of .* got \['cleen'\]"),
    "generator": (lambda: Step(quiet(), VAT())(**batch(), generator=0), TypeError, "torch.Generator, got 0"),
    "rows": (lambda: Step(quiet(), CrossEntropy())(), ValueError, "needs labeled inputs x"),
    "labels": (lambda: Step(quiet(), AT())(unlabeled=torch.ones(2, FEATURES)), ValueError, "needs label"),
    "distributed network": (
        lambda: Step(distributed(), CrossEntropy()),
        TypeError,
        r"DistributedDataParallel\(Step\(network, objective\)\)",
    ),
}


@pytest.mark.parametrize(("make", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("shape", [(), (1,), (CLASSES,)], ids=["one value", "a column", "one value per class"])
@pytest.mark.parametrize("term", [PiModel, VAT, VAdD, partial(VAdD, confidence=1.0), partial(VAdD, delta=0.0)])
def test_a_divergence_must_return_one_value_for_each_example(term, shape):
    def divergence(target, logits, **_):
        apart = (target - logits) ** 2
        return apart.mean() if shape == () else apart.mean(1, keepdim=True).expand(-1, *shape)

    with pytest.raises(ValueError, match=r"one value for each example, a tensor \(B,\), got shape"):
        Step(noisy(), term(divergence=divergence))(**batch())


@pytest.mark.parametrize("term", [PiModel, VAdD, partial(VAdD, confidence=1.0), partial(TemporalEnsembling, 16, 3)])
@pytest.mark.parametrize("shape", [lambda apart: apart.mean(0), torch.flatten], ids=["classes", "all"])
def test_a_divergence_has_as_many_values_as_examples(term, shape):
    def divergence(target, logits, **_):
        return shape((target - logits) ** 2)

    with pytest.raises(ValueError, match=r"one value for each example, a tensor \(B,\), got shape \((3|48|72),\)"):
        Step(noisy(), term(divergence=divergence))(**batch())


@pytest.mark.parametrize("wrap", [lambda net: net, Wrapped, lambda net: insert(Wrapped(net), after="net.1")])
def test_many_steps_keep_nothing(wrap):
    """What the first steps cache is not counted."""
    step, rows = Step(wrap(noisy()), CrossEntropy() + VAdD() + TemporalEnsembling(16, CLASSES)), batch()

    def objects(steps):
        for _ in range(steps):
            step.zero_grad()
            step(**rows, measure=True).loss.backward()
        gc.collect()
        return len(gc.get_objects())

    objects(5)
    before = objects(1)
    assert objects(50) - before < 25


@pytest.mark.parametrize("kind", [torch.tensor, np.array])
def test_an_option_of_a_module_may_be_an_array(kind):
    class Kernel(nn.Module):
        def __init__(self):
            super().__init__()
            self.sigma = kind([0.1] * FEATURES)

        def forward(self, x):
            return x + float(self.sigma.sum())

    model = nn.Sequential(Kernel(), quiet(p=0.0))
    step = Step(model, CrossEntropy())
    step(**batch())
    model[0].sigma = model[0].sigma * 0.0
    found, expected = (one(**batch()).loss for one in (step, Step(model[1], CrossEntropy())))
    torch.testing.assert_close(found, expected)
