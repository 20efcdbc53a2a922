import io

from advdrop.lab.engine import progress
from advdrop.lab.engine.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_elsewhere_it_is_a_line_an_epoch_with_the_time_that_is_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    file = io.StringIO()
    with Progress(updates=100, done=20, name="pi", file=file) as shown:
        for _ in range(40):
            now[0] += 0.75
            shown.advance()
        shown.epoch({"train/loss": 0.12345, "test/error_percent": 4.2, "beta1": 0.9})
    # 40 updates took 30 seconds, 40 are left.
    assert file.getvalue() == "pi  update 60/100  loss 0.1235  test error 4.20 %  0:00:30 done, 0:00:30 left\n"


def test_on_a_terminal_it_is_a_bar(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    file = Terminal()
    with Progress(updates=10, done=4, name="pi [0]", file=file) as shown:
        for _ in range(6):
            shown.advance()
        shown.epoch({"train/loss": 0.5})
        shown.say("a word [1]")
    assert "10/10" in file.getvalue()
    assert "loss 0.5000" in file.getvalue()
    assert "pi [0]" in file.getvalue()
    assert "a word [1]\n" in file.getvalue()


def test_quiet_is_quiet():
    file = Terminal()
    with Progress(updates=10, done=0, name="pi", file=file, show=False) as shown:
        shown.advance()
        shown.epoch({"train/loss": 0.5})
        shown.say("a word")
    assert file.getvalue() == ""


def test_a_dumb_terminal_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    file = Terminal()
    with Progress(updates=10, done=0, name="pi", file=file) as shown:
        shown.advance()
        shown.epoch({"train/loss": 0.5})
    assert file.getvalue().startswith("pi  update 1/10  loss 0.5000  ")


def test_it_tells_how_many_updates_are_done():
    told = []
    with Progress(updates=10, done=4, name="pi", show=False, tell=told.append) as shown:
        shown.advance()
    assert told == [4, 5]
