"""``advdrop report``."""

from __future__ import annotations

from pathlib import Path

from advdrop.cli.options import Report
from advdrop.files import write_text
from advdrop.report.collect import collect
from advdrop.report.formats import FORMATS

ENDINGS = {".html": "html", ".htm": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".tex": "latex"}


def run(options: Report) -> int:
    """Show results in one file."""
    form = options.format or ENDINGS.get(options.out.suffix if options.out else ".html")
    if form is None:
        raise ValueError(f"{options.out} has none of the endings {', '.join(ENDINGS)}; name a --format")
    results = collect(options.results)
    if options.out is None and form != "html":
        print(FORMATS[form](results), end="")
        return 0
    out = options.out or Path("report.html")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_text(out, FORMATS[form](results))
    count = sum(len(found.records) for found in results)
    print(f"written to {out}: {len(results)} table{'s' if len(results) > 1 else ''} from {count} records")
    return 0
