"""A table in plain text, which is also Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from unicodedata import category

UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""The categories of Unicode for control characters, marks of direction, broken text and other ends of lines."""


def visible(text: str) -> str:
    r"""Return a text without characters that change what others look like in a terminal or a page.

    >>> visible("a\x1b[2J \u202eb")
    'a[2J b'
    """
    return "".join(letter for letter in text if letter == "\n" or category(letter) not in UNSEEN)


def line(text: str) -> str:
    """Return what is visible of a text on one line."""
    return visible(" ".join(text.split()))


def is_formula(text: str) -> bool:
    """Return True if a spreadsheet would take a text for a formula, and it is not a number.

    >>> is_formula("=1+1"), is_formula("-1.5e3")
    (True, False)
    """
    number = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, flags=re.IGNORECASE)
    return text.startswith(tuple("=+-@\t\r＝＋－＠")) and number is None


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table with columns as wide as they need to be.

    >>> print(table(["method", "error"], [["pi", "5.10"]]))
    | method | error |
    |--------|-------|
    | pi     | 5.10  |
    """
    head, *rows = ([line(cell) for cell in cells] for cells in (head, *rows))
    widths = [max(len(cells[column]) for cells in (head, *rows)) for column in range(len(head))]

    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    return "\n".join([row(head), "|" + "|".join("-" * (width + 2) for width in widths) + "|", *map(row, rows)])
