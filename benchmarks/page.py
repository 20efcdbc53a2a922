"""Put the tables of the committed records into the pages that show them, and draw the pictures.

    python benchmarks/page.py [--check]

A page has ``<!-- NAME -->`` before a table and ``<!-- /NAME -->`` behind it; what is between them is made here.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import accuracy
import depth
import engine
import flips
import harm
import scaling
import search
import step
from advdrop.lab.records.measurement import measurements
from advdrop.lab.report.collect import collect
from advdrop.lab.report.diagram import passes
from advdrop.lab.report.formats import main_table, markdown
from advdrop.lab.report.studies import studies_of
from advdrop.lab.report.svg import standalone
from measure import rows_of

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/reproduction.md", "docs/figures.md", "docs/does-it-help.md")
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
    "harm-look": ("harm", lambda rows: harm.few(rows, "look")),
    "harm-choose": ("harm", lambda rows: harm.few(rows, "choose")),
    "harm-all": ("harm", lambda rows: harm.few(rows, "look", labels="all")),
    "harm-data": ("harm", harm.gains),
    "harm-text": ("harm", harm.by_labels),
    "harm-image": ("harm", harm.image_errors),
    "harm-ablation": ("harm", harm.ablation),
}


def filled(text: str, results: Path = ROOT / "results") -> str:
    """The page with new tables."""

    def made(found: re.Match[str]) -> str:
        if found[1] == "ledger":
            return f"<!-- ledger -->\n{markdown(collect([results]))}<!-- /ledger -->"
        if found[1] == "table1":
            [short] = [table for table in collect([results / "table1"]) if table.protocol == "short"]
            return f"<!-- table1 -->\n{main_table(short)}\n<!-- /table1 -->"
        if found[1] == "studies":
            return f"<!-- studies -->\n{markdown([], studies_of(measurements(results)))}<!-- /studies -->"
        record, table = TABLES[found[1]]
        return f"<!-- {found[1]} -->\n{table(rows_of(results / f'{record}.json'))}<!-- /{found[1]} -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", made, text, flags=re.DOTALL)


def images(results: Path = ROOT / "results") -> dict[str, str]:
    """The pictures of the docs that are made from records, and the diagram, by the names of their files."""
    drawn = {"passes.svg": passes()}
    for study in studies_of(measurements(results)):
        first = study.measurements[0]
        for number, figure in enumerate(study.figures):
            name = f"{first.study}-{first.dataset}-{number}.svg"
            drawn[name] = standalone(figure.svg, figure.title, figure.legend)
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
    for path, text in old.items():
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
