from dataclasses import replace

from advdrop.analysis.audit import Audit
from advdrop.lab.report.audited import figure, head, rows

FOUND = Audit(
    name="one",
    units=12,
    examples=5,
    budgets=[0, 1, 4],
    worst=[80.0, 60.0, 20.0],
    certain=[80.0, 40.0, 0.0],
    random=[80.0, 80.0, 60.0],
    exact=False,
    fewest=[0, 1, 3, None, 2],
    at_least=[0, 1, 2, 2, 2],
    critical_units=[(7, 50.0), (3, 25.0)],
    fragile_examples=[(1, 7)],
)


def test_each_network_has_two_columns():
    other = replace(FOUND, name="two", exact=True, certain=FOUND.worst, budgets=[0, 1, 8])
    assert head([FOUND, other]) == ["units lost", "one: worst", "one: random", "two: worst", "two: random"]
    assert rows([FOUND, other]) == [
        ["0", "80.0", "80.0", "80.0", "80.0"],
        ["1", "40.0 to 60.0", "80.0", "60.0", "80.0"],
        ["4", "0.0 to 20.0", "60.0", "", ""],
        ["8", "", "", "20.0", "60.0"],
    ]


def test_the_figure_has_a_line_for_each_kind_and_says_what_is_not_exact():
    drawn = figure([FOUND, replace(FOUND, name="two")])
    assert drawn.svg.count("stroke-dasharray") == 2
    assert drawn.svg.index(">one, the worst units<") < drawn.svg.index(">two, the worst units<")
    assert ">one, random units<" not in drawn.svg
    assert "may be lower" in drawn.note
    assert "may be lower" not in figure([replace(FOUND, exact=True)]).note
