"""The paper's figures and its theorem as sections of the page, made from measurements and from ``studies.yaml``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.charts import Figure
from advdrop.lab.report.commands import shell
from advdrop.lab.report.sections import Section, Table
from advdrop.lab.report.statistics import Summary, holm, judged, numbers, paired
from advdrop.lab.report.study_figures import feature_figures, histogram_figures, linearized_figure, path_figures

WORDS: Mapping[str, Any] = yaml.safe_load(Path(__file__).with_name("studies.yaml").read_text(encoding="utf-8"))
VERDICTS = {"lower": "holds", "higher": "the other way around", "unknown": "not known"}
SIMILAR = 1.1
"""Reconstruction errors count as similar if the largest is at most this many times the smallest."""
ZERO = 1e-3
"""A coefficient of standardized features counts as zero below this."""
Rows = Mapping[str, Sequence[Measurement]]
"""The measurements of each row, by seed."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, whether it holds here, and the numbers behind the verdict."""

    text: str
    verdict: str  # one of VERDICTS, or "does not hold"
    numbers: str

    def __str__(self) -> str:
        """Return a line of a list."""
        return f"{self.text}: {self.verdict} ({self.numbers})"


@dataclass(frozen=True)
class Study:
    """A section of the page: a table, notes to read it, the paper's claims, figures, and the commands that make it."""

    title: str
    about: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    claims: Sequence[Claim]
    figures: Sequence[Figure]
    commands: Sequence[str]
    measurements: Sequence[Measurement] = field(repr=False)


def study_sections(study: Study) -> list[Section]:
    """Return the parts of a study."""
    claims = [[claim.text, claim.verdict, claim.numbers] for claim in study.claims]
    found = [Section("", Table(study.head, study.rows))]
    found += [Section("The paper's claims", Table(["claim", "here", "numbers"], claims))] if claims else []
    return [*found, Section("Run it again", commands=study.commands)]


def studies_of(found: Iterable[Measurement]) -> list[Study]:
    """Make a section for each study, data set and settings. Copies of a measurement count once."""
    makers = {"autoencoder": autoencoders, "linear-regression": theorem}
    groups: dict[tuple[str, str], list[list[Measurement]]] = defaultdict(list)
    for measurement in found:
        kind = measurement.study
        if kind not in makers:
            raise RecordError(f"there are measurements of a study {kind!r}, which is unknown; there are {list(makers)}")
        _put(groups[kind, measurement.dataset], measurement)
    made = []
    for (kind, dataset), parts in sorted(groups.items()):
        for part, name in zip(parts, _names(parts), strict=True):
            try:
                study = makers[kind](dataset, sorted(part, key=lambda one: one.seed))
            except Exception as error:  # a number that is missing, of another kind or too large
                reason = f"{type(error).__name__}: {error}"
                raise RecordError(f"no study can be made of the measurement {part[0].name} ({reason})") from error
            made.append(replace(study, title=f"{study.title}{name}"))
    return made


def _put(parts: list[list[Measurement]], new: Measurement) -> None:
    """Add a measurement to the part with its setup, unless a copy is there. Other numbers start another part."""
    for part in parts:
        if _setup(part[0]) == _setup(new):
            there = [old for old in part if (old.row, old.seed) == (new.row, new.seed)]
            if not there:
                part.append(new)
            if not there or there[0].same(new):
                return
    parts.append([new])


def _setup(measurement: Measurement) -> dict[str, Any]:
    """Return what the measurements of a section share. Rows differ in p and target; the theorem has one measurement."""
    own = {"seed": measurement.seed} if measurement.study == "linear-regression" else {}
    return own | {key: value for key, value in measurement.settings.items() if key not in ("p", "target")}


def _names(parts: Sequence[Sequence[Measurement]]) -> list[str]:
    """Name the parts of a study by what differs in their setup, or else by when they were finished."""
    if len(parts) == 1:
        return [""]
    setups = [_setup(part[0]) for part in parts]
    keys = sorted({key for setup in setups for key in setup if any(setup[key] != other.get(key) for other in setups)})
    names = [", ".join(f"{key} {setup.get(key)}" for key in keys) for setup in setups]
    finished = [f"finished {part[0].finished}" for part in parts]
    return [f" ({name})" for name in (names if len(set(names)) == len(parts) else finished)]


def autoencoders(dataset: str, found: Sequence[Measurement]) -> Study:
    """Make the section of Figures 2 and 3 for one data set."""
    words, settings = WORDS["autoencoder"], found[0].settings
    names, columns = words["rows"], words["columns"]
    rows = {row: [each for each in found if each.row == row] for row in names}
    rows = {row: measured for row, measured in rows.items() if measured}
    claims = [
        (f"{text} with {names[row]} than with {names[other]}", number, row, other)
        for row in ("adversarial", "virtual")
        for text, number, other in words["claims"]
    ]
    options = ["--columns", dataset] if dataset != "mnist5k" else []
    options += ["--only", ",".join(rows)] if rows.keys() != names.keys() else []
    options += ["--seeds", str(1 + max(each.seed for each in found))]
    table = []
    for row, runs in rows.items():
        summaries = [(Summary.of([each.numbers[key] for each in runs]), digits) for key, (_, digits) in columns.items()]
        table.append([names[row], *(summary.text(digits) for summary, digits in summaries), str(len(runs))])
    return Study(
        title=words["title"].format(dataset=dataset),
        about=words["about"].format(dataset=dataset, **settings),
        head=["model", *(name for name, _ in columns.values()), "seeds"],
        rows=table,
        notes=[premise(rows, dict.fromkeys((one, other) for _, _, one, other in claims))],
        claims=lower(rows, claims),
        figures=[*feature_figures(rows, names, words["features"]), *histogram_figures(rows, names)],
        commands=[shell(["advdrop", "reproduce", name, *options]) for name in ("figure2", "figure3")],
        measurements=[each for measured in rows.values() for each in measured],
    )


def lower(rows: Rows, claims: Iterable[tuple[str, str, str, str]]) -> list[Claim]:
    """Judge claims of the form "this number of one row is below that of another", seed by seed.

    A claim is its text, the number, the row that should have less of it, and the other row.
    """
    found = []
    for text, number, one, other in claims:
        values = [{each.seed: each.numbers[number] for each in rows.get(row, ())} for row in (one, other)]
        if (pair := paired(*values)) is not None:
            found.append((text, pair))
    corrected = holm([pair.t_p for _, pair in found])
    return [
        Claim(text, VERDICTS[judged(pair, p)], numbers(pair, p, ".3g", ".2g"))
        for (text, pair), p in zip(found, corrected, strict=True)
    ]


def premise(rows: Rows, compared: Iterable[tuple[str, str]]) -> str:
    """Say whether the models reconstruct equally well, which the paper's comparison requires."""
    words = WORDS["autoencoder"]
    named = {row: words["rows"][row] for row in rows}
    errors = {row: Summary.of([each.numbers["reconstruction_error"] for each in rows[row]]).mean for row in rows}
    low, high = min(errors, key=errors.__getitem__), max(errors, key=errors.__getitem__)
    ratio = errors[high] / errors[low]
    shared = [(one, other) for one, other in compared if one in errors and other in errors]
    pairs = [f"{named[one]} {errors[one] / errors[other]:.2f} times that of {named[other]}" for one, other in shared]
    kind = "alone" if len(errors) < 2 else "similar" if ratio <= SIMILAR else "void"
    return str(words[kind].format(ratio=ratio, low=named[low], high=named[high], pairs=", ".join(pairs)))


def theorem(dataset: str, found: Sequence[Measurement]) -> Study:
    """Make the section of the theorem for one data set."""
    (measurement,) = found
    words, known, series = WORDS["linear-regression"], measurement.numbers, measurement.series
    claims = []
    for key, text in words["identities"].items():
        verdict = "holds" if known[key] < 1e-9 else "does not hold"
        claims.append(Claim(text, verdict, words["deviation"].format(deviation=known[key])))
    missed, k = max(zip(series["linearized/missed_percent"], series["linearized/k"], strict=True), key=lambda at: at[0])
    verdict = "holds" if missed == 0 else "does not hold"
    claims.append(Claim(words["argmax"], verdict, words["missed"].format(missed=missed, k=k)))
    return Study(
        title=words["title"].format(dataset=dataset),
        about=words["about"].format(dataset=dataset, converged=known["fits"] - known["not_converged"], **known),
        head=words["head"],
        rows=coefficient_rows(series, words["methods"]),
        notes=[words["note"]],
        claims=claims,
        figures=[*path_figures(series, words["methods"]), linearized_figure(series)],
        commands=["advdrop reproduce theory"],
        measurements=[measurement],
    )


def coefficient_rows(series: Mapping[str, Sequence[float]], methods: Mapping[str, Sequence[str]]) -> list[list[str]]:
    """Return least squares, each method where it has half of its L1 norm, and every rank that has coefficients left."""
    import numpy as np

    paths = {}
    for method in methods:
        features = [key for key in series if key.startswith(f"{method}/") and key != f"{method}/parameter"]
        paths[method] = np.array([series[key] for key in features]).T
    least = paths["training"][0]
    chosen = [("least squares", "", least)]
    for method in ("ridge", "lasso", "training"):
        norms = np.abs(paths[method]).sum(axis=1)
        nearest = int(np.abs(norms - np.abs(least).sum() / 2).argmin())
        chosen.append((methods[method][0], f"{series[f'{method}/parameter'][nearest]:.3g}", paths[method][nearest]))
    for k, w in zip(series["dropout/parameter"][1:], paths["dropout"][1:], strict=True):
        if np.abs(w).max() >= ZERO:
            chosen.append((methods["dropout"][0], f"{k:.3g}", w))
    rows = []
    for name, parameter, w in chosen:
        sizes = [np.abs(w).sum(), np.linalg.norm(w), np.abs(w).max()]
        zeros = f"{(np.abs(w) < ZERO).sum()} of {len(w)}"
        rows.append([name, parameter, *(f"{size:.3f}" for size in sizes), zeros])
    return rows
