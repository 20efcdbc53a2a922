import pytest
from sklearn.datasets import make_moons


@pytest.fixture(scope="session")
def moons():
    """Two classes, 200 rows. The first 100 have ten labels, the last 100 have all."""
    x, y = make_moons(200, noise=0.15, random_state=0)
    few = y[:100].copy()
    few[10:] = -1
    return x[:100], few, x[100:], y[100:]
