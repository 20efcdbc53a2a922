"""Commands in the process of a test."""

from __future__ import annotations

import pytest

from advdrop.lab.cli.main import main


def says(capsys: pytest.CaptureFixture[str], *typed: object) -> tuple[int, str, str]:
    """The exit code of a command, what it printed, and what it wrote to the standard error."""
    code = main([*map(str, typed)])
    said = capsys.readouterr()
    return code, said.out, said.err
