from advdrop.lab.report.collect import results_of
from advdrop.lab.report.sections import (
    HELD,
    REVERSED,
    UNKNOWN,
    Cell,
    Table,
    confusions,
    in_words,
    orders,
    reasons,
    sections,
    verdicts,
)
from advdrop.lab.suites.suite import Reported, Row
from ledger import loose_of, run_of


def found(suite, vadd, pi):
    runs = [run_of(suite, "vadd", seed, (40.0, error)) for seed, error in enumerate(vadd)]
    runs += [run_of(suite, "pi", seed, (40.0, error)) for seed, error in enumerate(pi)]
    (results,) = results_of(runs, {suite.key: suite})
    return verdicts(results)


def test_a_lower_error_on_every_seed_held(suite):
    seen = found(suite, [4.0, 4.1, 4.2], [5.0, 5.1, 5.3])
    assert [line.split(":")[0] for line in seen[HELD]] == ["VAdD (KL) below Π model, 20 labels"]
    assert "difference -1.03 ± 0.14, n = 3, p = " in seen[HELD][0]
    assert REVERSED not in seen


def test_a_higher_one_is_the_other_way_around(suite):
    seen = found(suite, [5.0, 5.1, 5.3], [4.0, 4.1, 4.2])
    assert HELD not in seen
    assert "difference +1.03" in seen[REVERSED][0]


def test_what_could_be_chance_or_was_not_run_is_not_known(suite):
    assert "difference -0.07" in found(suite, [4.0, 4.4, 4.2], [4.3, 4.2, 4.3])[UNKNOWN][0]
    assert "difference -1.00 in a single run" in found(suite, [4.0], [5.0])[UNKNOWN][0]
    seen = found(suite, [4.0, 4.1], [])
    assert any(line.endswith("Π model, 20 labels: not run") for line in seen[UNKNOWN])
    assert list(seen) == ["What is not known yet"]


def test_a_pair_that_the_protocol_leaves_out_is_not_asked_for(suite):
    runs = [run_of(suite, "vadd", 0, (40.0, 4.0))]
    for left_out in ("pi", "20", "20/pi", "all"):
        protocol = suite.protocols["short"].model_copy(update={"without": {left_out: "no time"}})
        (results,) = results_of(runs, {suite.key: suite.model_copy(update={"protocols": {"short": protocol}})})
        asked = [line.split(",")[0] for line in verdicts(results).get(UNKNOWN, [])]
        assert ("VAdD (KL) below Π model" in asked) == (left_out == "all")  # where nothing was run


def test_variants_of_ours_claim_nothing(suite):
    ours = suite.model_copy(update={"source": "ours"})
    assert len(found(ours, [4.0, 4.1, 4.2], [5.0, 5.1, 5.3])["Shown to be lower"]) == 1
    assert len(found(ours, [5.0, 5.1, 5.3], [4.0, 4.1, 4.2])["Shown to be higher"]) == 1
    undecided = found(ours, [4.0], [5.0])["What these seeds do not decide"]
    assert undecided[0].startswith("VAdD (KL) against Π model, 20 labels: difference -1.00")


def test_the_order_of_the_rows_that_the_paper_does_not_quote_is_told_apart(suite):
    results = in_order(suite, {"a": 30.0, "b": 32.0, "c": 31.0, "d": 40.0}, quoted="a")
    # Of b, c and d, 2 of 3 pairs agree: τ = 1/3, and each of the 6 orders has |τ| of at least that.
    assert orders(results)[0].endswith(
        "; among the rows that the paper does not quote, 2 of 3 pairs of rows have the paper's order "
        "(Kendall's τ = 0.33, p = 1.000)"
    )


def in_order(suite, errors, *, like=None, quoted=""):
    """Return results of a protocol that compares only the order: four rows with printed errors 1, 2, 3 and 4."""
    printed = {row: {"20": Reported(place, None, False)} for place, row in enumerate("abcd", 1)}
    rows = {
        row: Row(name=row.upper(), method="pi", paper=printed[row], quoted="them" if row in quoted else None)
        for row in "abcd"
    }
    protocol = suite.protocols["short"].model_copy(update={"only_order": True})
    columns = suite.columns | {"all": suite.columns["all"].model_copy(update={"like": like})}
    update = {"rows": rows, "columns": columns, "compare": (), "protocols": suite.protocols | {"short": protocol}}
    ordered = suite.model_copy(update=update)
    column = "all" if like else "20"
    runs = [run_of(ordered, row, 0, (40.0, error), column=column) for row, error in errors.items()]
    (results,) = results_of(runs, {suite.key: ordered})
    return results


def test_a_protocol_that_is_too_short_for_errors_compares_the_order(suite):
    results = in_order(suite, {"a": 30.0, "b": 32.0, "c": 31.0, "d": 40.0})
    part = sections(results)[1]
    assert part.heading == "The order of the rows, beside the paper"
    assert part.table.head == ["place", "20 labels: paper", "here"]
    assert part.table.rows == [["1", "A", "A"], ["2", "B", "C"], ["3", "C", "B"], ["4", "D", "D"]]
    # 5 of 6 pairs agree: τ = (5 - 1) / 6. Of 24 orders, 8 have |τ| of at least 2/3.
    (line,) = part.lines
    assert line == "20 labels: 5 of 6 pairs of rows have the paper's order (Kendall's τ = 0.67, p = 0.333)"
    assert not any("Beside" in part.heading for part in sections(results))


def test_the_order_of_a_column_that_stands_for_another(suite):
    results = in_order(suite, {"d": 9.0, "b": 8.0}, like="20")
    assert [(order.paper, order.here) for order in results.orders] == [(["b", "d"], ["b", "d"])]
    assert sections(results)[1].lines[0].startswith("All labels (the paper: 20 labels): 1 of 1 pairs")


def test_the_order_is_that_of_the_seeds_that_all_rows_have(suite):
    results = in_order(suite, {"a": 30.0, "b": 32.0})
    more = [*results.records, run_of(results.suite, "a", 1, (40.0, 38.0), column="20")]  # a harder seed
    (results,) = results_of(more, {results.suite.key: results.suite})
    assert [order.here for order in results.orders] == [["a", "b"]]
    apart = [record for record in results.records if (record.row, record.seed) != ("a", 0)]
    (results,) = results_of(apart, {results.suite.key: results.suite})
    assert [order.here for order in results.orders] == [["b", "a"]], "rows without a common seed"


def test_one_row_has_no_order(suite):
    results = in_order(suite, {"a": 30.0})
    assert results.orders == []
    assert [part.heading for part in sections(results)] == ["", "What differs from the paper", "Run it again"]


def test_reasons_are_told_once_for_all_that_they_are_about(suite):
    without = {"all/pi": "no time", "dropout": "no time", "all/vadd": "no interest"}
    protocol = suite.protocols["short"].model_copy(update={"without": without})
    changed = suite.model_copy(update={"protocols": suite.protocols | {"short": protocol}})
    runs = [run_of(changed, "pi"), run_of(changed, "vadd", column="all")]
    (results,) = results_of(runs, {suite.key: changed})
    assert "Π model, All labels; Dropout: no time" in reasons(results)
    assert not any("no interest" in line for line in reasons(results))  # it was run all the same


def test_columns_of_dashes_are_left_out():
    table = Table(["name", "a", "b", "c"], [["x", "–", "1", ""], ["y", "–", "–", Cell("–", "soft")]])
    assert table.without_dashes.head == ["name", "b"]
    assert [[cell.text for cell in row] for row in table.without_dashes.cells] == [["x", "1"], ["y", "–"]]
    assert Table(["name", "a"], [["x", "–"]]).without_dashes.rows == []


def test_runs_of_no_suite_have_their_errors_first_and_statistics_behind():
    (results,) = results_of([loose_of("dropout", 0), loose_of("pi", 0)])
    first, *others = sections(results)
    assert first.table.head == ["Method", "test error %", "seeds", "ms per update"]
    assert [[cell.text for cell in row] for row in first.table.cells] == [
        ["dropout", "10.00", "1", "2"],
        ["pi", "10.00", "1", "2"],
    ]
    assert not first.folded
    assert all(part.folded for part in others)
    assert [part.heading for part in others] == ["Run it again"]
    assert in_words(results) == []  # no row of a loose table is compared unless it has adversarial dropout


def test_a_name_with_a_colon_is_whole_in_the_words(suite):
    rows = {**suite.rows, "pi": suite.rows["pi"].model_copy(update={"name": "ours: λ = 1"})}
    named = suite.model_copy(update={"rows": rows})
    runs = [run_of(named, "vadd", seed, (40.0, 4.0 + 0.1 * seed)) for seed in range(3)]
    runs += [run_of(named, "pi", seed, (40.0, 5.0 + 0.11 * seed)) for seed in range(3)]
    (results,) = results_of(runs, {named.key: named})
    assert "1 held (VAdD (KL) below ours: λ = 1, 20 labels)" in in_words(results)[1]


def test_the_most_frequent_mistakes_come_first(answer):
    classes, counts = ("a", "b", "c"), ((9, 2, 5), (0, 9, 5), (1, 0, 9))
    table = confusions(answer.model_copy(update={"classes": classes, "confusion": counts}))
    assert table.head == ["true class", "vadd-qe predicts", "test examples"]
    assert table.rows == [["a", "c", "5"], ["b", "c", "5"], ["a", "b", "2"], ["c", "a", "1"]]
