"""Each renderer escapes for its own format: a hostile name comes out harmless and whole."""

import csv
import html
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from advdrop.lab.report import text_table
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import FORMATS
from advdrop.lab.report.sections import Cell, Table
from advdrop.lab.report.tables import comma_separated, escaped, latex, markdown
from ledger import hostile, loose_of, run_of

NAMES = [
    "<script>alert(1)</script>",
    "a|b",
    "50%_x&y",
    "*bold* _em_ `code`",
    "[x](javascript:alert(1))",
    "&lt;b&gt; &#60;",
    "\\input{x} $x$ #1 ~^",
    "=1+1",
    "[1ex]",
    "two\n\nlines",
    "\\\\ \\hline",
    "end``` $$",
    "1. a",
    "Ünïcödé 数字",
    "long " * 800,
]
UNSEEN = ["\u202egnp.exe", "\u200f\u2066x", "\x1b[2J\x1b]0;x\x07", "\x00\x08", "\ufeffx", "\x7f\x9b1m", "a\u2028b\x85c"]
"""Characters that change how others look, or that a terminal obeys."""


def table(name):
    return Table(["name", "n"], [[name, "1"], ["other", Cell("2.00", "bold")]])


def one_line(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_markdown_shows_the_name_and_nothing_else(name):
    page = MarkdownIt().enable("table").render(markdown(table(name)))
    cells = re.findall(r"<td>(.*?)</td>", page)
    assert [html.unescape(cell) for cell in cells] == [one_line(name), "1", "other", "<strong>2.00</strong>"]
    assert not re.search("<(script|a|em|code|b)[ >]", page)


@given(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1))
def test_markdown_shows_any_name(name):
    page = MarkdownIt().enable("table").render(markdown(table(f"x {name}")))
    assert html.unescape(re.findall(r"<td>(.*?)</td>", page)[0]) == f"x {name}"


@pytest.mark.parametrize("name", NAMES)
def test_latex_keeps_its_cells(name):
    lines = latex(table(name)).splitlines()
    assert len(lines) == 8
    assert lines[4] == f"{escaped(name)} & 1 \\\\"
    assert len(re.findall(r"(?<!\\)&", lines[4])) == 1
    assert not re.search(r"(?<!\\)[%#_]|<|\|", lines[4])
    assert not lines[4].startswith("[")
    assert lines[5] == r"other & \textbf{2.00} \\"


@pytest.mark.parametrize("name", NAMES)
def test_csv_is_read_back_and_has_no_tags(name):
    (_, first, _) = csv.reader(io.StringIO(comma_separated(table(name))))
    assert first[0].removeprefix("'") == one_line(name).replace("<", "&lt;")


@pytest.mark.parametrize(
    "text", ["=1+1", "+cmd", "-cmd|'/C calc'!A0", "@SUM(A1)", "\t=1", "\n=1", "\u200b=1", "＝1+1", "-", "+-1"]
)
def test_csv_has_no_formulas(text):
    assert comma_separated(Table(["a"], [[text]])).splitlines()[1].lstrip('"').startswith("'")


@pytest.mark.parametrize("text", ["-1", "+2.5", "-1e-05", "-.5", "3", "vadd-kl", ""])
def test_numbers_are_numbers_in_csv(text):
    (_, row) = csv.reader(io.StringIO(comma_separated(Table(["a", "b"], [[text, ""]]))))
    assert row[0] == text


@pytest.mark.parametrize("name", [*NAMES[:3], *NAMES[-5:]])
@pytest.mark.parametrize("form", FORMATS)
def test_a_data_set_may_have_any_name(form, name):
    text = FORMATS[form](
        results_of([loose_of("vadd-kl", dataset=f"{name}.npz"), loose_of("pi", dataset=f"{name}.npz")]), []
    )
    assert "<script" not in text
    shown = {"html": html.escape(name), "latex": escaped(name.rpartition("/")[2])}.get(form)
    assert shown is None or shown in text


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("form", FORMATS)
def test_no_format_keeps_a_character_that_cannot_be_seen(form, name, tmp_path):
    suite = hostile(tmp_path, f"x{name}")
    records = [run_of(suite, row, commit=name, machine={name: name}) for row in ("pi", "vadd")]
    found = results_of([*records, loose_of("pi", dataset=f"{name}.npz")], {suite.key: suite})
    text = FORMATS[form](found, [])
    assert {letter for letter in text if not letter.isprintable()} <= {"\n"}


def test_a_table_for_the_terminal_has_only_what_can_be_seen():
    for name in UNSEEN:
        assert all(row.isprintable() for row in text_table.table([name, "n"], [[name, "1"]]).split("\n"))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a & b", r"a \& b"),
        ("5 %", r"5 \%"),
        ("a_b#1", r"a\_b\#1"),
        ("$x$", r"\$x\$"),
        ("{b}", r"\{b\}"),
        ("a\\end", r"a\textbackslash{}end"),
        ("~^", r"\textasciitilde{}\textasciicircum{}"),
        ("δ = 0, λ", r"$\delta$ = 0, $\lambda$"),
        ("two\n\nlines", "two lines"),
    ],
)
def test_latex_is_escaped(text, shown):
    assert escaped(text) == shown
