"""Measurements in and out of a ledger, and what is claimed from them."""

import base64
import json
import re
import zlib

import pytest

from advdrop.lab.records.measurement import Measurement, measurements
from advdrop.lab.records.record import Ledger, RecordError, is_measurement, is_record
from advdrop.lab.report.formats import FORMATS, details, page
from advdrop.lab.report.studies import lower, studies_of
from studies import autoencoder_of, theory_of

PICTURE = base64.b85encode(zlib.compress(bytes([31, 0, 225, 0] * 3))).decode()


OTHER = {
    "seed": 7,
    "settings": {"x": 1},
    "numbers": {"x": 1.0},
    "series": {"x": [1.0]},
    "shape": [9],
    "versions": {"x": "1"},
    "machine": {"x": 1},
    "seconds": 5.0,
}


def three(**numbers):
    """Four rows on three seeds; a number is a list for the rows in their order."""
    rows = ("none", "dropout", "adversarial", "virtual")
    found = []
    for seed in range(3):
        for number, row in enumerate(rows):
            own = {key: values[number] + 0.01 * values[number] * seed * (number + 1) for key, values in numbers.items()}
            found.append(autoencoder_of(row, seed, picture=PICTURE if seed == 0 else None, **own))
    return found


def test_a_measurement_is_written_once_and_read_back(tmp_path):
    found = autoencoder_of()
    assert Ledger(tmp_path).add(found) == "added"
    path = Ledger(tmp_path).path(found)
    assert path == tmp_path / "autoencoder/mnist5k/dropout-0.json"
    assert Measurement.read(path) == found
    assert Ledger(tmp_path).add(autoencoder_of(seconds=99.0)) == "repeated"
    assert Ledger(tmp_path).add(autoencoder_of(dead_units=2.0)) == "other"
    assert measurements(tmp_path) == measurements(path) == [found]


def solved(deviation=0.0, **numbers):
    """The measurement of the theorem with one coefficient moved."""
    found = theory_of(**numbers)
    moved = [value + deviation for value in found.series["training/age"]]
    return found.model_copy(update={"series": found.series | {"training/age": moved}}).sealed()


@pytest.mark.parametrize(
    ("other", "outcome"),
    [
        (solved(5e-6), "repeated"),  # what another version of the solver did
        (solved(9e-5, largest_gap=3e-12), "repeated"),
        (solved(2e-4), "other"),
        (solved(dropout_identity=1e-7), "other"),
        (solved(fits=3.0), "other"),
    ],
)
def test_the_precision_of_a_solver_makes_no_other_result(other, outcome, tmp_path):
    Ledger(tmp_path).add(theory_of())
    assert Ledger(tmp_path).add(other) == outcome


def test_an_autoencoder_repeats_exactly(tmp_path):
    Ledger(tmp_path).add(autoencoder_of())
    assert Ledger(tmp_path).add(autoencoder_of(hoyer=0.6 + 1e-12)) == "other"
    fewer = autoencoder_of(series={"edges": [-1.0, 0.0, 1.0], "activations": [0.5], "means": [0.25, 0.25]})
    assert Ledger(tmp_path).add(fewer) == "other"


def test_a_measurement_is_no_record_of_a_table(tmp_path):
    Ledger(tmp_path).add(autoencoder_of())
    path = Ledger(tmp_path).path(autoencoder_of())
    assert is_measurement(path)
    assert not is_record(path)
    (tmp_path / "broken.json").write_text("{")
    assert not is_measurement(tmp_path / "broken.json")


def test_a_changed_measurement_is_refused(tmp_path):
    Ledger(tmp_path).add(autoencoder_of())
    path = Ledger(tmp_path).path(autoencoder_of())
    values = json.loads(path.read_text())
    for field in set(Measurement.model_fields) - {"format", "digest"}:
        path.write_text(json.dumps(values | {field: OTHER.get(field, "other")}))
        with pytest.raises(RecordError, match="digest"):
            Measurement.read(path)


@pytest.mark.parametrize("made", [autoencoder_of, theory_of])
def test_a_copy_of_a_measurement_counts_once(made):
    copy = made().model_copy(update={"seconds": 9.0, "finished": "2027-01-01"}).sealed()
    (study,) = studies_of([made(), made(), copy])
    assert study.measurements == [made()]


def test_two_studies_of_one_kind_are_sections_named_by_what_differs():
    other = theory_of().model_copy(update={"seed": 1}).sealed()
    one, two = studies_of([theory_of(), other])
    assert one.title.endswith("linear regression, diabetes (seed 0)")
    assert two.title.endswith("linear regression, diabetes (seed 1)")
    wide = [autoencoder_of(row, settings={"hidden": 9, "updates": 1000, "batch": 128}) for row in ("none", "dropout")]
    one, two = studies_of([autoencoder_of("none"), wide[0], autoencoder_of("dropout"), wide[1]])
    assert one.title.endswith("mnist5k (hidden 3)")
    assert two.title.endswith("mnist5k (hidden 9)")
    assert [study.measurements[1].row for study in (one, two)] == ["dropout", "dropout"]


def test_two_results_of_one_measurement_are_sections_named_by_their_date():
    later = theory_of(dropout_identity=0.1).model_copy(update={"finished": "2027-01-01"}).sealed()
    one, two = studies_of([theory_of(), later])
    assert one.title.endswith("(finished 2026-01-01)")
    assert two.title.endswith("(finished 2027-01-01)")
    assert (one.claims[1].verdict, two.claims[1].verdict) == ("holds", "does not hold")


def test_an_unknown_study_is_told():
    with pytest.raises(RecordError, match="a study 'horoscope', which is unknown"):
        studies_of([autoencoder_of(study="horoscope")])


def by_row(found):
    return {row: [each for each in found if each.row == row] for row in dict.fromkeys(each.row for each in found)}


def test_claims_are_judged_seed_by_seed():
    rows = by_row(three(dead_units=[9.0, 8.0, 2.0, 8.0], mean_activation=[1.0, 1.0, 1.0, 5.0]))
    claims = [
        ("fewer", "dead_units", "adversarial", "dropout"),
        ("not known", "dead_units", "virtual", "dropout"),
        ("more", "mean_activation", "virtual", "none"),
        ("left out", "dead_units", "another", "none"),
    ]
    found = {claim.text: claim for claim in lower(rows, claims)}
    assert list(found) == ["fewer", "not known", "more"]
    assert found["fewer"].verdict == "holds"
    assert found["fewer"].numbers == "difference -6.1 ± 0.25, n = 3, p < 0.001"  # -6, -6.1, -6.2
    assert found["more"].verdict == "the other way around"
    assert str(found["fewer"]).startswith("fewer: holds (difference")


def test_one_seed_settles_nothing():
    rows = by_row([autoencoder_of("adversarial", dead_units=0.0), autoencoder_of("dropout", dead_units=200.0)])
    (claim,) = lower(rows, [("fewer", "dead_units", "adversarial", "dropout")])
    assert (claim.verdict, claim.numbers) == ("not known", "difference -200 in a single run")


def test_the_study_of_autoencoders():
    (study,) = studies_of(three(reconstruction_error=[0.01, 0.02, 0.02, 0.03], dead_units=[9.0, 8.0, 2.0, 1.0]))
    assert [row[0] for row in study.rows] == [
        "no dropout",
        "dropout",
        "adversarial dropout",
        "adversarial dropout, own output as target",
    ]
    assert study.rows[0][1] == "0.0101 ± 0.0001"
    assert study.rows[0][-1] == "3"
    assert study.notes[0].startswith("The paper's comparison does not apply here")
    assert "is 3.1 times that of no dropout" in study.notes[0]
    assert (
        "own output as target 1.53 times that of dropout, adversarial dropout, own output as target 3.09 times"
        in study.notes[0]
    )
    assert len(study.claims) == 10
    assert study.claims[0].text == "Fewer dead units with adversarial dropout than with dropout"
    assert study.claims[0].verdict == "holds"
    assert [figure.title for figure in study.figures] == [
        *(f"Figure 2: {row[0]}, {dead} dead" for row, dead in zip(study.rows, (9, 8, 2, 1), strict=True)),
        "Figure 3: activations",
        "Figure 3: mean activation of each unit",
    ]
    assert study.commands[0] == "advdrop reproduce figure2 --seeds 3"


def test_similar_errors_are_said_to_be_similar():
    (study,) = studies_of(three(reconstruction_error=[0.02, 0.02, 0.02, 0.02]))
    assert study.notes == ["The reconstruction errors are similar: the largest is 1.03 times the smallest."]


def test_the_figures_follow_the_numbers():
    few, many = (studies_of([autoencoder_of(dead_units=dead, picture=PICTURE)])[0] for dead in (1.0, 3.0))
    assert few.figures[0].svg.count("stroke-opacity: 0.5") == 2
    assert many.figures[0].svg.count("stroke-opacity: 0.5") == 6
    other = autoencoder_of(series={"edges": [-1.0, 0.0, 1.0], "activations": [0.1, 0.6], "means": [0.2, 0.2]})
    assert studies_of([other])[0].figures[0].svg != studies_of([autoencoder_of()])[0].figures[0].svg
    assert "dropout 30.0 %" in studies_of([other])[0].figures[0].note


def test_features_share_one_scale():
    """The same picture of a model whose weights are half as large is paler."""
    pair = [
        autoencoder_of("none", picture=PICTURE, feature_scale=1.0),
        autoencoder_of("dropout", picture=PICTURE, feature_scale=2.0),
    ]
    drawn = studies_of(pair)[0].figures[:2]
    images = {re.search(r"base64,([^\"]+)", figure.svg)[1] for figure in drawn}
    assert len(images) == 2
    assert all("(±2)" in figure.note for figure in drawn)


def test_the_study_of_the_theorem():
    (study,) = studies_of([theory_of()])
    assert [claim.verdict for claim in study.claims] == ["holds", "holds", "does not hold"]
    assert "up to 12 % of the examples, at k = 2" in study.claims[2].numbers
    assert study.rows[0][:3] == ["least squares", "", "2.000"]
    assert ["ridge", "0.1", "1.000", "0.707", "0.500", "0 of 2"] in study.rows
    assert [row[1] for row in study.rows if row[0] == "adversarial dropout"] == ["1", "2"]
    assert len(study.figures) == 5
    (broken,) = studies_of([theory_of(dropout_identity=0.1)])
    assert broken.claims[1].verdict == "does not hold"


@pytest.mark.parametrize("form", ["html", "markdown", "json", "latex"])
def test_every_format_shows_studies(form):
    studies = studies_of([*three(dead_units=[9.0, 8.0, 2.0, 1.0]), theory_of()])
    text = FORMATS[form]([], studies)
    assert "holds" in text or form == "latex"
    assert "adversarial dropout" in text
    if form == "json":
        values = json.loads(text)
        assert len(values["measurements"]) == 13
        assert len(values["studies"][0]["claims"]) == 10


def test_csv_has_the_records_of_tables_alone():
    assert FORMATS["csv"]([], studies_of([theory_of()])).count("\n") == 1


def test_the_page_has_studies_behind_its_tables(results):
    studies = studies_of([*three(), theory_of()])
    text = page(results, studies)
    assert text.index('id="table-1"') < text.index('id="study-1"') < text.index('id="study-2"')
    assert 'href="#study-2"' in text
    assert "http" not in text.replace("http-equiv", "")
    assert "is computed from 19 records" in " ".join(text.split())
    assert PICTURE not in text.replace("base64", "")  # the pixels are in the figure, not once more in the record


def test_what_is_written_in_a_measurement_is_escaped():
    evil = "<script>alert(1)</script>"
    text = page([], studies_of([autoencoder_of(commit=evil, dataset=evil, finished=evil)]))
    assert evil not in text
    assert "&lt;script&gt;" in text


def test_the_details_of_a_measurement_leave_out_its_picture():
    assert f"({len(PICTURE)} characters)" in details(autoencoder_of(picture=PICTURE))


def test_a_measurement_without_its_numbers_is_refused_by_name():
    with pytest.raises(RecordError, match=r"measurement autoencoder mnist5k dropout seed 0 \(KeyError"):
        studies_of([autoencoder_of(numbers={})])
