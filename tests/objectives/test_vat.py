import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AT, VAT, CrossEntropy, kl, qe
from advdrop.objectives.adversarial_training import unit
from small import CLASSES, FEATURES, Wrapped, batch, close, gradients, noisy, only, quiet, run, seeded, values


@pytest.fixture
def model():
    return nn.Linear(FEATURES, CLASSES).double()


@pytest.fixture
def rows():
    return only(batch(dtype=torch.float64), "unlabeled")


def test_it_finds_the_direction_of_the_highest_curvature(model, rows):
    """Linear logits: the Hessian of KL at r = 0 is Wᵀ(diag f − ffᵀ)W, whose leading eigenvector is the answer."""
    w, u = model.weight.detach().numpy(), rows["unlabeled"]
    ours = values(model, VAT(epsilon=0.5, iterations=30, xi=1e-3), rows).detach().numpy()
    clean = model(u).softmax(1).detach().numpy()
    for row, f in enumerate(clean):
        direction = torch.tensor(np.linalg.eigh(w.T @ (np.diag(f) - np.outer(f, f)) @ w)[1][:, -1])
        moved = [model(u[row : row + 1] + sign * 0.5 * direction).softmax(1)[0].detach().numpy() for sign in (1, -1)]
        either = [(f * np.log(f / other)).sum() for other in moved]
        assert min(abs(ours[row] - value) for value in either) < 2e-3 * max(either)


def by_hand(model, x, term):
    start = torch.empty_like(x).normal_(generator=seeded())
    step = (term.xi * unit(start)).requires_grad_()
    target = model(x).detach()
    (slope,) = torch.autograd.grad(term.divergence(target, model(x.detach() + step)).sum(), step)
    return term.divergence(target, model(x + term.epsilon * unit(slope))).mean()


@pytest.mark.parametrize("divergence", [kl, qe])
def test_no_gradient_comes_from_the_target_or_goes_through_the_perturbation(rows, divergence):
    model, term = quiet().double(), VAT(epsilon=0.5, divergence=divergence)
    ours, expected = run(model, term, rows).loss, by_hand(model, rows["unlabeled"], term)
    close([ours, *gradients(model, ours)], [expected, *gradients(model, expected)])


def test_an_encoder_in_front_of_the_batch_gets_its_gradient(rows):
    encoder, model, term = nn.Linear(FEATURES, FEATURES).double(), quiet().double(), VAT(epsilon=0.5)
    both = nn.ModuleList([encoder, model])
    ours = gradients(both, run(model, term, {"unlabeled": encoder(rows["unlabeled"])}).loss)
    close(ours, gradients(both, by_hand(model, encoder(rows["unlabeled"]), term)))
    assert ours[0].abs().max() > 0


def test_the_default_xi_is_not_lost_to_rounding_in_float32():
    """On standardized images, as many as CIFAR-10 has pixels: the direction agrees with the one found in float64."""
    model = nn.Sequential(nn.Linear(3072, 64), nn.Tanh(), nn.Linear(64, 10)).double()
    u, start = torch.randn(8, 3072).double(), torch.randn(8, 3072).double()

    def direction(network, x, first, xi):
        step = (xi * unit(first)).requires_grad_()
        (slope,) = torch.autograd.grad(kl(network(x).detach(), network(x + step)).sum(), step)
        return unit(slope).double()

    exact = direction(model, u, start, 1e-4)
    single = model.float()
    cosine = {xi: (exact * direction(single, u.float(), start.float(), xi)).sum(1) for xi in (VAT().xi, 1e-6)}
    assert cosine[VAT().xi].min() > 0.99
    assert cosine[1e-6].min() < 0.9


def test_power_iterations_leave_the_global_noise_as_one_pass_would():
    states = []
    for iterations in (1, 4):
        torch.manual_seed(0)
        run(noisy(), VAT(iterations=iterations))
        states.append(torch.get_rng_state())
    assert torch.equal(*states)


def test_with_shared_noise_it_vanishes_with_the_radius():
    model = noisy(norm=False)
    assert run(model, VAT(epsilon=1e-4, noise="shared")).loss < 1e-6
    assert run(model, VAT(epsilon=1e-4)).loss > 1e-3


@pytest.mark.parametrize("weights", [1.0, 0.3])
def test_half_precision_finds_a_direction(weights):
    model, rows = quiet(), only(batch(), "unlabeled")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(weights)
    expected = run(model, VAT(), rows).loss.item()
    found = run(model.half(), VAT(), {"unlabeled": rows["unlabeled"].half()}).loss.item()
    assert expected > 1e-8
    assert found == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("detached", [lambda x: x.detach(), lambda x: x.sign().long().double()])
@pytest.mark.parametrize("term", [VAT(), AT()])
def test_a_network_that_gives_its_input_no_gradient_is_told(detached, term):
    class Detached(Wrapped):
        def forward(self, x):
            return self.net(detached(x).to(x.dtype))

    with pytest.raises(RuntimeError, match=r"AT and VAT need the gradient.*no_grad.*features"):
        run(Detached(quiet()), term, only(batch(), "x", "y"))


def test_it_works_without_gradients():
    model, rows = quiet(), batch()
    with torch.no_grad():
        found = run(model, CrossEntropy() + VAT(), rows).loss
    assert not found.requires_grad
    torch.testing.assert_close(found, run(model, CrossEntropy() + VAT(), rows).loss.detach())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"epsilon": 0.0}, ValueError, "epsilon must be positive"),
        ({"xi": -1.0}, ValueError, "xi must be positive"),
        ({"iterations": 0}, ValueError, "iterations must be at least 1"),
        ({"noise": "none"}, ValueError, "'independent', 'shared', got 'none'"),
    ],
)
def test_the_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        VAT(**options)


@pytest.mark.parametrize("term", [VAT(), AT(norm="l2")], ids=["vat", "at"])
def test_one_number_for_each_example(term):
    model = nn.Sequential(nn.Unflatten(0, (-1, 1)), nn.Linear(1, CLASSES))
    assert run(model, term, {"x": torch.randn(8), "y": torch.zeros(8).long()}).loss > 0
