"""The committed ledger: every record is whole, is of a run that its suite makes, and names nothing of a machine's."""

from collections import defaultdict
from pathlib import Path

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Ledger, Record, is_measurement, is_record
from advdrop.lab.report.collect import check
from advdrop.lab.suites.suite import Suite

RESULTS = Path(__file__).parents[1] / "results"


def files(kind):
    found = sorted(path for path in RESULTS.rglob("*.json") if kind(path))
    assert found
    return found


def test_every_committed_measurement_is_whole_and_in_its_place():
    for path in files(is_measurement):
        found = Measurement.read(path)
        assert Ledger(RESULTS).path(found) == path
        assert found.commit is not None, path
        assert "+changes" not in found.commit, path


def test_every_committed_record_is_of_a_run_that_its_suite_makes():
    suites = {}
    for path in files(is_record):
        record = Record.read(path)
        check(record, suites.setdefault(record.suite, Suite.load(record.suite)))
        assert Ledger(RESULTS).path(record) == path
        assert record.commit is not None, path
        assert "+changes" not in record.commit, path  # the code that made it can be looked at
        assert "/" not in record.dataset, path


def test_methods_of_one_seed_had_the_same_labeled_images():
    splits = defaultdict(set)
    for record in map(Record.read, files(is_record)):
        key = (record.dataset_checksum, record.labels, record.seed, record.config["data"]["overlap"])
        splits[key].add(record.split_checksum)
    assert {key: len(found) for key, found in splits.items() if len(found) > 1} == {}
