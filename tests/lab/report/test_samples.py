import base64

import pytest

from advdrop.lab.engine import RunDirectory, train
from advdrop.lab.records.record import Record, RecordError, record_of
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import page
from advdrop.lab.report.samples import sample_figures
from runs import pictures, tiny


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    data, path = pictures(), tmp_path_factory.mktemp("gan") / "r"
    train(tiny("data.scaling=unit", method="catgan", data=data), path, data=data, progress=False)
    return record_of(RunDirectory.open(path)), (path / "samples.png").read_bytes()


def test_a_record_holds_the_sheet_and_the_page_shows_it(record, tmp_path):
    found, png = record
    assert base64.b64decode(found.samples) == png
    (tmp_path / "r.json").write_text(found.dump())
    assert Record.read(tmp_path / "r.json").samples == found.samples
    results = results_of([found])
    (figure,) = sample_figures(results[0])
    assert f"data:image/png;base64,{found.samples}" in figure.svg
    text = page(results)
    assert text.count(found.samples) == 1  # the record on the page is without it
    assert "Generated pictures: catgan" in text


def test_a_record_without_samples_is_as_it_was(record):
    without = record[0].model_copy(update={"samples": None})
    assert "samples" not in without.dump()
    assert sample_figures(results_of([without])[0]) == []


@pytest.mark.parametrize("bad", ['x"onload="', "", "A" * 100_001])
def test_what_is_no_base64_is_refused(record, bad, tmp_path):
    (tmp_path / "r.json").write_text(record[0].model_copy(update={"samples": bad}).sealed().dump())
    with pytest.raises(RecordError, match="samples"):
        Record.read(tmp_path / "r.json")
