import pytest

from advdrop.lab.report.answer import Answer, Changed
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


PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)


@pytest.fixture
def answer():
    """The answer of a comparison of two seeds with five test images."""
    return Answer(
        method="vadd-qe",
        baseline="dropout",
        labeled=200,
        unlabeled=1600,
        test_images=5,
        seeds=2,
        error_percent=10.0,
        baseline_error_percent=40.0,
        difference=30.0,
        margin=20.0,
        classes=("cat", "dog"),
        confusion=((3, 1), (0, 6)),
        right_now=2,
        wrong_now=1,
        changed=(
            Changed(picture=PIXEL, truth="cat", before="dog", now="cat"),
            Changed(picture=PIXEL, truth="dog", before="dog", now="cat"),
        ),
    )
