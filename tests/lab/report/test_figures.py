import re

import pytest

from advdrop.lab.records.record import ERROR
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.figures import confusion_figure, curves, figures, overview, overviews, sensitivities
from advdrop.lab.suites.suite import Curve
from ledger import loose_of, run_of

COST = " against training cost"


def table(suite, *records):
    (found,) = results_of(records, {suite.key: suite})
    return found


def searched(record, **metrics):
    return record.model_copy(update={"curve": record.curve | metrics}).sealed()


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_a_standard_deviation(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, 10.0)), run_of(suite, "vadd", 1, (44.0, 10.0))]
    ((row, line),) = curves(table(suite, *runs), "20", ERROR).items()
    # 42 ± sqrt((4 + 4)/1) = 2.8284
    assert row == "vadd"
    assert line.name == "VAdD (KL)"
    assert line.x == [20.0, 40.0]
    assert line.y == [42.0, 10.0]
    assert line.low == [pytest.approx(39.171573), 10.0]
    assert line.high == [pytest.approx(44.828427), 10.0]


def test_a_single_seed_and_equal_seeds_have_no_band(suite):
    for seeds in (1, 2):
        (line,) = curves(table(suite, *(run_of(suite, "vadd", seed) for seed in range(seeds))), "20", ERROR).values()
        assert (line.low, line.high) == ([], [])


def test_a_curve_has_the_updates_at_which_all_seeds_were_measured(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, None, 20.0, 10.0)), run_of(suite, "vadd", 1, (None, 30.0, 24.0, 12.0))]
    (line,) = curves(table(suite, *runs), "20", ERROR).values()
    assert line.x == [30.0, 40.0]
    assert line.y == [22.0, 11.0]


def test_rows_keep_their_color_whether_the_others_were_run_or_not(suite):
    whole = curves(table(suite, *(run_of(suite, row) for row in suite.trained)), "20", ERROR)
    alone = curves(table(suite, run_of(suite, "vadd")), "20", ERROR)
    assert [line.style for line in whole.values()] == [0, 1, 2]
    assert [line.style for line in alone.values()] == [2]


def test_a_chart_with_nothing_in_it_is_left_out(suite):
    found = figures(table(suite, run_of(suite, "pi"), run_of(suite, "dropout")))
    assert [figure.title for figure in found] == [
        "Test error, 20 labels",
        "Test error against training cost, 20 labels",
    ]
    assert found[0].svg.index(">Dropout<") < found[0].svg.index(">Π model<")
    assert "VAdD" not in found[0].svg
    assert found[0].note == ""


def test_the_first_chart_is_that_of_the_errors_in_each_column_that_was_run(suite):
    drawn = overviews(table(suite, run_of(suite, "pi"), run_of(suite, "pi", column="all")))
    assert [figure.title for figure in drawn] == [
        "Test error in the paper and here, 20 labels, protocol short",
        "Test error, All labels",  # the paper has none of these
    ]


def test_the_cost_of_one_row_alone_is_not_drawn(suite):
    assert [figure.title for figure in figures(table(suite, run_of(suite, "pi")))] == ["Test error, 20 labels"]
    assert figures(table(suite, run_of(suite, "pi", 0, (None, 10.0)))) == []  # one point is no curve


@pytest.mark.parametrize(
    ("flips", "drawn"), [([3.0, 3.0, 3.0, 3.0], 0), ([3.0, 3.01, 3.0, 3.0], 0), ([3.0, 3.0, 3.0, 4.0], 1)]
)
def test_a_constant_is_not_drawn(suite, flips, drawn):
    results = table(suite, searched(run_of(suite, "vadd"), **{"search_vadd-kl_flips": flips}))
    assert sum("Flipped" in figure.title for figure in figures(results)) == drawn


def test_what_the_search_did_is_drawn_where_it_was_written_down(suite):
    metrics = {"search_vadd-kl_flips": [None, 3.0, 4.0, 5.0], "search_vadd-kl_budget_share": [None, 0.3, 0.4, 0.5]}
    results = table(suite, searched(run_of(suite, "vadd"), **metrics), run_of(suite, "pi"))
    assert [figure.title for figure in figures(results)][2:] == [
        "Flipped units over time, 20 labels",
        "Share of the budget over time, 20 labels",
    ]
    (line,) = curves(results, "20", "flips").values()
    assert (line.x, line.y) == ([20.0, 30.0, 40.0], [3.0, 4.0, 5.0])
    (line,) = curves(results, "20", "budget_share").values()
    assert line.y == [0.3, 0.4, 0.5]


def test_the_cost_of_a_curve_is_that_of_its_row(suite):
    runs = [
        run_of(suite, "pi", 0, (40.0, 10.0), milliseconds_per_update=60_000.0),
        run_of(suite, "dropout", 0, (40.0, 10.0), milliseconds_per_update=30_000.0),
    ]
    cost = figures(table(suite, *runs))[1]
    # 40 minutes for Π, 20 for dropout: half the way across, from the left edge of the axes.
    first, second = (
        float(x) for x in re.findall(r'<use href="[^"]+" x="([\d.]+)" y="[\d.]+" style="fill', cost.svg)[:2]
    )
    left = float(re.search(r'<path d="M ([\d.]+) [\d.]+ L', cost.svg)[1])
    assert (second - left) / (first - left) == pytest.approx(2.0, abs=0.01)
    assert cost.note == "Minutes of training on the machine of the record."


def test_a_band_is_explained(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, 10.0)), run_of(suite, "vadd", 1, (44.0, 10.0)), run_of(suite, "pi")]
    errors, cost = figures(table(suite, *runs))
    assert errors.note == "Bands: one standard deviation over seeds."
    assert cost.note == f"Minutes of training on the machine of the record. {errors.note}"


def test_an_error_of_zero_is_drawn_on_a_plain_axis(suite):
    (errors,) = figures(table(suite, run_of(suite, "vadd", 0, (40.0, 20.0, 0.0))))
    assert errors.svg.count(">0</text>") == 2
    assert "VAdD (KL) ends at 0." in errors.svg


def test_each_column_has_its_charts(suite):
    runs = [run_of(suite, row, column=column) for row in ("vadd", "pi") for column in ("20", "all")]
    titles = [figure.title for figure in figures(table(suite, *runs))]
    assert titles == [f"Test error{kind}, {c}" for c in ("20 labels", "All labels") for kind in ("", COST)]


def test_runs_of_no_suite_have_charts_as_well():
    (results,) = results_of([loose_of("vadd-kl"), loose_of("pi")])
    drawn = figures(results)[0]
    assert drawn.title == "Test error, digits, 20 labels"
    assert drawn.svg.index(">vadd-kl<") < drawn.svg.index(">pi<")


def test_the_overview_leaves_out_the_paper_if_only_the_order_is_compared(suite):
    short = suite.protocols["short"].model_copy(update={"only_order": True})
    suite = suite.model_copy(update={"protocols": suite.protocols | {"short": short}})
    found = overview(table(suite, run_of(suite, "pi", 0), run_of(suite, "vadd", 0)), "20")
    assert found.title == "Test error, 20 labels"
    assert "paper" not in found.svg
    assert "Dropout" not in found.svg  # a row with a number of the paper alone


def test_the_overview_has_both_numbers_of_each_row(suite):
    found = overview(table(suite, run_of(suite, "pi", 0), run_of(suite, "vadd", 0)), "20")
    for said in (
        "Ladder: paper 1.06 ± 0.37, here not run",
        "Π model: paper 5.10 ± 0.20, here 10.00",
        "VAdD (KL): paper none, here 10.00",
    ):
        assert said in found.svg
    assert found.note == "One seed."


def dots(svg):
    """The places of the small dots, one for each seed."""
    return [
        (float(x), float(y))
        for x, y in re.findall(r'<use href="#[^"]+" x="([\d.]+)" y="([\d.]+)" style="[^"]*0\.6', svg)
    ]


def test_each_seed_is_a_dot_below_its_mean():
    errors = {0: 4.0, 1: 6.0, 2: 14.0}
    runs = [loose_of("pi", seed, (40.0, error)) for seed, error in errors.items()] + [
        loose_of("dropout", 0, (40.0, 8.0))
    ]
    (results,) = results_of(runs)
    drawn = overview(results, "runs")
    assert drawn.note == "Mean and standard deviation; each small dot is a seed. 40 updates."
    assert "pi: 8.00 ± 5.29; dropout: 8.00" in drawn.svg
    found = dots(drawn.svg)
    assert len(found) == 3  # the row with one seed has only its mean
    (a, _), (b, _), (c, _) = found
    assert (c - a) / (b - a) == pytest.approx(5.0, abs=0.01)
    assert len({y for _, y in found}) == 1


def test_a_confusion_matrix_has_the_shares_of_each_class(answer):
    drawn = confusion_figure(answer)
    said = re.search('aria-label="([^"]*)"', drawn.svg)[1]
    assert said == (
        "What vadd-qe predicts. cat as cat 75 %; cat as dog 25 %; dog as dog 100 %."  # 3 and 1 of 4, and 6 of 6
    )
    assert re.findall(r">([\d<]+)</text>", drawn.svg) == ["75", "25", "100"]
    assert drawn.note == "Percent of the test examples of each class over 2 seeds. Blue is right, orange is wrong."


def test_the_error_against_a_setting_has_the_mean_of_each_row_that_was_run(suite):
    curve = Curve(title="the weight", values={"vadd": "0.3", "pi": "1", "dropout": "3"})
    assert {*curve.values} <= {*suite.rows}
    drawn = suite.model_copy(update={"curves": (curve,)})
    runs = [run_of(suite, "pi", seed, (20.0, last)) for seed, last in enumerate((4.0, 6.0))]
    assert sensitivities(table(drawn, *runs)) == []  # one row is no curve
    (figure,) = sensitivities(table(drawn, *runs, run_of(suite, "vadd", 0, (20.0, 3.0))))
    assert figure.title.startswith("Test error against the weight, ")
    assert "0.3: 3.00 %; 1: 4.00 %." in figure.svg  # seed 1 may be a harder one
    assert "Squares are means over the seeds that all settings have (0)." in figure.note
    (other,) = sensitivities(table(drawn, *runs, run_of(suite, "vadd", 2, (20.0, 3.0))))
    assert "0.3: 3.00 %; 1: 5.00 %." in other.svg
    assert "Squares are means over different seeds." in other.note
    assert figure in figures(table(drawn, *runs, run_of(suite, "vadd", 0, (20.0, 3.0))))
    assert sensitivities(table(suite, *runs)) == []
