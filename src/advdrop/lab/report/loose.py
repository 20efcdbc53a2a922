"""The tables of runs that belong to no suite: one for each data set and length, with a row for each method."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from advdrop.lab.records.record import Record
from advdrop.lab.report.costs import terms_of
from advdrop.lab.report.deviations import config_in, flat
from advdrop.lab.report.results import LOOSE, Results, table_of
from advdrop.lab.suites.suite import HABITS, MACHINE, Column, Protocol, Row, Suite


def loose_table(records: Sequence[Record], lengths: bool, contents: bool) -> Results:
    """Make a table of runs of one data set and one length that belong to no suite, with a row for each method.

    Args:
        records: the runs.
        lengths: whether there are runs of other lengths, so that the title says the length.
        contents: whether there are runs on other data of that name, so that the title has the start of their checksum.
    """
    first, labels = records[0], _labels(records)
    title = f"{Path(first.dataset).stem}, {first.labels} labels"
    title += f", {first.updates:,} updates" if lengths else ""
    title += f", data {first.dataset_checksum[:8]}" if contents else ""
    known: dict[str, str] = {}  # the key of each label
    for label in labels:
        key = re.sub(r"[^\w.+-]+", "-", label)  # other labels may have become the same
        known.setdefault(label, f"{key}-{len(known)}" if key in known.values() else key)
    keys = [known[label] for label in labels]
    methods = {key: record.method for key, record in zip(keys, records, strict=True)}
    rivals = [key for rival in ("pi", "vat", "dropout") for key, method in methods.items() if method == rival]
    ours = [key for key, method in methods.items() if any(term.adversarial_dropout for term in terms_of(method))]
    length = {"training": {"updates": first.updates}}
    suite = Suite(
        key=LOOSE,
        title=title,
        about="",
        source="ours",
        repeats=1,
        columns={"runs": Column(name=title, dataset=first.dataset, labels=first.labels)},
        rows={key: Row(name=label, method=methods[key]) for key, label in zip(keys, labels, strict=True)},
        compare=tuple((one, other) for one in ours for other in rivals),
        protocols={"own": Protocol(about=f"{first.updates} updates", seeds=1, settings=length)},
    )
    return table_of(suite, "own", first.preset, [((key, "runs"), r) for key, r in zip(keys, records, strict=True)])


def _labels(records: Sequence[Record]) -> list[str]:
    """Name runs by their method, its preset if it has several, and what else differs between runs of one preset.

    A run that was repeated with other errors, for example on another machine, is named by when it was finished.
    """
    configs = [flat(config_in(record)) for record in records]
    labels: list[str] = []
    for mine, record in zip(configs, records, strict=True):
        method = [each for each in configs if each["method"] == mine["method"]]
        alike = [each for each in method if each["preset"] == mine["preset"]]
        keys = [key for key in mine if key != "seed" and any(each.get(key) != mine[key] for each in alike)]
        keys = [key for key in keys if key not in MACHINE + HABITS]
        shown = [f"{key}={mine[key]}" for key in (["preset"] if len(alike) < len(method) else []) + keys]
        label = ", ".join([mine["method"], *shown])
        others = [r for r, name in zip(records, labels, strict=False) if name == label and r.seed == record.seed]
        labels.append(label if all(map(record.same, others)) else f"{label}, finished {record.finished}")
    return labels
