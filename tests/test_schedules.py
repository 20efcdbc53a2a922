import math

import pytest

from advdrop.schedules import Ramp, adam_beta1, learning_rate, ramp_down, ramp_up

OVER = (0.0, 1e-9, 30 / 100, 50 / 300, 80 / 300, 1.0)


@pytest.mark.parametrize(("over", "epochs"), [(80, 300), (30, 100)])
def test_ramp_up_is_the_papers_at_every_epoch(over, epochs):
    for epoch in range(epochs + 1):
        expected = math.exp(-5 * (1 - epoch / over) ** 2) if epoch < over else 1.0
        assert ramp_up(epoch / epochs, over / epochs) == pytest.approx(expected, rel=1e-12)


def test_ramp_down_is_the_codes_at_every_epoch():
    for epoch in range(251):
        assert ramp_down(epoch / 300, over=50 / 300) == pytest.approx(1.0, rel=1e-12)
    for e in range(51):
        assert ramp_down((250 + e) / 300, over=50 / 300) == pytest.approx(math.exp(-((0.5 * e) ** 2) / 50), rel=1e-9)


@pytest.mark.parametrize("over", [o for o in OVER if o])
def test_the_ends_of_the_ramps(over):
    assert ramp_up(0.0, over) == pytest.approx(math.exp(-5))
    assert ramp_up(over, over) == ramp_up(1.0, over) == 1.0
    assert ramp_up(over / 2, over) == pytest.approx(math.exp(-5 / 4))
    assert ramp_down(0.0, over) == ramp_down(1 - over, over) == 1.0
    assert ramp_down(1.0, over) == pytest.approx(math.exp(-12.5))


def test_no_ramp_is_always_one():
    for progress in (0.0, 0.5, 1.0):
        assert ramp_up(progress, over=0.0) == ramp_down(progress, over=0.0) == 1.0
        assert ramp_up(progress, over=0) == ramp_down(progress, over=0) == 1.0


@pytest.mark.parametrize("over", OVER)
def test_the_ramps_are_monotone_between_zero_and_one(over):
    grid = [i / 1000 for i in range(1001)]
    ups, downs = [ramp_up(t, over) for t in grid], [ramp_down(t, over) for t in grid]
    assert ups == sorted(ups)
    assert downs == sorted(downs, reverse=True)
    assert all(0 < value <= 1 for value in ups + downs)


def test_the_learning_rate_is_multiplied_by_both_ramps():
    up, down = 80 / 300, 50 / 300
    assert learning_rate(0.0, 0.003, up, down) == pytest.approx(0.003 * math.exp(-5))
    assert learning_rate(0.5, 0.003, up, down) == 0.003
    assert learning_rate(1.0, 0.003, up, down) == pytest.approx(0.003 * math.exp(-12.5))
    overlapping = learning_rate(0.5, 2.0, up=1.0, down=1.0)
    assert overlapping == pytest.approx(2.0 * math.exp(-5 / 4) * math.exp(-12.5 / 4))


def test_adams_beta1_goes_from_point_nine_to_point_five():
    down = 50 / 300
    assert adam_beta1(0.0, down) == adam_beta1(0.8, down) == 0.9
    r = math.exp(-((0.5 * 20) ** 2) / 50)
    assert adam_beta1(270 / 300, down) == pytest.approx(r * 0.9 + (1 - r) * 0.5, rel=1e-9)
    assert adam_beta1(1.0, down) == pytest.approx(0.5, abs=1e-5)
    assert adam_beta1(1.0, down, start=0.8, end=0.2) == pytest.approx(0.2, abs=1e-5)


def test_a_ramp_is_a_weight_times_the_ramp_up():
    assert Ramp(30.0, over=0.3)(0.15) == 30.0 * ramp_up(0.15, 0.3)
    assert Ramp()(1.0) == 1.0
    assert Ramp(25.0, over=0.0)(0.0) == 25.0
    assert Ramp(2.0, 0.5) == Ramp(2.0, 0.5) != Ramp(2.0, 0.4)


@pytest.mark.parametrize(
    ("progress", "over", "error", "message"),
    [
        (-0.1, 0.5, ValueError, r"progress must be in \[0, 1\], got -0\.1"),
        (80, 0.5, ValueError, r"progress must be in \[0, 1\], got 80"),
        (float("nan"), 0.5, ValueError, r"progress must be in \[0, 1\], got nan"),
        ("half", 0.5, TypeError, r"progress must be a number.*'half' \(str\)"),
        (0.5, 80, ValueError, r"over must be in \[0, 1\], got 80"),
        (0.5, True, TypeError, r"over must be a number.*True \(bool\)"),
    ],
)
def test_errors(progress, over, error, message):
    for function in (ramp_up, ramp_down, lambda t, over: Ramp(1.0, over)(t)):
        with pytest.raises(error, match=message):
            function(progress, over)


def test_a_ramp_checks_its_options_at_once():
    with pytest.raises(ValueError, match=r"over must be in \[0, 1\], got 80"):
        Ramp(1.0, over=80)
    with pytest.raises(ValueError, match="maximum must be positive"):
        Ramp(-3.0)
    assert Ramp(0.0)(1.0) == 0.0
