import json
import shutil
from pathlib import Path

import pytest

from advdrop.lab.records.record import ERROR, FORMAT, Ledger, Record, RecordError, is_record
from ledger import IMAGES, loose_of, run_of, suite_of


@pytest.fixture
def record(tmp_path):
    return run_of(suite_of(tmp_path))


def written(folder, content):
    path = folder / "record.json"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def complaint(path):
    with pytest.raises(RecordError) as error:
        Record.read(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))
    return str(error.value).removeprefix(str(path)).strip(" :")


def changed(record, **changes):
    return record.model_copy(update=changes)


def test_what_is_written_is_read(tmp_path, record):
    again = Record.read(written(tmp_path, record.dump()))
    assert again == record
    assert again.dump() == record.dump()
    assert again.digest == again.computed_digest()


def test_a_record_of_no_suite_is_read_as_well(tmp_path):
    record = loose_of(labels="all", dataset="my/täble.npz", commit=None)
    assert Record.read(written(tmp_path, record.dump())) == record


def test_a_record_is_json_with_a_line_for_each_curve(record):
    assert json.loads(record.dump()) == record.model_dump(mode="json")
    assert [line for line in record.dump().splitlines() if line.startswith("  ") and ERROR in line] == [
        f'  "{ERROR}": [40.0, 20.0, 15.0, 10.0]'
    ]


def another(value):
    if isinstance(value, dict):
        return {**value, "x": [1.0]} if any(isinstance(part, list) for part in value.values()) else {**value, "x": "y"}
    if isinstance(value, list):
        return [*value, {"cpu": "another"}]
    if isinstance(value, tuple):
        return (*value, 1)
    if isinstance(value, bool):
        return not value
    return "A" if value is None else f"{value}0" if isinstance(value, str) else value + 1


def test_the_digest_depends_on_every_field_but_itself(record):
    for name in set(Record.model_fields) - {"digest", "format"}:
        assert changed(record, **{name: another(getattr(record, name))}).computed_digest() != record.digest, name
    assert changed(record, digest="x").computed_digest() == record.digest


def test_a_record_is_called_by_its_place(record):
    assert record.name == "small short paper 20 vadd seed 0"
    assert loose_of(seed=3).name == "digits 20 vadd-kl seed 3"


FORGED = {
    "error": ({"test_error_percent": 0.5}, "the test error is 0.5, and 10.0 at the end of its curve"),
    "method": ({"method": "pi"}, "method is 'pi', and 'vadd-kl' in its configuration"),
    "dataset": ({"dataset": "mnist"}, "dataset is 'mnist', and 'digits' in its configuration"),
    "labels": ({"labels": 30}, "labels is 30, and 20 in its configuration"),
    "seed": ({"seed": 5}, "seed is 5, and 0 in its configuration"),
    "updates": ({"updates": 41}, "41 updates, 40 in its configuration, 40.0 in its curve"),
    "config": ({"config": {}}, "method is 'vadd-kl', and None in its configuration"),
    "curve": ({"curve": {}}, "40 updates, 40 in its configuration, None in its curve"),
    "images": ({"test_images": 7}, "10.0 % of 7 examples is not a whole number of examples"),
}


@pytest.mark.parametrize(("changes", "message"), FORGED.values(), ids=FORGED)
def test_a_record_that_was_edited_is_refused(tmp_path, record, changes, message):
    path = written(tmp_path, changed(record, **changes).dump())
    assert complaint(path) == "its digest is not that of its content: it was changed after the run"


@pytest.mark.parametrize(("changes", "message"), FORGED.values(), ids=FORGED)
def test_a_forged_record_with_a_new_digest_contradicts_itself(tmp_path, record, changes, message):
    assert complaint(written(tmp_path, changed(record, **changes).sealed().dump())) == message


def test_an_error_must_be_a_whole_number_of_images(tmp_path, record):
    errors = [40.0, 20.0, 15.0, 9.9953]  # 999.53 images
    forged = changed(record, test_error_percent=errors[-1], curve={**record.curve, ERROR: errors}).sealed()
    assert complaint(written(tmp_path, forged.dump())) == "9.9953 % of 10000 examples is not a whole number of examples"


@pytest.mark.parametrize("images", [1, 3, 7, 797, IMAGES, 26_032])
def test_every_whole_number_of_images_is_one(tmp_path, record, images):
    for wrong in {0, 1, images // 3, images - 1, images}:
        error = 100 * wrong / images
        curve = {**record.curve, ERROR: [1.0, 2.0, 3.0, error]}
        Record.read(
            written(
                tmp_path, changed(record, test_images=images, test_error_percent=error, curve=curve).sealed().dump()
            )
        )


@pytest.mark.parametrize("field", ["seed", "updates", "parameters", "examples", "test_images"])
def test_numbers_with_many_digits_are_refused(tmp_path, record, field):
    forged = changed(record, **{field: 10**400}).sealed()
    assert complaint(written(tmp_path, forged.dump())).startswith(f"is not a record: {field} Input should be less than")


def test_a_nan_and_a_very_long_text_are_refused(tmp_path, record):
    text = record.dump().replace(f'"{ERROR}": 10.0', f'"{ERROR}": NaN')
    assert f"{ERROR} Input should be a finite number" in complaint(written(tmp_path, text))
    forged = changed(record, commit="x" * 5000).sealed()
    assert "commit String should have at most 4096" in complaint(written(tmp_path, forged.dump()))


@pytest.mark.parametrize(
    ("training", "said"), [({"updates": 400}, "400"), ({}, "None"), (None, "None"), (7, "None"), ([], "None")]
)
def test_a_forged_length_is_refused(tmp_path, record, training, said):
    forged = changed(record, config={**record.config, "training": training}).sealed()
    assert complaint(written(tmp_path, forged.dump())) == f"40 updates, {said} in its configuration, 40.0 in its curve"


def test_a_curve_with_lists_of_several_lengths_is_refused(tmp_path, record):
    forged = changed(record, curve={**record.curve, ERROR: [10.0]}).sealed()
    assert complaint(written(tmp_path, forged.dump())) == "the lists of its curve are not equally long"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"note": "better than the paper"}, "note Extra inputs are not permitted"),
        ({"a\nb": 1}, "a b Extra inputs are not permitted"),
        ({"format": "advdrop record 2"}, f"format Input should be '{FORMAT}'"),
        ({"test_error_percent": float("nan")}, "test_error_percent Input should be a finite number"),
        ({"test_error_percent": -1}, "test_error_percent Input should be greater than or equal to 0"),
        ({"test_error_percent": 100.5}, "test_error_percent Input should be less than or equal to 100"),
        ({"milliseconds_per_update": 0}, "milliseconds_per_update Input should be greater than 0"),
        ({"test_images": 0}, "test_images Input should be greater than or equal to 1"),
        ({"curve": {"update": [float("inf")]}}, "curve.update.0 Input should be a finite number"),
        ({"seed": "zero"}, "seed Input should be a valid integer"),
        ({"machine": {"cpu": "\ud800"}}, "'utf-8' codec can't encode character"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line(tmp_path, record, changes, message):
    content = json.dumps({**record.model_dump(mode="json"), **changes})
    assert complaint(written(tmp_path, content)).startswith(f"is not a record: {message}")


def test_what_is_missing_is_named(tmp_path, record):
    values = record.model_dump(mode="json")
    for name in ("preset", "test_error_percent", "curve", "config", "commit"):
        content = json.dumps({key: value for key, value in values.items() if key != name})
        assert complaint(written(tmp_path, content)) == f"is not a record: {name} Field required"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"{'a': 1}", b"half a rec"])
def test_what_is_not_json_is_refused(tmp_path, content):
    assert complaint(written(tmp_path, content)).startswith("is not a JSON file: ")
    assert is_record(tmp_path / "record.json")  # half written or damaged: it must not go unseen


@pytest.mark.parametrize("content", [b"[]", b"3", b"null", b'"advdrop record 1"', b"{}"])
def test_json_of_another_kind_is_no_record(tmp_path, content):
    assert complaint(written(tmp_path, content)).startswith("is not a record: ")
    assert not is_record(tmp_path / "record.json")


def test_a_record_is_added_where_its_place_is(tmp_path, record):
    ledger = Ledger(tmp_path / "results")
    assert ledger.add(record) == "added"
    path = tmp_path / "results" / "small" / "short-paper" / "20" / "vadd-0.json"
    assert ledger.path(record) == path
    assert Record.read(path) == record
    assert [file for file in (tmp_path / "results").rglob("*") if file.is_file()] == [path]


def test_a_record_is_sealed_when_it_is_added(tmp_path, record):
    ledger = Ledger(tmp_path)
    ledger.add(changed(record, digest=""))
    assert Record.read(ledger.path(record)) == record


def test_a_run_that_was_made_before_is_never_written_again(tmp_path, record):
    ledger = Ledger(tmp_path)
    ledger.add(record)
    before = ledger.path(record).read_bytes()
    faster = changed(record, seconds=0.1, commit="another").sealed()
    assert ledger.add(faster) == "repeated"
    better = changed(record, test_error_percent=9.0, curve={**record.curve, ERROR: [40.0, 20.0, 15.0, 9.0]}).sealed()
    assert ledger.add(better) == "other"
    early = changed(record, curve={**record.curve, ERROR: [41.0, 20.0, 15.0, 10.0]}).sealed()
    assert ledger.add(early) == "other"
    assert ledger.path(record).read_bytes() == before


def test_a_forged_record_is_not_taken_for_a_run(tmp_path, record):
    ledger = Ledger(tmp_path)
    ledger.add(record)
    ledger.path(record).write_text(changed(record, test_error_percent=0.0).dump(), encoding="utf-8")
    with pytest.raises(RecordError, match="its digest is not that of its content"):
        ledger.add(record)
    with pytest.raises(RecordError, match=r"vadd-0\.json: its digest"):
        list(ledger.records())


def test_other_files_in_the_folder_are_ignored(tmp_path, record):
    results = Path(__file__).parents[3] / "results"
    ledger = Ledger(tmp_path / "results")
    ledger.add(record)
    folder = ledger.path(record).parent
    for file in results.glob("*.json"):  # step.json and the others, at the top and beside the records
        shutil.copy(file, ledger.folder)
        shutil.copy(file, folder)
    (folder / "list.json").write_text("[1]")
    (folder / "README.md").write_text("# Notes")
    assert len(list(folder.iterdir())) > 4
    assert list(ledger.records()) == [record]
    (folder / "half.json").write_text(record.dump()[:100])
    with pytest.raises(RecordError, match=r"half\.json is not a JSON file"):
        list(ledger.records())


def test_records_come_in_the_order_of_their_names(tmp_path):
    suite, ledger = suite_of(tmp_path), Ledger(tmp_path / "results")
    made = [run_of(suite, row, seed) for row in ("vadd", "dropout") for seed in (1, 0)]
    assert [ledger.add(record) for record in made] == ["added"] * 4
    assert [(record.row, record.seed) for record in ledger.records()] == [
        ("dropout", 0),
        ("dropout", 1),
        ("vadd", 0),
        ("vadd", 1),
    ]


def test_a_folder_that_is_not_there_has_no_records(tmp_path):
    assert list(Ledger(tmp_path / "nowhere").records()) == []
