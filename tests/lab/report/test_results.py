import pytest

from advdrop.lab.report.collect import results_of
from advdrop.lab.report.statistics import Difference
from ledger import loose_of, refusal, run_of, tables


def test_every_cell_of_the_suite_is_there_whether_it_was_run_or_not(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 1), run_of(suite, "vadd", 0))
    assert set(table.entries) == {(row, column) for row in suite.rows for column in suite.columns}
    assert [record.seed for record in table.entries["vadd", "20"].records] == [0, 1]
    assert table.entries["pi", "20"].records == ()
    assert table.entries["pi", "20"].summary is None
    assert table.entries["pi", "20"].gap is None
    assert table.entries["pi", "20"].equal_cost is None
    assert (table.name, table.protocol, table.preset) == ("small-short-paper", "short", "paper")


def test_columns_in_which_nothing_was_run_are_left_out(suite):
    (table,) = tables(suite, run_of(suite, "vadd"))
    assert table.columns == ["20"]
    (table,) = tables(suite, run_of(suite, "vadd", column="all"), run_of(suite, "vadd"))
    assert table.columns == ["20", "all"]


def test_a_cell_has_the_papers_number_and_the_gap_to_it(suite):
    runs = [run_of(suite, "pi", seed, (50.0, last)) for seed, last in enumerate((5.0, 5.2, 5.4))]
    (table,) = tables(suite, *runs)
    entry = table.entries["pi", "20"]
    assert entry.reported == (5.1, 0.2, True)
    assert entry.errors == {0: 5.0, 1: 5.2, 2: 5.4}
    assert entry.summary == (pytest.approx(5.2), pytest.approx(0.2), 3)
    # 0.2²/3 = 0.0133333 (2 free) and, from five repetitions, 0.2²/5 = 0.008 (4 free): 0.0213333² / (8.88889e-5 +
    # 1.6e-5) = 4.3390 degrees of freedom, t = 2.6921; sqrt(0.0213333) = 0.146059. Their product is 0.3932.
    assert entry.gap == (pytest.approx(0.1), pytest.approx(0.3932, abs=2e-4), 3)


def test_a_number_without_a_spread_in_the_paper_is_taken_for_exact(suite):
    runs = [run_of(suite, "dropout", seed, (50.0, last)) for seed, last in enumerate((12.0, 12.2, 12.4))]
    (table,) = tables(suite, *runs)
    # 4.302653 · 0.2/sqrt(3)
    assert table.entries["dropout", "20"].gap == (pytest.approx(-0.16), pytest.approx(0.496828, abs=1e-6), 3)


def test_a_single_run_has_a_gap_without_an_interval(suite):
    (table,) = tables(suite, run_of(suite, "pi", 0, (50.0, 5.0)))
    assert table.entries["pi", "20"].gap == (pytest.approx(-0.1), None, 1)


def test_a_quoted_row_has_the_papers_number_and_none_of_ours(suite):
    (table,) = tables(suite, run_of(suite, "vadd"))
    entry = table.entries["ladder", "20"]
    assert (entry.reported, entry.records, entry.gap) == ((1.06, 0.37, False), (), None)
    assert "ladder" not in suite.trained


def test_rows_are_compared_on_the_seeds_they_share(suite):
    runs = [run_of(suite, "vadd", seed, (50.0, last)) for seed, last in enumerate((4.1, 4.2, 4.3))]
    runs += [run_of(suite, "pi", seed, (50.0, last)) for seed, last in enumerate((4.0, 4.0, 4.0, 9.0))]
    runs += [run_of(suite, "dropout", 0, (50.0, 12.0))]
    (table,) = tables(suite, *runs)
    one, two = table.comparisons
    assert (one.column, one.one, one.other, one.found.n) == ("20", "vadd", "pi", 3)
    # Differences 0.1, 0.2, 0.3: see the tests of the statistics.
    assert one.found.t_p == pytest.approx(0.074180, abs=1e-6)
    assert one.holm_p == one.found.t_p  # the other comparison has no p
    assert (two.other, two.found.n, two.found.difference) == ("dropout", 1, Difference(pytest.approx(-7.9), None))
    assert two.holm_p is None


def test_the_comparisons_of_a_column_are_corrected_together(suite):
    runs = [run_of(suite, "vadd", seed, (50.0, last)) for seed, last in enumerate((4.1, 4.2, 4.3))]
    for row in ("pi", "dropout"):
        runs += [run_of(suite, row, seed, (50.0, 4.0)) for seed in range(3)]
    (table,) = tables(suite, *runs)
    assert [c.holm_p for c in table.comparisons] == [pytest.approx(2 * 0.074180, abs=1e-5)] * 2


def test_rows_that_were_not_run_are_not_compared(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 0), run_of(suite, "pi", 1))
    assert table.comparisons == []


def test_two_results_of_one_cell_are_refused(suite):
    assert refusal(tables, suite, run_of(suite), run_of(suite, "vadd", 0, (40.0, 11.0))) == (
        "the record small short paper 20 vadd seed 0 is there twice, with different errors; leave one of them out"
    )


def test_copies_of_a_record_count_once(suite):
    (table,) = tables(suite, run_of(suite), run_of(suite, finished="2027-01-01"))
    assert table.records == [run_of(suite)]
    (table,) = results_of([loose_of(), loose_of(finished="2027-01-01")])
    assert table.records == [loose_of()]
