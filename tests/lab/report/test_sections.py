from advdrop.lab.report.collect import results_of
from advdrop.lab.report.sections import HELD, REVERSED, UNKNOWN, verdicts
from ledger import run_of


def found(suite, vadd, pi):
    runs = [run_of(suite, "vadd", seed, (40.0, error)) for seed, error in enumerate(vadd)]
    runs += [run_of(suite, "pi", seed, (40.0, error)) for seed, error in enumerate(pi)]
    (results,) = results_of(runs, {suite.key: suite})
    return verdicts(results)


def test_a_lower_error_on_every_seed_held(suite):
    seen = found(suite, [4.0, 4.1, 4.2], [5.0, 5.1, 5.3])
    assert [line.split(":")[0] for line in seen[HELD]] == ["VAdD (KL) below Π model, 20 labels"]
    assert "difference -1.03 ± 0.14, n = 3, p: " in seen[HELD][0]
    assert REVERSED not in seen


def test_a_higher_one_is_the_other_way_round(suite):
    seen = found(suite, [5.0, 5.1, 5.3], [4.0, 4.1, 4.2])
    assert HELD not in seen
    assert "difference +1.03" in seen[REVERSED][0]


def test_what_could_be_chance_or_was_not_run_is_not_known(suite):
    assert "difference -0.07" in found(suite, [4.0, 4.4, 4.2], [4.3, 4.2, 4.3])[UNKNOWN][0]
    assert "difference -1.00 in a single run" in found(suite, [4.0], [5.0])[UNKNOWN][0]
    seen = found(suite, [4.0, 4.1], [])
    assert any(line.endswith("Π model, 20 labels: not run") for line in seen[UNKNOWN])
    assert list(seen) == ["What is not known yet"]
