"""``advdrop explain``."""

from __future__ import annotations

from pathlib import Path

from advdrop.analysis.explain import explain
from advdrop.lab.cli.options import Explain
from advdrop.lab.engine.companion import main_network
from advdrop.lab.engine.run import trained
from advdrop.lab.files import write_text
from advdrop.lab.report.charts import standalone
from advdrop.lab.report.explanation import figure

SHOWN = 20
"""How many of the flipped units are listed."""


def run(options: Explain) -> int:
    """Draw what the mask search does with one test image."""
    network, data, preprocess = trained(options.run, options.data_dir, options.dataset)
    if not 0 <= options.image < len(data.test):
        raise ValueError(f"--image must be from 0 to {len(data.test) - 1}, got {options.image}")
    x, label = preprocess(data.test.x[options.image : options.image + 1])[0], int(data.test.y[options.image])
    title = f"Test image {options.image} of {data.name}: {data.classes[label]}"
    found = explain(
        main_network(network),
        x,
        label,
        target=options.target,
        delta=options.delta,
        seed=options.seed,
        classes=data.classes,
        title=title,
    )
    out = options.out or Path(f"explain-{options.image}.svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    drawn = figure(found)
    write_text(out, standalone(drawn))
    print(f"{title}. {found.summary}")
    first, more = found.flips[:SHOWN], len(found.flips) - SHOWN
    units = ", ".join(map(str, first)) + (f" and {more} more" if more > 0 else "")
    print(f"flipped units, the largest gain first: {units or 'none'}")
    print(f"the figure is {out}")
    return 0
