import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from advdrop import AT, CrossEntropy
from advdrop.objectives.adversarial_training import unit
from small import CLASSES, FEATURES, batch, close, gradients, noisy, only, quiet, run, values


@pytest.fixture
def rows():
    return only(batch(dtype=torch.float64), "x", "y")


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_against_numpy(rows, norm):
    model = nn.Linear(FEATURES, CLASSES).double()
    x, y = rows["x"], rows["y"].numpy()
    slope = (model(x).softmax(1).detach().numpy() - np.eye(CLASSES)[y]) @ model.weight.detach().numpy()
    step = np.sign(slope) if norm == "linf" else slope / np.linalg.norm(slope, axis=1, keepdims=True)
    expected = F.cross_entropy(model(x + 0.1 * torch.tensor(step)), rows["y"], reduction="none").detach()
    np.testing.assert_allclose(values(model, AT(epsilon=0.1, norm=norm), rows).detach(), expected)
    assert (expected > values(model, CrossEntropy(), rows)).all()


def worst(model, x, y, epsilon=0.1):
    point = x.detach().requires_grad_()
    (slope,) = torch.autograd.grad(F.cross_entropy(model(point), y), point)
    return epsilon * slope.sign()


def test_no_gradient_goes_through_the_perturbation(rows):
    model, (x, y) = quiet().double(), rows.values()
    fixed = F.cross_entropy(model(x + worst(model, x, y)), y)
    close(gradients(model, run(model, AT(epsilon=0.1), rows).loss), gradients(model, fixed))


@pytest.mark.parametrize("objective", [AT(epsilon=0.1), CrossEntropy() + AT(epsilon=0.1)], ids=["alone", "with CE"])
def test_an_encoder_in_front_of_the_batch_gets_its_gradient(rows, objective):
    encoder, model, y = nn.Linear(FEATURES, FEATURES).double(), quiet().double(), rows["y"]
    x = encoder(rows["x"])
    ours = run(model, objective, {"x": x, "y": y}).loss
    x = encoder(rows["x"])
    expected = F.cross_entropy(model(x + worst(model, x, y)), y)
    if objective.parts[0][1] == CrossEntropy():
        expected = expected + F.cross_entropy(model(x), y)
    both = nn.ModuleList([encoder, model])
    close(gradients(both, ours), gradients(both, expected))
    assert gradients(encoder, run(model, objective, {"x": encoder(rows["x"]), "y": y}).loss)[0].abs().max() > 0


def test_the_rows_themselves_are_left_alone(rows):
    run(quiet().double(), CrossEntropy() + AT(), rows).loss.backward()
    assert not rows["x"].requires_grad
    assert rows["x"].grad is None


def test_shared_noise_is_that_of_the_clean_pass():
    model, rows = noisy(norm=False), only(batch(), "x", "y")
    torch.manual_seed(1)
    near = run(model, CrossEntropy() + AT(epsilon=1e-6, noise="shared"), rows).terms
    assert near["at"].item() == pytest.approx(near["cross_entropy"].item(), abs=1e-4)
    far = run(model, CrossEntropy() + AT(epsilon=1e-6), rows).terms
    assert abs(far["at"] - far["cross_entropy"]) > 1e-3


def test_gradients_are_needed(rows):
    with torch.no_grad(), pytest.raises(RuntimeError, match="no_grad"):
        run(quiet().double(), AT(), rows)


def test_unit_keeps_tiny_gradients():
    tiny = torch.tensor([[3e-30, 4e-30], [0.0, 0.0]])
    torch.testing.assert_close(unit(tiny), torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
    assert unit(torch.ones(2, 3, 4)).shape == (2, 3, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be positive"),
        ({"norm": "l1"}, "'linf', 'l2', got 'l1'"),
        ({"noise": "none"}, "'independent', 'shared', got 'none'"),
    ],
)
def test_the_options_are_checked(options, message):
    with pytest.raises(ValueError, match=message):
        AT(**options)
