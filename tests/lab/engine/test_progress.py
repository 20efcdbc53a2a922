import io

from advdrop.lab.engine import progress
from advdrop.lab.engine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_it_is_a_line_an_epoch_with_the_time_that_is_left(monkeypatch):
    clock = iter([100.0, 130.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    file = io.StringIO()
    shown = Progress(updates=100, done=20, name="pi", file=file)
    for _ in range(40):
        shown.advance()
    shown.epoch(60, {"train/loss": 0.12345, "test/error_percent": 4.2, "beta1": 0.9})
    shown.close()
    # 40 updates took 30 seconds, 40 are left.
    assert file.getvalue() == "pi  update 60/100  loss 0.1235  test error 4.20 %  0:00:30 done, 0:00:30 left\n"


def test_on_a_terminal_it_is_a_bar():
    file = Terminal()
    shown = Progress(updates=10, done=4, name="pi", file=file)
    for _ in range(6):
        shown.advance()
    shown.epoch(10, {"train/loss": 0.5})
    shown.say("a word")
    shown.close()
    assert "10/10" in file.getvalue()
    assert "loss 0.5000" in file.getvalue()
    assert "a word\n" in file.getvalue()


def test_quiet_is_quiet():
    file = Terminal()
    shown = Progress(updates=10, done=0, name="pi", file=file, show=False)
    shown.advance()
    shown.epoch(1, {"train/loss": 0.5})
    shown.say("a word")
    shown.close()
    assert file.getvalue() == ""
