"""Parse the command line, run the command, and turn every error into one line and an exit code.

0: done. 1: something failed on the way. 2: a wrong option or wrong data; nothing was written. 130: stopped by Ctrl-C
or another signal, see ``STOP_SIGNALS``.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import typer
from pydantic import ValidationError
from typer.exceptions import TyperException

import advdrop
from advdrop.lab.choices import STOP_SIGNALS
from advdrop.lab.cli import options
from advdrop.lab.report.text_table import line
from advdrop.suggest import did_you_mean

APP = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["--help", "-h"]})
DATA = typer.Typer(no_args_is_help=True, help="List, download and check data sets.")
PANELS: dict[str, dict[type[Any], str]] = {
    "Train": {options.Train: "train.run_train", options.Compare: "compare.run_compare"},
    "Use": {
        options.Predict: "predict.run_predict",
        options.Serve: "serve.run_serve",
        options.Export: "export.run_export",
    },
    "Results": {
        options.Show: "runs.run_show",
        options.Report: "report.run_report",
        options.Evaluate: "runs.run_evaluate",
        options.Audit: "runs.run_audit",
        options.Explain: "runs.run_explain",
    },
    "Paper": {options.Reproduce: "reproduce.run_reproduce"},
    "Data": {options.DataList: "data.run_list", options.DataGet: "data.run_get", options.DataCheck: "data.run_check"},
}
FUNCTIONS = {command: function for commands in PANELS.values() for command, function in commands.items()}
"""The function that runs each command, by the class of its options."""

for panel, commands in PANELS.items():
    for command in commands:  # the docstring is the help, and its examples come below the options
        about, _, examples = (inspect.getdoc(command) or "").partition("\n\nExamples:\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in about.split("\n\n"))
        epilog = f"Examples:\n{examples}" if examples else None
        app, place = (DATA, None) if panel == "Data" else (APP, panel)
        name = command.__name__.removeprefix("Data").lower()
        app.command(name, help=text, epilog=epilog, rich_help_panel=place)(command)
APP.add_typer(DATA, name="data", rich_help_panel="Data")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"advdrop {advdrop.__version__}")
        raise typer.Exit


@APP.callback(epilog="Start with: advdrop train\nFor the options of a command: advdrop train --help")
def _top(
    version: bool = typer.Option(False, "--version", help="Show the version.", callback=_print_version),
    debug: bool = typer.Option(False, "--debug", help="Show the traceback of an error. Works with every command."),
) -> None:
    """Adversarial dropout for PyTorch (Park, Park, Shin and Moon, AAAI 2018)."""


def parse(arguments: Sequence[str]) -> Any:
    """Return the options of the command, or the exit code if there is nothing to run."""
    try:
        parsed = typer.main.get_command(APP).main(list(arguments), "advdrop", standalone_mode=False)
        if parsed == 130:  # typer has caught Ctrl-C
            raise KeyboardInterrupt
        return parsed
    except TyperException as error:
        if not error.format_message():  # the help was shown instead
            return 2
        raise ValueError(_usage(error)) from error


def _usage(error: TyperException) -> str:
    """Return the complaint with the value that was typed, a suggestion, and where to look."""
    message = error.format_message().replace("Value error, ", "").rstrip(".")
    if isinstance(error.__cause__, ValidationError):
        given = error.__cause__.errors()[0]["input"]
        choices = re.findall(r"'(.*?)'", message.partition(" is not one of ")[2])
        message += did_you_mean(str(given), choices) if choices else f", got {given!r}"
    context = getattr(error, "ctx", None)
    return f"{message}; see {context.command_path} --help" if context else message


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    _open_streams()
    typed = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in typed
    warnings.formatwarning = lambda message, *_, **__: f"advdrop: {message}\n"
    try:
        with _obeyed_signals():
            parsed = parse([word for word in typed if word != "--debug"])
            return parsed if isinstance(parsed, int) else _function(type(parsed))(parsed)
    except KeyboardInterrupt:
        return _complain("stopped", 130, debug)
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        usage = isinstance(error, ValueError | TypeError | OSError)
        message = str(error) if usage or isinstance(error, RuntimeError) else f"{type(error).__name__}: {error}"
        return _complain(message or type(error).__name__, getattr(error, "exit_code", 2 if usage else 1), debug)


def _open_streams() -> None:
    """Open standard streams that were closed (``2>&-``), and print letters that are not in their encoding as escapes.

    Where a stream was closed, the next file that is opened takes its number, and gets what libraries print.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115, PTH123
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def _obeyed_signals() -> Iterator[None]:
    """Let signals that end a process do what Ctrl-C does, so that nothing is left behind. A training saves first."""
    main = threading.current_thread() is threading.main_thread()
    obeyed = [number for number in STOP_SIGNALS if main and signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in obeyed:
            signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number in obeyed:
            signal.signal(number, signal.SIG_DFL)


def _function(command: type[Any]) -> Callable[[Any], int]:
    """Return the function of a command. Its module takes seconds to import, which a terminal shows."""
    module, _, function = FUNCTIONS[command].partition(".")
    terminal = sys.stderr.isatty()
    print("starting ...\r" if terminal else "", end="", file=sys.stderr, flush=True)
    found: Callable[[Any], int] = getattr(import_module(f"advdrop.lab.cli.{module}"), function)
    print("            \r" if terminal else "", end="", file=sys.stderr, flush=True)
    return found


def _complain(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"advdrop: {line(message)}", file=sys.stderr)
    return code
