"""The page: one file, nothing loaded from anywhere, every text escaped."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import advdrop
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Record
from advdrop.lab.report.collect import Results
from advdrop.lab.report.figures import figures
from advdrop.lab.report.studies import Study
from advdrop.lab.report.svg import STYLE
from advdrop.lab.report.verdicts import gaps, p_value, verdicts

TEMPLATE = Path(__file__).with_name("page.html")


def page(results: Sequence[Results], studies: Sequence[Study] = (), title: str = "Adversarial dropout: results") -> str:
    """The whole page: the tables, then the studies."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        results=results,
        studies=studies,
        style=STYLE.read_text(encoding="utf-8"),
        count=sum(len(table.records) for table in results) + sum(len(study.measurements) for study in studies),
        version=advdrop.__version__,
        anchor=anchor,
        details=details,
        drawn=figures,
        gaps=gaps,
        p=p_value,
        verdicts=verdicts,
    )


def anchor(record: Record | Measurement) -> str:
    """The name of the place of a record in the page."""
    return re.sub(r"[^\w.+-]+", "-", f"record-{record.name}-{record.digest[:8]}")


def details(record: Record | Measurement) -> str:
    """A record as its file has it; but a picture is only told to be there."""
    if isinstance(record, Measurement):
        cut = f"({len(record.picture)} characters)" if record.picture else None
        return record.model_copy(update={"picture": cut}).dump()
    return record.dump() if record.digest else json.dumps(record.model_dump(mode="json"), indent=1)
