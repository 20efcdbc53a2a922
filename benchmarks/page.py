"""Put the tables of the committed records into the pages that show them.

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
import scaling
import search
import step
from advdrop.report.collect import collect
from advdrop.report.formats import markdown
from advdrop.report.studies import measurements, studies_of
from measure import rows_of

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/reproduction.md")

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
}


def filled(text: str, results: Path = ROOT / "results") -> str:
    """The page with all of its tables made anew."""

    def made(found: re.Match[str]) -> str:
        if found[1] == "ledger":
            return f"<!-- ledger -->\n{markdown(collect([results]))}<!-- /ledger -->"
        if found[1] == "studies":
            return f"<!-- studies -->\n{markdown([], studies_of(measurements(results)))}<!-- /studies -->"
        record, table = TABLES[found[1]]
        return f"<!-- {found[1]} -->\n{table(rows_of(results / f'{record}.json'))}<!-- /{found[1]} -->"

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- /\1 -->", made, text, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    arguments = parser.parse_args()
    old = [name for name in PAGES if filled((ROOT / name).read_text()) != (ROOT / name).read_text()]
    if arguments.check and old:
        sys.exit(f"out of date: {', '.join(old)}; run python benchmarks/page.py")
    for name in old:
        (ROOT / name).write_text(filled((ROOT / name).read_text()))
        print(f"wrote {name}")


if __name__ == "__main__":
    main()
