"""The committed ledger: every record is whole, is of a run that its suite makes, and names nothing of a machine's."""

from pathlib import Path

import pytest

from advdrop.experiments.suite import Suite
from advdrop.report.collect import check
from advdrop.report.records import Ledger, is_measurement, is_record, read_record
from advdrop.report.studies import place, read_measurement

RESULTS = Path(__file__).parents[1] / "results"
RECORDS = sorted(path for path in RESULTS.rglob("*.json") if is_record(path))
MEASUREMENTS = sorted(path for path in RESULTS.rglob("*.json") if is_measurement(path))


def test_there_are_records():
    assert RECORDS
    assert MEASUREMENTS


@pytest.mark.parametrize("path", MEASUREMENTS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_committed_measurement_is_whole_and_in_its_place(path):
    found = read_measurement(path)
    assert place(RESULTS, found) == path
    assert found.commit is not None
    assert "+changes" not in found.commit


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_committed_record_is_of_a_run_that_its_suite_makes(path):
    record = read_record(path)
    check(record, Suite.load(record.suite))
    assert Ledger(RESULTS).path(record) == path
    assert record.commit is not None
    assert "+changes" not in record.commit  # the code that made it can be looked at
    assert "/" not in record.dataset


def test_methods_of_one_seed_had_the_same_labelled_images():
    splits: dict[tuple[object, ...], set[str]] = {}
    for path in RECORDS:
        record = read_record(path)
        key = (record.dataset_checksum, record.labels, record.seed, record.config["data"]["overlap"])
        splits.setdefault(key, set()).add(record.split_checksum)
    assert {key: len(found) for key, found in splits.items() if len(found) > 1} == {}
