"""A table as Markdown, LaTeX and CSV. Each renderer escapes the text for its format.

Plain text for a terminal is in ``text_table.py``. The renderer for HTML is the macro ``grid`` of ``page.html``.
"""

from __future__ import annotations

import csv
import io
import re

from advdrop.lab.report import text_table
from advdrop.lab.report.sections import Cell, Table
from advdrop.lab.report.text_table import is_formula, line


def markdown(table: Table) -> str:
    """Render a table as Markdown, with columns as wide as they need to be."""
    return text_table.table([plain(name) for name in table.head], [list(map(_marked, row)) for row in table.cells])


def _marked(cell: Cell) -> str:
    if cell.kind == "code":
        return f"`{line(cell.text).replace('`', '').replace('|', '')}`"
    return f"**{plain(cell.text)}**" if cell.kind == "bold" else plain(cell.text)


def plain(text: str) -> str:
    r"""Escape a text for Markdown: one line, no markup, no end of a cell.

    >>> plain("a|b *c* <i> l_AT _d_ x&y &lt;")
    'a\\|b \\*c\\* &lt;i> l_AT \\_d\\_ x&y &amp;lt;'
    """
    text = re.sub(r"[\\`*\[\]|]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", line(text))
    return re.sub(r"&(?=#?\w+;)", "&amp;", text).replace("<", "&lt;")


def latex(table: Table) -> str:
    """Render a table as a tabular, bold where the paper is and where a mean is the lowest."""
    rows = [[_set(cell) for cell in row] for row in table.cells]
    head, *body = (" & ".join(row) + r" \\" for row in ([escaped(name) for name in table.head], *rows))
    start = f"\\begin{{tabular}}{{l{'r' * (len(table.head) - 1)}}}"
    return "\n".join([start, r"\hline", head, r"\hline", *body, r"\hline", r"\end{tabular}"])


def _set(cell: Cell) -> str:
    return rf"\textbf{{{escaped(cell.text)}}}" if cell.kind in ("bold", "best") else escaped(cell.text)


LATEX = {letter: f"\\{letter}" for letter in "&%_#${}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "[": "{[}",  # an option of the line break before it otherwise
    "*": "{*}",
    "±": r"$\pm$",
    "–": "--",
    "Π": r"$\Pi$",
    "δ": r"$\delta$",
    "λ": r"$\lambda$",
    "‖": r"$\|$",
    "₁": r"$_1$",
    "₂": r"$_2$",
}


def escaped(text: str) -> str:
    r"""Escape a text for LaTeX.

    >>> escaped("Π model, 5 %")
    '$\\Pi$ model, 5 \\%'
    """
    return "".join(LATEX.get(letter, letter) for letter in line(text))


def comma_separated(table: Table) -> str:
    """Render a table as CSV, without HTML tags; a quote is put before what a spreadsheet would take for a formula."""
    text = io.StringIO()
    rows = [[_harmless(cell.text) for cell in row] for row in table.cells]
    csv.writer(text, lineterminator="\n").writerows([table.head, *rows])
    return text.getvalue()


def _harmless(text: str) -> str:
    text = line(text).replace("<", "&lt;")
    return f"'{text}" if is_formula(text) else text
