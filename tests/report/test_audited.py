from dataclasses import replace

from advdrop.report.audited import Audit, figure, head, rows, words

FOUND = Audit(
    name="one",
    units=12,
    images=5,
    budgets=[0, 1, 4],
    worst=[80.0, 60.0, 20.0],
    certain=[80.0, 40.0, 0.0],
    random=[80.0, 80.0, 60.0],
    exact=False,
    fewest=[0, 1, 3, None, 2],
    at_least=[0, 1, 2, 2, 2],
    leaned_on=[(7, 50.0), (3, 25.0)],
    hanging=[(1, 7)],
)


def test_the_median_is_of_those_that_are_right():
    assert FOUND.median == 2
    assert replace(FOUND, fewest=[0, None, None, None, 2]).median is None
    assert replace(FOUND, fewest=[0, 0]).median is None


def test_networks_stand_side_by_side():
    other = replace(FOUND, name="two", exact=True, certain=FOUND.worst, budgets=[0, 1, 8])
    assert head([FOUND, other]) == ["units lost", "one: worst", "one: random", "two: worst", "two: random"]
    assert rows([FOUND, other]) == [
        ["0", "80.0", "80.0", "80.0", "80.0"],
        ["1", "40.0 to 60.0", "80.0", "60.0", "80.0"],
        ["4", "0.0 to 20.0", "60.0", "", ""],
        ["8", "", "", "20.0", "60.0"],
    ]


def test_what_there_is_to_say():
    said = "\n".join(words(FOUND))
    assert "one: 12 units, 5 examples, 80.0 % right (bounds" in said
    assert "half of the right predictions change with 2 lost units; 3 change within 4" in said
    assert "units it leans on most: 7 (50.0 %), 3 (25.0 %)" in said
    assert "examples that hang on one unit: 1 (unit 7)" in said
    assert "no example hangs" in "\n".join(words(replace(FOUND, hanging=[])))
    assert "(exact)" in words(replace(FOUND, exact=True))[0]


def test_the_figure_has_a_line_for_each_kind_and_says_what_is_not_exact():
    drawn = figure([FOUND, replace(FOUND, name="two")])
    assert drawn.svg.count("<polyline") == 4
    assert drawn.svg.count("dashed") == 2
    assert [name for name, _ in drawn.legend] == ["one, the worst units", "two, the worst units"]
    assert "may be lower" in drawn.note
    assert "may be lower" not in figure([replace(FOUND, exact=True)]).note


def test_json_has_everything():
    values = FOUND.json()
    assert values["fewest"] == [0, 1, 3, None, 2]
    assert values["median"] == 2
