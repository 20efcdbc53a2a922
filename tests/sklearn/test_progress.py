"""When a fit shows its progress, and where."""

import pytest

from advdrop.sklearn import progress
from advdrop.sklearn.progress import Progress


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test moves."""
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def fit(verbose, clock, seconds=1.0, parts=4):
    with Progress(verbose) as told:
        for part in range(parts):
            clock[0] += seconds
            told.training("labels only", part + 1, parts, 0.5)
        told.answer = "It helped."


def test_a_long_fit_shows_a_bar_in_a_terminal_and_removes_it(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    fit("auto", clock)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("#") == 22 + 30  # the third and the fourth second
    assert "] labels only: 75 %, loss 0.5000" in err
    assert "50 %" not in err
    assert err.endswith("\r\033[K")
    assert "\n" not in err


@pytest.mark.parametrize(
    ("verbose", "terminal", "seconds"), [("auto", False, 9.0), ("auto", True, 0.1), (False, True, 9.0)]
)
def test_nothing_is_written(verbose, terminal, seconds, clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    fit(verbose, clock, seconds)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("terminal", [True, False])
def test_what_is_asked_for_is_written_at_once(terminal, clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    fit(True, clock, 0.0, parts=20)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith("It helped.\n")
    assert err.count("\n") == (1 if terminal else 5)
    assert err.count("\r") == (21 if terminal else 0)


def test_a_fit_that_fails_leaves_no_bar(clock, capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    told = Progress(1)
    with pytest.raises(ZeroDivisionError), told:
        [told.training("labels only", 1, parts, 0.5) for parts in (4, 0)]
    assert capsys.readouterr().err.endswith("\r\033[K")


def test_a_process_without_a_standard_error(clock, monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    fit("auto", clock, 9.0)
