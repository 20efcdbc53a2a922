import numpy as np
import pytest
from sklearn.datasets import make_moons

from advdrop.sklearn.members import MemberLinear


@pytest.fixture(scope="session")
def moons():
    """Two classes, 200 rows. The first 100 have ten labels, the last 100 have all."""
    x, y = make_moons(200, noise=0.15, random_state=0)
    few = y[:100].copy()
    few[10:] = -1
    return x[:100], few, x[100:], y[100:]


@pytest.fixture(scope="session")
def each_output():
    """A function that returns the outputs of each member for scaled features, computed by a loop over the members."""

    def outputs(training, x):
        layers = [layer for layer in training.network if isinstance(layer, MemberLinear)]
        found = []
        for member in range(training.members):
            h = x
            for layer in layers:
                weight, bias = (part[member].detach().numpy().astype(float) for part in (layer.weight, layer.bias))
                h = h @ weight + bias
                h = h if layer is layers[-1] else np.maximum(h, 0)
            found.append(h)
        return np.stack(found)

    return outputs
