import numpy as np
import pytest
import torch
from torch import nn

from advdrop import EntropyMinimization
from small import CLASSES, FEATURES, batch, close, gradients, values


@pytest.mark.parametrize(("rows", "name"), [("unlabeled", "unlabeled"), ("labeled", "x")])
def test_against_numpy(rows, name):
    model, given = nn.Linear(FEATURES, CLASSES).double(), batch(dtype=torch.float64)
    f = model(given[name]).softmax(1).detach().numpy()
    found = values(model, EntropyMinimization(rows=rows), given).detach()
    np.testing.assert_allclose(found, -(f * np.log(f)).sum(1))


def test_the_gradient_is_that_of_the_whole_entropy():
    model, rows = nn.Linear(FEATURES, CLASSES).double(), batch(dtype=torch.float64)
    f = model(rows["unlabeled"]).softmax(1)
    expected = gradients(model, -(f * f.log()).sum(1).mean())
    close(gradients(model, values(model, EntropyMinimization(), rows).mean()), expected)
