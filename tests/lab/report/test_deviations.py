from advdrop.lab.suites.suite import Reported
from ledger import run_of, suite_of, tables


def test_what_differs_from_the_papers_protocol_is_listed_once(suite):
    (table,) = tables(suite, run_of(suite, "vadd", 0), run_of(suite, "vadd", 1), run_of(suite, "pi", 0))
    whole = run_of(suite, protocol="paper")
    rows = ("pi", "vadd")
    assert table.deviations == [
        ("training.epoch_updates", "10", "100", rows),
        ("training.updates", "40", str(whole.updates), rows),
    ]


def test_the_settings_of_a_row_differ_from_the_paper_only_if_the_paper_has_no_number_for_it(suite):
    settings = {"settings": {"optimizer": {"learning_rate": 0.5}}}
    for paper in ({}, {"20": "1.0"}):
        row = suite.rows["vadd"].model_copy(update=settings | {"paper": {c: Reported.of(n) for c, n in paper.items()}})
        changed = suite.model_copy(update={"rows": suite.rows | {"vadd": row}})
        (table,) = tables(changed, run_of(changed, "vadd"), run_of(changed, "pi"))
        found = [each for each in table.deviations if each.key == "optimizer.learning_rate"]
        assert found == ([] if paper else [("optimizer.learning_rate", "0.5", "0.001", ("vadd",))])


def test_what_differs_from_the_papers_preset_is_listed(suite):
    (table,) = tables(suite, run_of(suite, "vadd", preset="authors"))
    keys = {each.key: (each.here, each.paper) for each in table.deviations}
    assert keys["training.updates"] == ("40", "1000")
    assert keys["data.overlap"] == ("True", "False")
    assert "preset" not in keys


def test_a_run_as_in_the_paper_has_no_deviations(suite):
    (table,) = tables(suite, run_of(suite, protocol="paper"))
    assert table.deviations == []


def test_a_suite_without_the_papers_protocol_lists_no_deviations(tmp_path):
    suite = suite_of(tmp_path)
    suite = suite.model_copy(update={"protocols": {"short": suite.protocols["short"]}})
    (table,) = tables(suite, run_of(suite))
    assert table.deviations == []
