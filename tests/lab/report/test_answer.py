"""Did the unlabeled examples help? One sentence, which says no more than was measured."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from advdrop.lab.records.record import RecordError
from advdrop.lab.report.answer import (
    MOST_EXAMPLES,
    Answer,
    Changed,
    answer_in_words,
    answers_in,
    counts,
    question,
    read_answer,
    with_answers,
)
from advdrop.lab.report.collect import results_of
from ledger import loose_of, reconfigured, run_of

COUNTS = "(200 labels, 5 test examples, 2 seeds)."


def runs(*rows, **options):
    """A table with these methods and their errors by seed."""
    (found,) = results_of([loose_of(m, seed, (40.0, e), **options) for m, es in rows for seed, e in enumerate(es)])
    return found


MANY = "the 1,600 unlabeled examples"
ERRORS = "10.0 % errors with them (vadd-qe), 40.0 % without (dropout)"
SAME = "10.0 % errors with them (vadd-qe) and without (dropout)"


@pytest.mark.parametrize(
    ("difference", "margin", "said"),
    [
        (30.0, 29.9, f"The {MANY[4:]} helped: {ERRORS}, 30.0 ± 29.9 points fewer"),
        (-30.0, 29.9, f"The {MANY[4:]} did harm: {ERRORS}, 30.0 ± 29.9 points more"),
        (30.0, 30.0, f"Too few labeled examples to tell whether {MANY} help: {ERRORS}, 30.0 ± 30.0 points fewer"),
        (0.0, 10.0, f"The {MANY[4:]} did not change the number of errors: {SAME}"),
    ],
)
def test_the_verdict_is_that_of_the_interval(answer, difference, margin, said):
    assert answer.model_copy(update={"difference": difference, "margin": margin}).text == f"{said} {COUNTS}"


def test_one_seed_says_that_another_may_differ(answer):
    assert answer.model_copy(update={"seeds": 1}).text.endswith("test examples, one seed, and another one may differ).")


@pytest.mark.parametrize(
    "picture",
    [
        "https://example.org/a.png",
        "javascript:alert(1)",
        "data:text/html;base64,PHNjcmlwdD4=",
        "data:image/svg+xml;base64,PHN2Zz4=",
        'data:image/png;base64,AAAA" onerror="alert(1)',
        "data:image/png;base64,AAAA\n",
        "data:image/png;base64,",
        "data:image/png;base64," + "A" * 100_000,
    ],
)
def test_only_a_small_png_is_a_picture(picture):
    with pytest.raises(ValidationError):
        Changed(picture=picture, truth="a", before="b", now="a")


def test_a_file_is_read_back_and_a_false_one_is_refused(answer, tmp_path):
    path = tmp_path / "answer.json"
    path.write_text(answer.model_dump_json())
    assert read_answer(path) == answer
    good = json.loads(answer.model_dump_json())
    for wrong, words in (
        ({"confusion": [[1, 2]]}, "square of 2 classes"),
        ({"changed": good["changed"] * MOST_EXAMPLES}, "at most 12"),
        ({"margin": -1.0}, "margin"),
        ({"error_percent": 101.0}, "error_percent"),
        ({"new": 1}, "new"),
        ({"method": "x" * 301}, "method"),
    ):
        path.write_text(json.dumps(good | wrong))
        with pytest.raises(RecordError, match=words):
            read_answer(path)
    path.write_text("{")
    with pytest.raises(RecordError, match="is not a JSON file"):
        answers_in([tmp_path])


def test_a_table_gets_the_answer_of_its_own_runs_alone(answer):
    one, other = runs(("dropout", [10.0]), ("pi", [8.0])), runs(("dropout", [9.0]), ("pi", [7.0]))
    first, second = (
        answer.model_copy(update={"records": tuple(record.digest for record in table.records)})
        for table in (one, other)
    )
    both = with_answers([one, other], [second, first, answer])  # the last one names no records
    assert [table.answer for table in both] == [first, second]
    fewer = replace(one, entries={k: v for k, v in one.entries.items() if k[0] == "pi"})
    assert with_answers([fewer], [first])[0].answer is None
    more = first.model_copy(update={"seeds": 3})
    assert with_answers([one], [more, first])[0].answer is more


def test_without_the_file_the_seeds_answer():
    helped = runs(("dropout", [10.0, 11.0, 12.0]), ("pi", [9.0, 9.0, 9.0]), ("vadd-kl", [7.0, 8.1, 9.2]))
    # differences 3, 2.9, 2.8: mean 2.9, standard deviation 0.1, t(2) = 4.303, 4.303 · 0.1 / sqrt(3) = 0.248
    assert answer_in_words(helped) == (
        "The unlabeled examples helped: 8.1 % errors with them (vadd-kl), 11.0 % without (dropout), 2.9 ± 0.2 points "
        "fewer (3 seeds)."
    )
    harm = runs(("dropout", [7.0, 8.1, 9.2]), ("pi", [10.0, 11.0, 12.0]))
    assert answer_in_words(harm).startswith("The unlabeled examples did harm: 11.0 % errors with them (pi), 8.1 %")
    chance = runs(("dropout", [10.0, 10.0]), ("pi", [9.0, 9.1]))
    assert answer_in_words(chance).startswith("The unlabeled examples helped")
    assert answer_in_words(runs(("dropout", [10.0, 10.0]), ("pi", [9.0, 9.9]))).startswith("Too few seeds to tell")
    assert answer_in_words(runs(("dropout", [10.0]), ("pi", [9.0]))) == (
        "One run is too few to tell whether the unlabeled examples help: 9.0 % errors with them (pi), 10.0 % without "
        "(dropout)."
    )


def test_only_seeds_that_both_have_count():
    table = runs(("dropout", [10.0, 11.0, 12.0]), ("pi", [9.0, 10.0]))
    assert "9.5 % errors with them (pi), 10.5 % without (dropout)" in answer_in_words(table)


@pytest.mark.parametrize(
    "rows",
    [
        [("pi", [9.0, 8.0]), ("vadd-kl", [9.0, 8.0])],  # nothing learned from the labels alone
        [("dropout", [9.0, 8.0]), ("sadd", [8.0, 8.0]), ("at+sadd", [8.0, 8.0])],  # no method uses unlabeled images
    ],
)
def test_no_comparison_is_no_answer(rows):
    assert answer_in_words(runs(*rows)) == ""
    assert question(runs(*rows)) == "digits, 20 labels: which method has the lowest error?"


def test_without_an_unlabeled_image_none_of_them_helped():
    rows = [("dropout", [10.0, 11.0]), ("pi", [9.0, 10.1])]
    assert question(runs(*rows, labels="all")) == "digits, all labels: which method has the lowest error?"
    assert answer_in_words(runs(*rows, labels="all")) == ""
    assert answer_in_words(runs(*rows, labels="all", half_labeled=True)).startswith("The unlabeled examples helped")


def test_rows_that_differ_in_more_than_the_method_do_not_answer():
    def of(method, **settings):
        runs = [("dropout", [10.0, 11.0]), ("pi", [9.0, 9.0])]
        records = [loose_of(m, seed, (40.0, e)) for m, es in runs for seed, e in enumerate(es)]
        (found,) = results_of([*records, *(reconfigured(loose_of(method, seed), settings) for seed in (0, 1))])
        return answer_in_words(found)

    assert "(pi)" in of("ladder")
    assert "(vat)" in of("vat")
    assert "(pi)" in of("vat", optimizer={"learning_rate": 0.5})
    assert "(vat)" in of("vat", engine={"checkpoint_seconds": 3.0})
    assert "10.5 % without (dropout, " in of("dropout", optimizer={"learning_rate": 0.5})  # that of the two like pi


def test_a_table_of_a_suite_asks_nothing(suite, results):
    assert [question(table) for table in results] == ["A small table"]
    assert [answer_in_words(table) for table in results] == [""]
    assert [counts(table) for table in results_of([run_of(suite)], {suite.key: suite})] == [{}]


def test_images_are_counted_as_far_as_they_are_known(answer):
    table = runs(("dropout", [10.0]), ("pi", [9.0]))
    assert question(table) == "digits, 20 labels: do the unlabeled examples help?"
    assert counts(table) == {"labeled": 20, "unlabeled": 1480, "test": 10_000}
    assert counts(runs(("pi", [9.0]), labels="all")) == {"training": 1500, "unlabeled": 0, "test": 10_000}
    half_labeled = runs(("pi", [9.0]), labels="all", half_labeled=True)
    assert counts(half_labeled) == {"training": 1500, "test": 10_000}
    assert counts(replace(table, answer=answer)) == {"labeled": 200, "unlabeled": 1600, "test": 5}
    assert isinstance(answer, Answer)
