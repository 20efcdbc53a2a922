import re
from dataclasses import replace

from advdrop.analysis.faults import FaultResult
from advdrop.analysis.layers import Layer
from advdrop.analysis.ranking import LayerAudit, Ranking
from advdrop.lab.report.audited import fault_table, figure, head, ranking_figure, ranking_table, rows
from analyses import AUDIT


def test_each_network_has_two_columns():
    other = replace(AUDIT, name="two", exact=True, certain=AUDIT.worst, budgets=[0, 1, 8])
    assert head([AUDIT, other]) == ["units lost", "one: worst", "one: random", "two: worst", "two: random"]
    assert rows([AUDIT, other]) == [
        ["0", "80.0", "80.0", "80.0", "80.0"],
        ["1", "40.0 to 60.0", "80.0", "60.0", "80.0"],
        ["4", "0.0 to 20.0", "60.0", "", ""],
        ["8", "", "", "20.0", "60.0"],
    ]


def test_the_figure_has_a_line_for_each_kind_and_says_what_is_not_exact():
    drawn = figure([AUDIT, replace(AUDIT, name="two")])
    assert drawn.svg.count("stroke-dasharray") == 2
    assert drawn.svg.index(">one, the worst units<") < drawn.svg.index(">two, the worst units<")
    assert ">one, random units<" not in drawn.svg
    assert "may be lower" in drawn.note
    assert "may be lower" not in figure([replace(AUDIT, exact=True)]).note


def ranking():
    layers = [
        Layer("stem", "Conv2d", None, (4, 5, 5), "channel", False),
        Layer("block.branch", "Linear", None, (12,), "unit", True),
    ]
    faults = [[FaultResult("stuck at 1", 1, 70.0, 50.0), FaultResult("stuck at 1", 4, 62.5, 50.0)], []]
    return Ranking("net", [LayerAudit(layer, AUDIT, results) for layer, results in zip(layers, faults, strict=True)])


def test_the_tables_of_a_ranking():
    head, cells = ranking_table(ranking())
    assert head == ["layer", "kind", "units", "bypassed", "0 lost", "1 lost", "4 lost"]
    assert cells == [
        ["stem", "Conv2d", "4 channels", "no", "80.0", "60.0", "20.0"],
        ["block.branch", "Linear", "12 units", "yes", "80.0", "60.0", "20.0"],
    ]
    assert fault_table(ranking()) == (["layer", "fault", "1", "4"], [["stem", "stuck at 1", "70.0", "62.5"]])


def test_the_figure_of_a_ranking_has_the_most_sensitive_layers():
    drawn = ranking_figure(ranking())
    assert ">stem<" in drawn.svg
    assert ">block.branch<" in drawn.svg
    many = Ranking("net", ranking().layers * 20)
    assert re.search(r"The \d most sensitive of 40 layers", ranking_figure(many).note)
