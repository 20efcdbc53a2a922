import numpy as np
import pytest
import torch
from torch import nn

from advdrop import AdversarialDropout, PiModel, kl, qe
from small import CLASSES, FEATURES, batch, close, gradients, only, quiet, run, values


@pytest.fixture
def model():
    return nn.Linear(FEATURES, CLASSES).double()


@pytest.fixture
def rows():
    return batch(dtype=torch.float64)


def test_against_numpy(model, rows):
    one, other = (model(rows[name]).softmax(1).detach().numpy() for name in ("unlabeled", "second_view"))
    np.testing.assert_allclose(values(model, PiModel(), rows).detach(), ((one - other) ** 2).mean(1))
    expected = (one * np.log(one / other)).sum(1)
    np.testing.assert_allclose(values(model, PiModel(divergence=kl), rows).detach(), expected)


def test_the_gradient_is_that_of_both_passes(model, rows):
    def outputs():
        return model(rows["unlabeled"]), model(rows["second_view"])

    ours = gradients(model, run(model, PiModel(), rows).loss)
    first, second = outputs()
    close(ours, gradients(model, qe(first, second).mean()))
    first, second = outputs()
    assert not torch.allclose(ours[0], gradients(model, qe(first.detach(), second).mean())[0])


@pytest.mark.parametrize("noise", [nn.Dropout, AdversarialDropout])
def test_there_is_something_to_lose_only_where_there_is_noise(noise):
    model, rows = nn.Sequential(noise(0.5), nn.Linear(FEATURES, CLASSES)), only(batch(), "unlabeled")
    assert run(model, PiModel(), rows).loss > 1e-4
    assert run(model.eval(), PiModel(), rows).loss == 0
    assert run(quiet(0.0), PiModel(), rows).loss == 0
