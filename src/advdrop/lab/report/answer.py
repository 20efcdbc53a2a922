"""Did the unlabeled images help? The answer in one sentence, and what the page shows with it.

What is compared: the test error of a method that uses unlabeled images with that of ``dropout``, which learns from the
same labels alone. Both have the same network, number of updates, augmentation and seeds, and predict the same test
images. No training step sees a test image. What differs is the whole method: where its terms help with the labeled
images as well, that counts too. The method is the last one of ``advdrop compare --methods`` that uses unlabeled images
and differs from ``dropout`` in nothing else (see ``other_differences``), whatever the errors are, so that nothing is
chosen with the test images. For the interval see ``paired_images`` in ``statistics.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from advdrop.lab.config.config import RunConfig
from advdrop.lab.config.section import Count, NotNegative, Number, Section, Whole
from advdrop.lab.config.terms import METHODS
from advdrop.lab.config.values import first_error
from advdrop.lab.files import read_json
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.deviations import config_in
from advdrop.lab.report.results import LOOSE, Results
from advdrop.lab.report.statistics import Difference, paired
from advdrop.lab.suites.suite import HABITS, MACHINE

FILE = "answer.json"
BASELINE = "dropout"
"""The method that learns from the labels alone."""
OF_THE_METHOD = ("method", "objective.terms", "objective.ramp", "objective.entropy", "objective.updating")
"""The keys of a configuration in which a method and its baseline may differ."""
MOST_EXAMPLES = 12
MOST_CLASSES = 1000
Percent = Annotated[Number, Field(ge=0, le=100)]
Name = Annotated[str, Field(max_length=300)]
Picture = Annotated[str, Field(max_length=100_000, pattern=r"^data:image/png;base64,[A-Za-z0-9+/]+={0,2}$")]


class Changed(Section):
    """A test image whose prediction changed."""

    picture: Picture
    truth: Name
    before: Name = Field(description="the class that was predicted with the labels alone")
    now: Name = Field(description="the class that the method predicts")

    @property
    def right(self) -> bool:
        """Whether the method is right."""
        return self.now == self.truth


class Answer(Section):
    """The content of ``answer.json``, which is in the folder of the runs that were compared."""

    format: Literal["advdrop answer 1"] = "advdrop answer 1"
    method: Name
    baseline: Name
    labeled: Count
    unlabeled: Whole
    test_images: Count
    seeds: Count
    error_percent: Percent = Field(description="of the method, mean over seeds")
    baseline_error_percent: Percent
    difference: Number = Field(description="percentage points; positive if the unlabeled images helped")
    margin: NotNegative = Field(description="half the width of the 95 % interval")
    classes: tuple[Name, ...] = Field(max_length=MOST_CLASSES, description="none if there are more")
    confusion: tuple[tuple[Whole, ...], ...] = Field(description="test images by class and prediction, over all seeds")
    right_now: Whole = Field(0, description="images of the first seed that only the method gets right")
    wrong_now: Whole = Field(0, description="images of the first seed that only the labels alone get right")
    changed: tuple[Changed, ...] = Field((), max_length=MOST_EXAMPLES, description="some of them")
    records: tuple[Name, ...] = Field((), description="the digests of the records of the runs")

    @model_validator(mode="after")
    def _square(self) -> Self:
        if {len(self.confusion), *map(len, self.confusion)} != {len(self.classes)}:
            raise ValueError(f"confusion must be a square of {len(self.classes)} classes")
        return self

    @property
    def text(self) -> str:
        """The answer in one sentence."""
        many, points = f"{self.unlabeled:,} unlabeled examples", Difference(self.difference, self.margin)
        errors = (
            f"{self.error_percent:.1f} % errors with them ({self.method}), {self.baseline_error_percent:.1f} % without "
            f"({self.baseline}), {points_in_words(self.difference, self.margin)}"
        )
        if self.margin <= 100.1 / (self.seeds * self.test_images):  # only what is added for continuity
            verdict = f"The {many} did not change the number of errors"
            errors = f"{self.error_percent:.1f} % errors with them ({self.method}) and without ({self.baseline})"
        elif not points.seen:
            verdict = f"Too few labeled examples to tell whether the {many} help"
        else:
            verdict = f"The {many} {'helped' if self.difference > 0 else 'did harm'}"
        seeds = f"{self.seeds} seeds" if self.seeds > 1 else "one seed, and another one may differ"
        return f"{verdict}: {errors} ({self.labeled:,} labels, {self.test_images:,} test examples, {seeds})."


def points_in_words(difference: float, margin: float) -> str:
    """Return by how many percentage points the error is lower or higher, with half the width of the interval.

    >>> points_in_words(-0.62, 1.3)
    '0.6 ± 1.3 points more'
    >>> points_in_words(0.0, 1.3)
    'a difference of 0.0 ± 1.3 points'
    """
    if f"{abs(difference):.1f}" == "0.0":
        return f"a difference of 0.0 ± {margin:.1f} points"
    return f"{abs(difference):.1f} ± {margin:.1f} points {'fewer' if difference > 0 else 'more'}"


def question(results: Results) -> str:
    """Return the title of a table: the data and what is asked about them, or the title of its suite."""
    if results.suite.key != LOOSE:
        return results.suite.title
    asked = "do the unlabeled examples help?" if _rivals(results) else "which method has the lowest error?"
    return f"{results.suite.title}: {asked}"


def answer_in_words(results: Results) -> str:
    """Return the answer to the question of a table of runs that belong to no suite.

    Without an ``answer.json`` only the errors of the runs are known, and the interval is that of the paired t-test over
    seeds. It is empty if one of the two rows is missing.
    """
    if results.answer is not None:
        return results.answer.text
    if not (rivals := _rivals(results)):
        return ""
    (one, other), errors = rivals, [results.entries[row, "runs"].errors for row in rivals]
    if (found := paired(errors[0], errors[1])) is None:
        return ""
    shared = [[values[seed] for seed in values if seed in errors[1 - side]] for side, values in enumerate(errors)]
    without, given = (fmean(values) for values in shared)
    names, points = results.suite.rows, found.difference
    text = f"{given:.1f} % errors with them ({names[other].name}), {without:.1f} % without ({names[one].name})"
    if points.margin is None:  # one seed, or differences that are all equal
        few = "One run is" if found.n == 1 else f"{found.n} seeds are"
        return f"{few} too few to tell whether the unlabeled examples help: {text}."
    verdict = "helped" if points.mean > 0 else "did harm"
    start = (
        f"The unlabeled examples {verdict}"
        if points.seen
        else "Too few seeds to tell whether the unlabeled examples help"
    )
    return f"{start}: {text}, {points_in_words(points.mean, points.margin)} ({found.n} seeds)."


def other_differences(one: RunConfig, other: RunConfig) -> list[str]:
    """Return the keys in which two runs of a seed differ apart from their method. With any, they give no answer."""
    ignored = (*OF_THE_METHOD, *MACHINE, *HABITS, "seed")
    return [key for key in one.differences(other) if not key.startswith(ignored)]


def _rivals(results: Results) -> tuple[str, str] | None:
    """Return the row of the labels alone and the last row that uses unlabeled images and is like it, if any."""
    if results.suite.key != LOOSE or not counts(results).get("unlabeled", 1):
        return None
    rows = {key: results.suite.rows[key].method or "" for key in results.measured}
    configs = {key: config_in(results.of_row(key)[0]) for key in rows}  # they differ in their seeds alone
    for other, method in reversed(rows.items()):
        if method == BASELINE or not any(METHODS[term].semi_supervised for term in method.split("+")):
            continue
        if not configs[other].training.unlabeled:  # its terms had the labeled images
            continue
        alike = [key for key in rows if rows[key] == BASELINE and not other_differences(configs[key], configs[other])]
        if len(alike) == 1:
            return alike[0], other
    return None


def counts(results: Results) -> dict[str, int]:
    """Return the numbers of labeled, unlabeled and test images, as far as the records of runs of no suite have them."""
    if results.suite.key != LOOSE or not results.records:
        return {}
    if (found := results.answer) is not None:
        return {"labeled": found.labeled, "unlabeled": found.unlabeled, "test": found.test_images}
    record = results.records[0]
    if isinstance(record.labels, str):  # the record of half-labeled data does not know how many labels there were
        unlabeled = {} if record.half_labeled else {"unlabeled": 0}
        return {"training": record.examples, **unlabeled, "test": record.test_images}
    left = record.examples - record.labels - config_in(record).data.validation
    return {"labeled": record.labels, "unlabeled": left, "test": record.test_images}


def read_answer(path: Path) -> Answer:
    """Read a file. One that contradicts itself is an error."""
    try:
        return Answer.model_validate(read_json(path))
    except ValidationError as error:
        raise RecordError(f"{path} is not the answer of a comparison: {first_error(error)}") from None
    except ValueError as error:
        raise RecordError(str(error)) from None


def answers_in(paths: Iterable[Path]) -> list[Answer]:
    """Return the answers in some folders."""
    return [read_answer(file) for path in paths if path.is_dir() for file in sorted(path.rglob(FILE))]


def with_answers(results: Sequence[Results], answers: Sequence[Answer]) -> list[Results]:
    """Give each table the answer that was computed from its runs, the one with the most seeds if there are several."""
    found = []
    for table in results:
        there = {record.digest for record in table.records}
        own = [answer for answer in answers if answer.records and there.issuperset(answer.records)]
        found.append(replace(table, answer=max(own, key=lambda answer: answer.seeds, default=None)))
    return found
