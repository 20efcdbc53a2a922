"""``python -m advdrop`` and the command ``advdrop``: the command line."""

from __future__ import annotations

import io
import os
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
    code = run()
    if _is_another_process():
        # A thread of gloo may still hold a tensor. It aborts the process if it lets go of it while Python ends.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def _is_another_process() -> bool:
    """Return True in all processes of a distributed training but the first."""
    if (torch := sys.modules.get("torch")) is None or not torch.distributed.is_available():
        return False
    return bool(torch.distributed.is_initialized() and torch.distributed.get_rank() > 0)


if __name__ == "__main__":
    sys.exit(main())
