import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from advdrop import EMA, AdversarialDropout, MeanTeacher, Step, VAdD, insert, kl, qe
from small import CLASSES, FEATURES, batch, close, gradients, noisy, only, quiet, run, seeded


def changed(model, by):
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            tensor.add_(by) if tensor.is_floating_point() else tensor.add_(1)


def test_the_average_against_its_formula():
    model, ema = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).double(), EMA(decay=0.6)
    expected = None
    for t in range(6):
        alpha = min(1 - 1 / (t + 1), 0.6)
        now = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if expected is None:
            expected = now
        for name, tensor in now.items():
            average = alpha * expected[name] + (1 - alpha) * tensor
            expected[name] = average if tensor.is_floating_point() else tensor
        ema.update(model)
        changed(model, 0.1 * (t + 1))
    averaged = ema.network(model)
    assert not averaged.training
    assert model.training
    for name, tensor in averaged.state_dict().items():
        torch.testing.assert_close(tensor, expected[name], msg=name)
    assert int(averaged[1].num_batches_tracked) == 5
    assert averaged[1].running_mean.abs().max() > 0


def test_half_precision_weights_have_an_average_of_full_precision():
    model, ema = nn.Linear(1, 1, bias=False).bfloat16(), EMA(decay=0.999)
    nn.init.ones_(model.weight)
    for _ in range(2000):
        ema.update(model)
    nn.init.constant_(model.weight, 2.0)
    ema.update(model)
    assert ema.average["weight"].item() == pytest.approx(1.001)  # bfloat16 would stay at 1
    assert ema.network(model).weight.dtype == torch.bfloat16


def by_hand(student, teacher, rows):
    return qe(teacher(rows["second_view"]).detach(), student(rows["unlabeled"])).mean()


def test_the_term_against_two_networks():
    """Without noise: a copy of the network whose weights are averaged by hand after every update of the optimizer."""
    model, rows = quiet().double(), batch(dtype=torch.float64)
    student, teacher = copy.deepcopy(model), copy.deepcopy(model)
    step, sgd = Step(model, MeanTeacher(decay=0.7)), torch.optim.SGD(model.parameters(), 2.0)
    other = torch.optim.SGD(student.parameters(), 2.0)
    for t in range(5):
        alpha = min(1 - 1 / (t + 1), 0.7)
        with torch.no_grad():
            for average, now in zip(teacher.parameters(), student.parameters(), strict=True):
                average.copy_(alpha * average + (1 - alpha) * now)
        loss, expected = step(**rows, generator=seeded()).loss, by_hand(student, teacher, rows)
        found, wanted = [loss, *gradients(model, loss)], [expected, *gradients(student, expected)]
        close(found, wanted, 1e-12)
        for optimizer, slopes in ((sgd, found[1:]), (other, wanted[1:])):
            for parameter, slope in zip(optimizer.param_groups[0]["params"], slopes, strict=True):
                parameter.grad = slope
            optimizer.step()
    assert loss > 0


def test_the_teacher_has_noise_of_its_own_and_leaves_the_statistics_alone():
    model = noisy()
    step = Step(model, MeanTeacher(), updating=())
    rows = only(batch(), "unlabeled")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    torch.manual_seed(0)
    loss = step(**rows).loss
    assert loss > 0  # the same weights and rows: only the noise differs
    term = step.objective
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    assert all(torch.equal(term.teacher.average[name], tensor) for name, tensor in before.items())
    model.eval()
    assert step(**rows).loss == 0


def trained(step, steps, optimizer):
    losses = []
    for turn in range(*steps):
        torch.manual_seed(turn)
        loss = step(**batch(), generator=seeded(turn)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_teacher_does_not_write_into_its_own_average():
    class Centered(nn.Module):
        """Subtracts a mean that it keeps by itself."""

        def __init__(self):
            super().__init__()
            self.last = nn.Linear(FEATURES, CLASSES)
            self.register_buffer("mean", torch.zeros(FEATURES))

        def forward(self, x):
            self.mean.lerp_(x.mean(0), 0.5)
            return self.last(x - self.mean)

    model = Centered()
    step = Step(model, MeanTeacher())
    step(unlabeled=batch()["unlabeled"] + 1.0)
    found = step.state_dict()["objective.mean_teacher.average.mean"]
    assert torch.equal(found, torch.zeros(FEATURES))  # the mean that the network had before the step
    assert not torch.equal(model.mean, found)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("make", [lambda every: MeanTeacher(0.8, every), lambda every: VAdD(target=EMA(0.8, every))])
def test_a_resumed_training_goes_on_with_the_same_bits(make, every, tmp_path):
    torch.manual_seed(0)
    step = Step(noisy(), make(every))
    sgd = torch.optim.SGD(step.parameters(), 0.5, momentum=0.9)
    trained(step, (0, 3), sgd)
    torch.save({"step": step.state_dict(), "optimizer": sgd.state_dict()}, tmp_path / "saved.pt")
    expected = trained(step, (3, 7), sgd)
    torch.manual_seed(9)
    resumed = Step(noisy(), make(every))
    again = torch.optim.SGD(resumed.parameters(), 0.5, momentum=0.9)
    saved = torch.load(tmp_path / "saved.pt", weights_only=True)
    resumed.load_state_dict(saved["step"])
    again.load_state_dict(saved["optimizer"])
    assert trained(resumed, (3, 7), again) == expected
    averages = {key: tensor for key, tensor in step.state_dict().items() if ".average." in key}
    assert len(averages) == len([*step.parameters(), *step.buffers()])
    assert not torch.equal(averages[min(key for key in averages if "0.weight" in key)], step.model[0].weight)


def test_updates_follow_the_optimizer_and_not_a_validation_loss():
    model, term = quiet(), MeanTeacher(every=3)
    step = Step(model, term)
    for _ in range(7):
        step(**batch())
    assert (term.teacher.steps, term.teacher.updates) == (7, 3)
    with torch.no_grad():
        step(**batch())
    assert (term.teacher.steps, term.teacher.updates) == (7, 3)


def test_vadd_with_an_ema_has_its_output_without_noise_as_target():
    model, rows = noisy().double(), only(batch(dtype=torch.float64), "unlabeled")
    ema = EMA(0.5)
    step = Step(model, VAdD(target=ema))
    step(**rows, generator=seeded())
    changed(model, 0.1)
    averaged = copy.deepcopy(model).eval()
    loss = step(**rows, generator=seeded(3)).loss
    for name, tensor in [*averaged.named_parameters(), *averaged.named_buffers()]:
        tensor.data.copy_(ema.average[name])
    assert not torch.equal(averaged[0].weight, model[0].weight)
    close(list(ema.network(model).parameters()), list(averaged.parameters()))
    torch.manual_seed(1)
    found = Step(model, VAdD(target=averaged))
    torch.manual_seed(5)
    expected = found(**rows, generator=seeded(3)).loss
    torch.manual_seed(5)
    ema.every = 100  # no further update
    torch.testing.assert_close(step(**rows, generator=seeded(3)).loss, expected)
    assert loss > 0


def test_inserted_layers_and_tied_weights():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, FEATURES)
            self.second.weight = self.first.weight
            self.noise, self.last = nn.Dropout(0.3), nn.Linear(FEATURES, CLASSES)

        def forward(self, x):
            return self.last(torch.tanh(self.second(self.noise(torch.tanh(self.first(x))))))

    model = insert(Tied(), after="second", delta=0.3)
    loss = run(model, MeanTeacher() + VAdD(target=EMA()), only(batch(), "unlabeled")).loss
    assert all(gradient.abs().max() > 0 for gradient in gradients(model, loss))
    assert not any(isinstance(module, AdversarialDropout) for module in EMA().network(model).modules())


MISTAKES = {
    "decay 1": (lambda: MeanTeacher(decay=1.0), ValueError, "decay must be below 1"),
    "decay": (lambda: EMA(decay=-0.1), ValueError, r"decay must be in \[0, 1\]"),
    "every": (lambda: EMA(every=0), ValueError, "every must be at least 1"),
    "divergence": (lambda: MeanTeacher(divergence="kl"), TypeError, "divergence must be a function"),
    "lazy": (lambda: Step(nn.LazyLinear(3), MeanTeacher()), ValueError, "run the network once"),
}


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize(("make", "error", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_the_state_of_another_network_is_refused():
    saved = Step(quiet(), MeanTeacher()).state_dict()
    other = nn.Sequential(nn.Linear(FEATURES, 5), nn.Linear(5, CLASSES))
    with pytest.raises(RuntimeError, match=r"Missing key.*objective.mean_teacher.average"):
        Step(other, MeanTeacher()).load_state_dict(saved)


@pytest.mark.parametrize("other", [nn.Sequential(nn.Linear(2, 3)), nn.Linear(2, 4)], ids=["wrapped", "another shape"])
def test_the_average_of_another_network_is_not_given(other):
    """It was the network as it is, without an average."""
    ema, model = EMA(), nn.Linear(2, 3)
    ema.update(model)
    with pytest.raises(ValueError, match=r"average of another network, with weight, bias, ...: it has no '.*weight'"):
        ema.network(other)
    assert torch.equal(ema.network(model).weight, model.weight)


class Tiny(nn.Module):
    def __init__(self, outputs=CLASSES, wrap=lambda z: z):
        super().__init__()
        self.last, self.wrap = nn.Linear(FEATURES, outputs), wrap

    def forward(self, x):
        return self.wrap(self.last(x))


@pytest.mark.parametrize("wrap", [lambda z: z, lambda z: {"logits": z}])
def test_a_teacher_of_another_architecture(wrap):
    model, teacher, rows = quiet().double(), Tiny(wrap=wrap).double(), only(batch(dtype=torch.float64), "unlabeled")
    teacher.last.register_forward_hook(lambda module, *_: seen.append(module.training))
    seen = []
    found = run(model, VAdD(target=teacher, delta=0.0), rows).loss
    expected = kl(teacher.last(rows["unlabeled"]).detach(), model(rows["unlabeled"])).mean()
    close([found, *gradients(model, found)], [expected, *gradients(model, expected)], 1e-12)
    assert seen[0] is False
    assert teacher.training
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert "last.weight" not in Step(model, VAdD(target=teacher)).state_dict()


def test_teachers_that_cannot_teach():
    rows = only(batch(), "unlabeled")
    with pytest.raises(ValueError, match=r"teacher Tiny returns \(16, 5\) and the network \(16, 3\)"):
        run(quiet(), VAdD(target=Tiny(5)), rows)
    broken = Tiny()
    nn.init.constant_(broken.last.bias, float("nan"))
    with pytest.raises(
        ValueError, match=r"vadd_kl: the output of the teacher Tiny has NaN.*16 of 16.*check its weights"
    ):
        run(quiet(), VAdD(target=broken), rows)
    with pytest.raises(TypeError, match=r"a network .a teacher. or an EMA, got 'teacher'"):
        VAdD(target="teacher")


class Wave(nn.Module):
    """Has complex weights, and a buffer that grows."""

    def __init__(self):
        super().__init__()
        self.complex = nn.Parameter(torch.ones(2, dtype=torch.complex64))
        self.real = nn.Parameter(torch.ones(2))
        self.register_buffer("cache", torch.zeros(1))


def test_complex_weights_are_averaged_and_a_buffer_of_another_shape_is_copied():
    model, ema = Wave(), EMA(decay=0.9)
    ema.update(model)
    with torch.no_grad():
        model.complex.mul_(3j)
        model.real.mul_(3)
    model.cache = torch.ones(4)
    ema.update(model)
    averaged = ema.network(model)
    torch.testing.assert_close(averaged.complex.detach(), torch.full((2,), 0.5 + 1.5j))
    torch.testing.assert_close(averaged.real.detach(), torch.full((2,), 2.0))
    assert averaged.cache.tolist() == [1.0] * 4
    assert ema.weights(model).keys() == {"complex", "real", "cache"}


def test_an_average_in_two_terms_has_one_update_for_each_step():
    ema = EMA(decay=0.5)
    step = Step(noisy(), VAdD(target=ema) + VAdD(target=ema, noise="shared"))
    for updates in (1, 2):
        step(**only(batch(), "unlabeled"))
        assert ema.updates == updates


def probabilities(seed):
    torch.manual_seed(seed)
    layer = AdversarialDropout(p=0.5, delta=0.2)
    return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), layer, nn.Linear(8, CLASSES), nn.Softmax(1))


def test_a_function_that_makes_logits_of_tensors_is_for_the_teacher_too():
    student, teacher, rows = probabilities(0), probabilities(1), only(batch(), "unlabeled")
    found = run(student, VAdD(target=teacher, noise="shared"), rows, logits=torch.log)
    expected = run(student[:-1], VAdD(target=teacher[:-1], noise="shared"), rows)
    torch.testing.assert_close(found.loss, expected.loss)


def test_an_infinity_in_a_buffer_such_as_a_mask_of_attention_stays_one():
    """The average of two infinities by their difference is NaN."""
    model, ema = nn.Linear(2, 2), EMA(decay=0.9)
    model.register_buffer("mask", torch.full((2, 2), -torch.inf).triu(1))
    for _ in range(3):
        ema.update(model)
    torch.testing.assert_close(ema.network(model).mask, model.mask, rtol=0, atol=0)
    model.mask.zero_()
    ema.update(model)
    assert ema.network(model).mask.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_cache_of_parametrized_weights_is_not_that_of_the_teacher():
    model, rows = nn.Sequential(weight_norm(nn.Linear(FEATURES, CLASSES))), only(batch(), "unlabeled")
    step = Step(model, MeanTeacher(0.9))
    step(**rows)
    changed(model, 0.5)
    step(**rows)
    with torch.no_grad():
        expected = step(**rows).loss
        with parametrize.cached():
            assert step(**rows).loss == expected > 0
