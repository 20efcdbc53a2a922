"""``advdrop report``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from advdrop.lab.cli.options import Report
from advdrop.lab.files import write_text
from advdrop.lab.records.measurement import measurements
from advdrop.lab.records.record import RecordError
from advdrop.lab.report.answer import answers_in, with_answers
from advdrop.lab.report.collect import collect
from advdrop.lab.report.formats import COLUMNS, FORMATS, MARKER
from advdrop.lab.report.studies import studies_of

ENDINGS = {".html": "html", ".md": "markdown", ".csv": "csv", ".json": "json", ".tex": "latex"}
SIGNS = {
    ".html": MARKER,
    ".md": "<!-- made by advdrop -->",
    ".csv": ",".join(COLUMNS),
    ".json": '{\n "results": [',
    ".tex": "% made by advdrop",
    ".svg": '<rect class="paper" width="100%" height="100%"/>',
}
"""A text that every file of this program contains, by the ending of the file."""


def refuse_foreign(path: Path, *endings: str, signs: Mapping[str, str] = SIGNS) -> None:
    """Raise an error if a file to write has none of the endings, or exists and was not written by this program."""
    if path.suffix not in endings:
        raise ValueError(f"{path} does not end in {' or '.join(endings)}; choose another --out")
    if path.exists() and not (path.is_file() and signs[path.suffix].encode() in path.read_bytes()):
        raise ValueError(f"{path} was not written by advdrop and is left as it is; choose another --out")


def write_page(path: Path, text: str) -> None:
    """Write a page, a table or a figure. A file that this program did not write is not replaced."""
    refuse_foreign(path, *SIGNS)
    sign = SIGNS[path.suffix]
    write_text(path, text if sign in text else f"{text}{sign}\n", parents=True)


def run_report(options: Report) -> int:
    """Show results in one file."""
    refuse_foreign(options.out, *ENDINGS)
    results = with_answers(collect(options.results), answers_in(options.results))
    studies = studies_of(found for path in options.results for found in measurements(path))
    if not results and not studies:
        where = ", ".join(map(str, options.results))
        raise RecordError(f"there is no record, no measurement and no finished run in {where}")
    out = options.out
    write_page(out, FORMATS[ENDINGS[out.suffix]](results, studies))
    count = sum(len(found.records) for found in results) + sum(len(study.measurements) for study in studies)
    made = f"{len(results)} table{'' if len(results) == 1 else 's'}"
    if studies:
        made += f" and {len(studies)} stud{'y' if len(studies) == 1 else 'ies'}"
    print(f"written to {out}: {made} from {count} record{'' if count == 1 else 's'}")
    return 0
