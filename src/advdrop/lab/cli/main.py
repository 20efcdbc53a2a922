"""Parse, dispatch, and turn every mistake into one line and an exit code.

0: done. 1: it went wrong on the way. 2: it was asked for wrongly, and nothing was left behind. 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_settings import CliApp, CliSettingsSource, SettingsError, get_subcommand

import advdrop
from advdrop.lab.cli import options
from advdrop.suggest import did_you_mean


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in typed
    warnings.formatwarning = lambda message, *_, **__: f"advdrop: {message}\n"
    try:
        return _dispatch(_parse(typed))
    except SystemExit as stop:  # --help; and what Lightning makes of a second signal
        asked = (stop.code == 0 and "--help" in typed) or "-h" in typed
        return 0 if asked else _complain("stopped at once; what the last checkpoint has can be resumed", 130, debug)
    except KeyboardInterrupt:
        return _complain("stopped", 130, debug)
    except BrokenPipeError:  # whoever was reading, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _complain(_told(error), _code(error), debug)


def _code(error: Exception) -> int:
    """The exit code of what went wrong; an error may bring its own."""
    asked_wrongly = isinstance(error, ValueError | TypeError | OSError)
    return int(getattr(error, "exit_code", 2 if asked_wrongly else 1))


def _told(error: Exception) -> str:
    own = isinstance(error, ValueError | TypeError | OSError | RuntimeError)
    return str(error) or type(error).__name__ if own else f"{type(error).__name__}: {error}"


def _parse(typed: list[str]) -> BaseModel:
    try:
        source: CliSettingsSource[Any] = CliSettingsSource(options.Advdrop, formatter_class=Help)
        return CliApp.run(options.Advdrop, cli_args=typed, cli_settings_source=source)
    except SettingsError as error:
        raise ValueError(_unparsed(str(error), typed)) from None
    except ValidationError as error:
        raise ValueError(_invalid(error)) from None


def _dispatch(parsed: BaseModel) -> int:
    if getattr(parsed, "version", False):
        print(f"advdrop {advdrop.__version__}")
        return 0
    command = get_subcommand(parsed, is_required=False)
    if command is None:
        main(["--help"])
        return 2
    if isinstance(command, options.Data):
        command = get_subcommand(command, is_required=False)
        if command is None:
            main(["data", "--help"])
            return 2
    # The commands import torch and Lightning: seconds, which only those who need them should wait for.
    name = re.sub(r"(?<=[a-z])[A-Z].*", "", type(command).__name__).lower()
    terminal = sys.stderr.isatty()
    if terminal:
        print("starting ...", end="", file=sys.stderr, flush=True)
    module = import_module(f"advdrop.lab.cli.{name}")
    if terminal:
        print("\r            \r", end="", file=sys.stderr, flush=True)
    code: int = module.run(command)
    return code


def _complain(message: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"advdrop: {' '.join(message.split())}", file=sys.stderr)
    return code


def _unparsed(message: str, typed: list[str]) -> str:
    """What argparse could not make sense of, in one line."""
    message = message.removeprefix("error parsing CLI: ").removeprefix("Error parsing CLI: ")
    if message.startswith("unrecognized arguments: "):
        unknown = message.removeprefix("unrecognized arguments: ").split()[0]
        model = _command(typed)
        known = [f"--{name.replace('_', '-')}" for name in model.model_fields]
        where = "" if model is options.Advdrop else f" of advdrop {typed[0]}"
        return f"there is no option {unknown}{did_you_mean(unknown, known)}; the options{where} are in its --help"
    if found := re.match(r"argument \{.*\}: invalid choice: '(.*?)' \(choose from (.*)\)", message):
        known = re.findall(r"'(.*?)'", found[2]) or re.split(r", *", found[2])
        return f"there is no command {found[1]!r}{did_you_mean(found[1], known)}; there are {', '.join(known)}"
    return message


def _invalid(error: ValidationError) -> str:
    """What pydantic did not accept, in one line."""
    first = error.errors(include_url=False)[0]
    names = [str(part) for part in first["loc"] if isinstance(part, str) and re.fullmatch(r"[a-z_]+", part)]
    option = next((name for name in reversed(names) if name not in ("int", "literal")), "")
    given = first["input"]
    if option == "labels":
        return f"--labels takes a number or 'all', got {given!r}"
    if first["type"] == "extra_forbidden":
        return f"there is no option --{option.replace('_', '-')}"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return f"--{option.replace('_', '-')} {message}, got {given!r}"


def _command(typed: list[str]) -> type[BaseModel]:
    model: type[BaseModel] = options.Advdrop
    for word in typed:
        field = model.model_fields.get(word)
        inner = [t for t in getattr(field and field.annotation, "__args__", ()) if isinstance(t, type)]
        if field is None or not inner or not issubclass(inner[0], BaseModel):
            break
        model = inner[0]
    return model


class Help(argparse.RawDescriptionHelpFormatter):
    """argparse's help with the option's own name for its value, and no defaults that say nothing."""

    def __init__(self, prog: str, **more: Any) -> None:
        super().__init__(prog, **{"max_help_position": 28, **more})

    def _get_default_metavar_for_optional(self, action: argparse.Action) -> str:
        return action.dest.rpartition(".")[2].rpartition(":")[2].upper()

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        if isinstance(action.metavar, str) and not action.metavar.startswith("{") and action.option_strings:
            action.metavar = action.option_strings[-1].lstrip("-").replace("-", "_").upper()
        return super()._metavar_formatter(action, default_metavar)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return super()._fill_text(inspect.cleandoc(text), width, indent)

    def _expand_help(self, action: argparse.Action) -> str:
        return re.sub(r" ?\((default: (None|False|null|\[\])|required)\)", "", super()._expand_help(action))
