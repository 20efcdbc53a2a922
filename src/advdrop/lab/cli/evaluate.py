"""``advdrop evaluate``."""

from __future__ import annotations

import json

from advdrop.lab.cli.options import Evaluate
from advdrop.lab.engine.run import evaluate_run


def run(options: Evaluate) -> int:
    """Measure a finished run again."""
    found = evaluate_run(options.run, options.data_dir, options.dataset)
    if options.json_:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    print(f"test error {found['test_error_percent']:.2f} % of {found['images']:,} images ", end="")
    print(f"(recorded: {found['recorded_test_error_percent']:.2f} %)")
    width = max(map(len, found["class_error_percent"]))
    for name, error in found["class_error_percent"].items():
        print(f"  {name:<{width}}  {error:6.2f} %")
    return 0
