import pytest

from advdrop.lab.report.collect import results_of
from ledger import run_of, suite_of


@pytest.fixture
def suite(tmp_path):
    """A small suite of the user's own."""
    return suite_of(tmp_path)


@pytest.fixture
def results(suite):
    """Its table with three seeds of two rows."""
    runs = [run_of(suite, "vadd", seed, (50.0, 20.0, last)) for seed, last in enumerate((4.1, 4.2, 4.3))]
    runs += [run_of(suite, "pi", seed, (50.0, 20.0, 4.0), milliseconds_per_update=1.0) for seed in range(3)]
    return results_of(runs, {suite.key: suite})
