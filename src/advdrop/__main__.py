"""``python -m advdrop`` and the command ``advdrop``: the command line."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or say what it needs."""
    try:
        from advdrop.cli.main import main as run
    except ModuleNotFoundError as error:
        if (error.name or "advdrop").split(".")[0] == "advdrop":
            raise
        print(
            f"advdrop: the command line needs {error.name}, which is not installed; pip install 'advdrop[train]'",
            file=sys.stderr,
        )
        return 2
    return run()


if __name__ == "__main__":
    sys.exit(main())
