"""Put the tables of the committed records into the pages that show them, and draw the figures.

    python benchmarks/page.py [--check]

A page has ``<!-- NAME -->`` before a table and ``<!-- /NAME -->`` after it. Everything between them is made here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accuracy
import chaos
import choosing
import depth
import engine
import flips
import full_size
import harm
import scaling
import search
import step
import text
from advdrop.lab.records.measurement import measurements
from advdrop.lab.report.charts import Figure, standalone
from advdrop.lab.report.collect import ORDER, collect
from advdrop.lab.report.figures import overview, sensitivities
from advdrop.lab.report.formats import markdown
from advdrop.lab.report.sections import in_words, orders
from advdrop.lab.report.studies import studies_of
from advdrop.lab.report.tables import plain
from advdrop.lab.report.text_table import table as text_table
from advdrop.lab.report.verdict import seed_lines, verdict_lines
from advdrop.lab.suites.suite import Key, Suite
from choosing import table1
from measure import rows_of

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "docs/performance.md",
    "docs/reproduction.md",
    "docs/figures.md",
    "docs/does-it-help.md",
    "docs/choosing.md",
    "docs/gallery.md",
    "docs/reliability.md",
    "docs/text.md",
)
IMAGES = ROOT / "docs/images"

Rows = list[dict[str, Any]]
TABLES: dict[str, tuple[str, Callable[[Rows], str]]] = {
    "step": ("step", step.table),
    "step-whole": ("step", step.whole_table),
    "search": ("search", search.table),
    "engine": ("engine", engine.table),
    "scaling": ("scaling", scaling.table),
    "depth-measured": ("depth", lambda rows: depth.table(rows, "measured")),
    "depth-computed": ("depth", lambda rows: depth.table(rows, "computed")),
    "accuracy": ("accuracy", accuracy.table),
    "flips": ("flips", flips.table),
    "flips-long": ("flips-long", flips.table),
    "full-size": ("full-size", full_size.table),
    "chaos": ("chaos", chaos.table),
    "harm-look": ("harm", lambda rows: harm.few(rows, "look")),
    "harm-choose": ("harm", lambda rows: harm.few(rows, "choose")),
    "harm-all": ("harm", harm.all_labels),
    "harm-image": ("harm", harm.image_errors),
    "harm-image-flips": ("harm", lambda rows: harm.image_errors(rows, ("no flips", harm.OURS))),
    "harm-ablation": ("harm", harm.ablation),
    "harm-data": ("harm", harm.gains),
    "harm-line": ("harm", harm.in_a_line),
    "harm-text": ("harm", harm.by_labels),
    "text-cost": ("text-cost", text.cost_table),
    "text-look": ("text", lambda rows: text.accuracies(rows, text.LOOK)),
    "text-look-tests": ("text", lambda rows: text.tests(rows, text.LOOK)),
    "text-choose": ("text", lambda rows: text.accuracies(rows, text.CHOOSE)),
    "text-choose-tests": ("text", lambda rows: text.tests(rows, text.CHOOSE)),
    "text-settings": ("text", text.settings),
}


def in_short(results: Path) -> str:
    """Return the answer: Table 1 (long) seed by seed, in words and beside the paper; the order of rows elsewhere."""
    table = table1(results, "long")
    column = table.columns[0]
    seeds = seed_lines(table, column)
    assert seeds is not None
    ordered = [found for found in collect([results]) if found.only_order and found.orders]
    parts = [
        "![Each seed is a line between the errors of two methods, for each pair of methods that is compared.]"
        f"(images/{table.name}-seeds.svg)",
        f"*{seeds.note}*",
        " ".join(plain(sentence) for sentence in in_words(table)),
        f"The comparisons with {table.suite.columns[column].name} (protocol `long`, test errors in percent, p after "
        "Holm's correction, and the seeds that show a difference of 0.05 with a probability of 80 %):",
        "\n".join(f"- {plain(line)}" for line in verdict_lines(table, column)),
        f"![Test errors of each method in the paper and here: mean and standard deviation.](images/{table.name}.svg)",
        "The order of the methods in the scaled-down tables (τ is 1 for the same order and -1 for the reverse):",
        "\n".join(
            f"- {found.suite.title.split(':')[0]} (`{found.protocol}`), {plain(line)}."
            for found in ordered
            for line in orders(found)
        ),
    ]
    return "\n\n".join(parts) + "\n"


def beside_the_paper(results: Path) -> str:
    """Return Table 1: the paper's errors beside ours, with a column for each protocol that was run."""
    protocols = {name: table1(results, name) for name in ("long", "short")}
    suite = protocols["short"].suite
    head, rows = ["Method"], [[row.name] for row in suite.rows.values()]
    for column, about in suite.columns.items():
        run = {name: table for name, table in protocols.items() if column in table.columns}
        head += [f"{about.name}: paper", *(part for name in run for part in (f"here, {name}", "n"))]
        for row, cells in zip(suite.rows, rows, strict=True):
            cells.append(str(suite.rows[row].paper.get(column, "–")))
            for entry in (table.entries[row, column] for table in run.values()):
                cells += [entry.summary.text(), str(len(entry.records))] if entry.summary else ["not run", ""]
    return text_table(head, rows) + "\n"


UNUSED = dict.fromkeys(("table2", "table-d1", "table-d2"), ("short",))
"""Protocols for a first look. Another protocol of the table is for records."""


def coverage(results: Path) -> str:
    """Return how much of each table was run: cells with a record, and runs, of those that a protocol has."""
    made = {(found.suite.key, found.protocol): found for found in collect([results])}
    lines = []
    for suite in (Suite.load(name) for name in ORDER):
        for protocol in (name for name in suite.protocols if name not in ("paper", *UNUSED.get(suite.key, ()))):
            wanted = set(suite.cells(protocol))
            found = made.get((suite.key, protocol))
            entries = {} if found is None else found.entries
            run = {Key(column, row, seed) for (row, column), entry in entries.items() for seed in entry.errors} & wanted
            cells = [len({(key.row, key.column) for key in keys}) for keys in (run, wanted)]
            counts = [f"{cells[0]} of {cells[1]}", f"{len(run)} of {len(wanted)}"]
            lines.append([suite.title.split(":")[0], f"`{protocol}`", *counts])
    return text_table(["table", "protocol", "cells with a run", "runs"], lines) + "\n"


def sensitivity(results: Path) -> dict[str, Figure]:
    """Return the charts of the error against each setting, by the names of their files."""
    return {
        f"{table.name}-{number}.svg": figure
        for table in collect([results])
        for number, figure in enumerate(sensitivities(table))
    }


def settings_shown(results: Path, below: str = "") -> str:
    """Return the charts of the error against each setting, for a page, with a text ``below`` each."""
    shown = [f"![{figure.title}.](images/{name})" for name, figure in sensitivity(results).items()]
    return "\n\n".join(image + below for image in shown) + "\n"


MADE: dict[str, Callable[[Path], str]] = {
    "answer": in_short,
    "choosing": choosing.decisions,
    "sensitivity": settings_shown,
    "sensitivity-gallery": lambda results: settings_shown(results, "\n\nVAdD (KL): `advdrop reproduce sensitivity`."),
    "coverage": coverage,
    "table1": beside_the_paper,
    "ledger": lambda results: markdown(collect([results])),
    "studies": lambda results: markdown([], studies_of(measurements(results))),
}


def filled(text: str, results: Path = ROOT / "results") -> str:
    """Return a page with new tables."""

    def made(found: re.Match[str]) -> str:
        name = found[1]
        if name in MADE:
            return f"<!-- {name} -->\n{MADE[name](results)}<!-- /{name} -->"
        record, table = TABLES[name]
        return f"<!-- {name} -->\n{table(rows_of(results / f'{record}.json'))}<!-- /{name} -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", made, text, flags=re.DOTALL)


def images(results: Path = ROOT / "results") -> dict[str, str]:
    """Return the figures of the docs that are made from records, by the names of their files."""
    table = table1(results, "long")
    drawn = {f"{table.name}.svg": standalone(overview(table, table.columns[0]))}
    if seeds := seed_lines(table, table.columns[0]):
        drawn[f"{table.name}-seeds.svg"] = standalone(seeds)
    drawn |= {name: standalone(figure) for name, figure in sensitivity(results).items()}
    for study in studies_of(measurements(results)):
        first = study.measurements[0]
        for number, figure in enumerate(study.figures):
            drawn[f"{first.study}-{first.dataset}-{number}.svg"] = standalone(figure)
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    arguments = parser.parse_args()
    made = {ROOT / name: filled((ROOT / name).read_text()) for name in PAGES}
    made |= {IMAGES / name: text for name, text in images().items()}
    old = {path: text for path, text in made.items() if not path.is_file() or path.read_text() != text}
    if arguments.check and old:
        names = ", ".join(str(path.relative_to(ROOT)) for path in old)
        sys.exit(f"out of date: {names}; run python benchmarks/page.py")
    IMAGES.mkdir(exist_ok=True)
    for path, made_text in old.items():
        path.write_text(made_text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
