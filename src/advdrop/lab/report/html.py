"""The page: one file that loads nothing, with every text escaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import advdrop
from advdrop.lab.records.measurement import Measurement
from advdrop.lab.records.record import Record
from advdrop.lab.report.charts import STYLE
from advdrop.lab.report.collect import Results
from advdrop.lab.report.figures import figures
from advdrop.lab.report.sections import configuration_table, sections, study_sections
from advdrop.lab.report.studies import Study

TEMPLATE = Path(__file__).with_name("page.html")


def page(results: Sequence[Results], studies: Sequence[Study] = (), title: str = "Adversarial dropout: results") -> str:
    """Return the whole page: the tables, then the studies."""
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        title=title,
        results=results,
        studies=studies,
        style=STYLE.read_text(encoding="utf-8"),
        count=sum(len(table.records) for table in results) + sum(len(study.measurements) for study in studies),
        version=advdrop.__version__,
        anchor=anchor,
        details=details,
        configuration=configuration_table,
        figures=figures,
        sections=sections,
        study_sections=study_sections,
    )


def anchor(record: Record | Measurement) -> str:
    """Return the id of a record in the page."""
    return re.sub(r"[^\w.+-]+", "-", f"record-{record.name}-{record.digest[:8]}")


def details(record: Record | Measurement) -> str:
    """Return a record as in its file, without the pixels of a picture."""
    if isinstance(record, Measurement) and record.picture:
        record = record.model_copy(update={"picture": f"({len(record.picture)} characters)"})
    return record.dump()
