"""The page: one file, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import advdrop
from advdrop.report.collect import Results
from advdrop.report.figures import figures
from advdrop.report.records import Record
from advdrop.report.verdicts import gaps, p_value, verdicts

TEMPLATE = Path(__file__).with_name("page.html")


def page(results: Sequence[Results], title: str = "Adversarial dropout: results") -> str:
    """The whole page."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        results=results,
        count=sum(len(table.records) for table in results),
        version=advdrop.__version__,
        anchor=anchor,
        details=details,
        drawn=figures,
        gaps=gaps,
        p=p_value,
        verdicts=verdicts,
    )


def anchor(record: Record) -> str:
    """The name of the place of a record in the page."""
    return re.sub(r"[^\w.+-]+", "-", f"record-{record.name}-{record.digest[:8]}")


def details(record: Record) -> str:
    """A record as its file has it."""
    return record.dump() if record.digest else json.dumps(record.model_dump(mode="json"), indent=1)
