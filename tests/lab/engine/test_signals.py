import io
import signal
import threading

import pytest

from advdrop.lab.choices import STOP_SIGNALS
from advdrop.lab.engine import signals
from advdrop.lab.engine.progress import Progress
from advdrop.lab.engine.signals import StoppedError, stop_signals


def quiet(text):
    """Say nothing."""


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(signals.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_first_signal_is_noted_and_told(number):
    before, file = [signal.getsignal(each) for each in STOP_SIGNALS], io.StringIO()
    with stop_signals(Progress(updates=10, done=0, name="pi", file=file).say) as received:
        assert not received()
        signal.raise_signal(number)
        assert received()
    assert file.getvalue() == "finishing this update, then saving; a second signal stops at once\n"
    assert [signal.getsignal(each) for each in STOP_SIGNALS] == before


def test_a_second_signal_is_obeyed_at_once(clock):
    with stop_signals(quiet):
        signal.raise_signal(signal.SIGTERM)
        clock[0] += 1.5
        with pytest.raises(StoppedError, match="stopped at once; resume from the last checkpoint"):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_signals_at_once_are_one(clock):
    """As torchrun, or a terminal that closes, sends them."""
    with stop_signals(quiet) as received:
        for _ in range(3):
            signal.raise_signal(signal.SIGHUP)
            clock[0] += 0.3
    assert received()


def test_what_was_ignored_stays_ignored():
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals(quiet) as received:
            signal.raise_signal(signal.SIGHUP)
            assert not received()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_terminal_that_is_gone_does_not_matter():
    class Gone(io.StringIO):
        def write(self, text):
            raise OSError("input/output error")

    with stop_signals(Progress(updates=10, done=0, name="pi", file=Gone()).say) as received:
        signal.raise_signal(signal.SIGHUP)
    assert received()


def test_another_thread_catches_no_signals():
    def catch():
        with stop_signals(quiet):
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    thread = threading.Thread(target=catch)
    thread.start()
    thread.join()


@pytest.mark.parametrize("error", [RuntimeError, ImportError])
def test_a_signal_while_something_is_written_or_imported_is_noted(error):
    def say(text):
        raise error("partially initialized module")

    with stop_signals(say) as received:
        signal.raise_signal(signal.SIGUSR1)
    assert received()
