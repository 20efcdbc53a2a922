"""A small suite of seconds, which the tests of suites, of the command line and of the cluster share."""

from __future__ import annotations

from pathlib import Path

SMALL = """
title: A small suite
about: For tests.
source: nobody
repeats: 5
columns:
  few: {{name: "30 labels", dataset: digits, labels: 30}}
rows:
  quoted: {{name: Quoted, quoted: Somebody (2000), paper: {{few: "9.99"}}}}
  dropout: {{name: Plain, method: dropout, paper: {{few: "20.00 ± 1.00"}}}}
  vadd-kl: {{name: VAdD (KL), method: vadd-kl, paper: {{few: "**15.00 ± 1.00**"}}}}
  random: {{name: Random flips, method: vadd-kl, settings: {{objective: {{terms: {{vadd-kl: {{search: random}}}}}}}}}}
compare: [[vadd-kl, dropout], [random, vadd-kl]]
protocols:
  paper: {{about: the whole length, seeds: 5}}
  short:
    about: a few updates
    seeds: 2
    settings:
      network: {{hidden: [16, 12], delta: 0.25}}
      training: {{updates: {updates}, epoch_updates: 10}}
      engine: {{accelerator: cpu, checkpoint_seconds: 0.0}}
"""


def small_suite(folder: Path, updates: int = 20, name: str = "small") -> Path:
    """Write the suite to a folder and return its file."""
    path = folder / f"{name}.yaml"
    path.write_text(SMALL.format(updates=updates), encoding="utf-8")
    return path
