from xml.etree import ElementTree

import pytest

from advdrop.lab.records.record import ERROR
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.figures import curves, figures
from ledger import loose_of, run_of


def table(suite, *records):
    (found,) = results_of(records, {suite.key: suite})
    return found


def searched(record, **metrics):
    return record.model_copy(update={"curve": record.curve | metrics}).sealed()


def test_a_curve_is_the_mean_over_seeds_with_a_band_of_a_standard_deviation(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, 10.0)), run_of(suite, "vadd", 1, (44.0, 10.0))]
    ((row, line),) = curves(table(suite, *runs), "20", ERROR)
    # 42 ± sqrt((4 + 4)/1) = 2.8284
    assert row == "vadd"
    assert line.name == "VAdD (KL)"
    assert line.x == [20.0, 40.0]
    assert line.y == [42.0, 10.0]
    assert line.low == [pytest.approx(39.171573), 10.0]
    assert line.high == [pytest.approx(44.828427), 10.0]


def test_a_single_seed_and_equal_seeds_have_no_band(suite):
    for seeds in (1, 2):
        ((_, line),) = curves(table(suite, *(run_of(suite, "vadd", seed) for seed in range(seeds))), "20", ERROR)
        assert (line.low, line.high) == ([], [])


def test_a_curve_has_the_updates_at_which_all_seeds_were_measured(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, None, 20.0, 10.0)), run_of(suite, "vadd", 1, (None, 30.0, 24.0, 12.0))]
    ((_, line),) = curves(table(suite, *runs), "20", ERROR)
    assert line.x == [30.0, 40.0]
    assert line.y == [22.0, 11.0]


def test_rows_keep_their_color_whether_the_others_were_run_or_not(suite):
    whole = curves(table(suite, *(run_of(suite, row) for row in suite.trained)), "20", ERROR)
    alone = curves(table(suite, run_of(suite, "vadd")), "20", ERROR)
    assert [line.style for _, line in whole] == [0, 1, 2]
    assert [line.style for _, line in alone] == [2]


def test_a_chart_with_nothing_in_it_is_left_out(suite):
    found = figures(table(suite, run_of(suite, "pi"), run_of(suite, "dropout")))
    assert [figure.title for figure in found] == [
        "Test error, 20 labels",
        "Test error against training cost, 20 labels",
    ]
    assert found[0].legend == [("Dropout", 0), ("Π model", 1)]
    assert found[0].note == ""


def test_what_the_search_did_is_drawn_where_it_was_written_down(suite):
    metrics = {"search_vadd-kl_flips": [None, 3.0, 4.0, 5.0], "search_vadd-kl_budget_share": [None, 0.3, 0.4, 0.5]}
    results = table(suite, searched(run_of(suite, "vadd"), **metrics), run_of(suite, "pi"))
    assert [figure.title for figure in figures(results)][2:] == [
        "Flipped units over time, 20 labels",
        "Share of the budget over time, 20 labels",
    ]
    ((_, line),) = curves(results, "20", "flips")
    assert (line.x, line.y) == ([20.0, 30.0, 40.0], [3.0, 4.0, 5.0])
    ((_, line),) = curves(results, "20", "budget_share")
    assert line.y == [0.3, 0.4, 0.5]


def test_the_cost_of_a_curve_is_that_of_its_row(suite):
    runs = [
        run_of(suite, "pi", 0, (40.0, 10.0), milliseconds_per_update=60_000.0),
        run_of(suite, "dropout", 0, (40.0, 10.0), milliseconds_per_update=30_000.0),
    ]
    cost = figures(table(suite, *runs))[1]
    svg = ElementTree.fromstring(cost.svg)
    # 40 minutes for Π, 20 for dropout: half the way across.
    ends = {group.find("title").text: float(group.find("circle").get("cx")) for group in svg.iter("g")}
    assert ends["Π model"] == pytest.approx(456.0)
    assert ends["Dropout"] == pytest.approx(254.0)
    assert cost.note == "Minutes of training on the machine of the record."


def test_a_band_is_explained(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, 10.0)), run_of(suite, "vadd", 1, (44.0, 10.0))]
    errors, cost = figures(table(suite, *runs))
    assert errors.note == "Bands: one standard deviation over seeds."
    assert cost.note == f"Minutes of training on the machine of the record. {errors.note}"


def test_an_error_of_zero_is_drawn_on_a_plain_axis(suite):
    errors, _ = figures(table(suite, run_of(suite, "vadd", 0, (40.0, 20.0, 0.0))))
    texts = [text.text for text in ElementTree.fromstring(errors.svg).iter("text")]
    assert "0" in texts
    (curve,) = ElementTree.fromstring(errors.svg).iter("polyline")
    assert curve.get("points").endswith("456.0,254.0")


def test_each_column_has_its_charts(suite):
    found = figures(table(suite, run_of(suite, "vadd"), run_of(suite, "vadd", column="all")))
    assert [figure.title.rpartition(", ")[2] for figure in found] == ["20 labels"] * 2 + ["All labels"] * 2


def test_runs_of_no_suite_have_charts_as_well():
    (results,) = results_of([loose_of("vadd-kl"), loose_of("pi")])
    assert [name for name, _ in figures(results)[0].legend] == ["vadd-kl", "pi"]
