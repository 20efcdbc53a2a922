"""``advdrop report``."""

from __future__ import annotations

from pathlib import Path

from advdrop.lab.cli.options import Report
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import measurements
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.answer import answers_in, with_answers
from advdrop.lab.report.collect import collect
from advdrop.lab.report.formats import FORMATS, MARKER
from advdrop.lab.report.studies import studies_of

ENDINGS = {".html": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".tex": "latex"}


def refuse_foreign(page: Path) -> None:
    """Raise an error if a file is a page that this program did not write."""
    if page.suffix == ".html" and page.is_file() and MARKER.encode() not in page.read_bytes():
        raise ValueError(f"{page} is not a page of advdrop and is left as it is; choose another --out")


def run_report(options: Report) -> int:
    """Show results in one file."""
    if options.out.suffix not in ENDINGS:
        raise ValueError(f"{options.out} has none of the endings {', '.join(ENDINGS)}")
    results = with_answers(collect(options.results), answers_in(options.results))
    studies = studies_of(found for path in options.results for found in measurements(path))
    if not results and not studies:
        where = ", ".join(map(str, options.results))
        raise RecordError(f"there is no record, no measurement and no finished run in {where}")
    out = options.out
    refuse_foreign(out)
    write_text(out, FORMATS[ENDINGS[out.suffix]](results, studies), parents=True)
    count = sum(len(found.records) for found in results) + sum(len(study.measurements) for study in studies)
    made = f"{len(results)} table{'' if len(results) == 1 else 's'}"
    if studies:
        made += f" and {len(studies)} stud{'y' if len(studies) == 1 else 'ies'}"
    print(f"written to {out}: {made} from {count} record{'' if count == 1 else 's'}")
    return 0
