import numpy as np
import pytest
import torch
from torch import nn

from advdrop import EntropyMinimization
from small import CLASSES, FEATURES, batch, values


@pytest.mark.parametrize(("rows", "name"), [("unlabeled", "unlabeled"), ("labeled", "x")])
def test_against_numpy(rows, name):
    model, given = nn.Linear(FEATURES, CLASSES).double(), batch(dtype=torch.float64)
    f = model(given[name]).softmax(1).detach().numpy()
    found = values(model, EntropyMinimization(rows=rows), given).detach()
    np.testing.assert_allclose(found, -(f * np.log(f)).sum(1))
