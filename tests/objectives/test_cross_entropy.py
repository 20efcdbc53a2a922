import numpy as np
import pytest
import torch
from torch import nn

from advdrop import CrossEntropy
from small import CLASSES, FEATURES, batch, quiet, run, values


def test_against_numpy():
    model, rows = nn.Linear(FEATURES, CLASSES).double(), batch(dtype=torch.float64)
    z = model(rows["x"]).detach().numpy()
    expected = np.log(np.exp(z).sum(1)) - z[np.arange(len(z)), rows["y"].numpy()]
    np.testing.assert_allclose(values(model, CrossEntropy(), rows).detach(), expected)


def test_labels_are_needed_and_must_be_classes():
    with pytest.raises(ValueError, match="needs label"):
        run(quiet(), CrossEntropy(), {"unlabeled": torch.ones(2, FEATURES)})
    with pytest.raises(ValueError, match=r"0\.\.2 for 3 outputs, got values from 0 to 3"):
        run(quiet(), CrossEntropy(), {"x": torch.ones(2, FEATURES), "y": torch.tensor([0, CLASSES])})


@pytest.mark.parametrize("weight", [{1: 1.0, 0: 5.0}, {1.0, 5.0}, 2.0, torch.ones(3, 3), torch.tensor(2.0)])
def test_class_weights_are_one_number_for_each_class_in_their_order(weight):
    with pytest.raises(TypeError, match="weight must have one number for each class, in their order, got"):
        CrossEntropy(weight=weight)
    assert CrossEntropy(weight=np.array([1.0, 5.0])).weight == (1.0, 5.0)
