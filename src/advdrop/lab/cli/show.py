"""``advdrop show``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from advdrop.lab.cli.options import Show
from advdrop.lab.engine.progress import duration
from advdrop.lab.engine.rundir import RunDirectory
from advdrop.lab.report.text_table import table


def run_show(options: Show) -> int:
    """Show the details of one run, or a table of several."""
    runs = [RunDirectory.open(path) for given in options.runs for path in runs_in(given)]
    print(details(runs[0]) if len(runs) == 1 else overview(runs))
    return 0


def runs_in(path: Path) -> list[Path]:
    """Return ``path`` if it is a run, else the runs in it, such as those of ``advdrop compare``."""
    found = sorted(config.parent for config in path.glob("*/config.yaml"))
    return [path] if (path / "config.yaml").is_file() or not found else found


def overview(runs: Sequence[RunDirectory]) -> str:
    """Return a row for each run."""
    lines = []
    for found in runs:
        config, rows = found.config, found.metrics()
        errors = [f"{row['test/error_percent']:.2f}" for row in rows if "test/error_percent" in row]
        done = int(rows[-1]["update"]) if rows else 0
        state = "finished" if found.finished else f"{done}/{config.training.updates} updates"
        what = [found.path.name, config.dataset, str(config.labels), config.method, str(config.seed)]
        lines.append([*what, errors[-1] if errors else "", state])
    return table(["run", "dataset", "labels", "method", "seed", "test error %", "state"], lines)


def details(found: RunDirectory) -> str:
    """Return the configuration, the curves and the result of a run."""
    config, rows = found.config, found.metrics()
    width = max((len(key.removeprefix("search/")) for row in rows for key in row), default=0)
    lines = [
        f"{found.path}",
        f"  {config.method} on {config.dataset}, {config.labels} labels, seed {config.seed}, preset {config.preset}",
        f"  {config.network.name}, {config.training.updates:,} updates",
    ]
    searches = sorted({key for row in rows for key in row if key.startswith("search/")})
    for key in ("train/loss", "validation/error_percent", "test/error_percent", *searches):
        if curve := [row[key] for row in rows if key in row]:
            label = key.removeprefix("search/")
            lines.append(f"  {label:<{width}}  {sparkline(curve)}  {curve[0]:.4g} → {curve[-1]:.4g}")
    if found.finished:
        result = found.result
        lines.append(f"  test error {result['test_error_percent']:.2f} % after the last epoch")
        lines.append(f"  {result['milliseconds_per_update']:.1f} ms per update, {duration(result['seconds'])} in all")
        lines.append(f"  weights: {found.model}")
    else:
        lines.append(f"  not finished; continue with: {found.how_to_resume}")
    return "\n".join(lines)


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return a curve in one line.

    >>> sparkline([0.0, 1.0, 2.0, 7.0])
    '▁▂▃█'
    """
    step = max(1, -(-len(values) // width))
    shown = list(values)[::-step][::-1]
    low, high = min(shown), max(shown)
    span = (high - low) or 1.0
    return "".join("▁▂▃▄▅▆▇█"[int(7 * (value - low) / span)] for value in shown)
