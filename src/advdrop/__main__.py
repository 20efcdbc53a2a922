"""``python -m advdrop`` and the command ``advdrop``: the command line."""

from __future__ import annotations

import io
import sys


def main() -> int:
    """Run the command line, or say what it needs."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # so that a log file can be followed
    try:
        from advdrop.lab.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "advdrop").split(".")[0] == "advdrop":
            raise
        print(
            f"advdrop: the command line needs {error.name}, which is not installed; pip install 'advdrop[train]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:  # while it is being imported
        print("advdrop: stopped", file=sys.stderr)
        return 130
    return run()


if __name__ == "__main__":
    sys.exit(main())
