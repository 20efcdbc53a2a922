"""Every example runs as a user would run it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name):
    command = [sys.executable, EXAMPLES / name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=True, env={"OMP_NUM_THREADS": "1"}
    )
    assert not done.stderr
    return done.stdout


def test_01_plain_torch():
    alone, with_vadd = (float(error) for error in re.findall(r"([\d.]+) % test error", run("01_plain_torch.py")))
    assert with_vadd < alone < 20.0


def test_every_example_is_tested():
    tested = set(re.findall(r"def test_(\d\d_\w+)", Path(__file__).read_text()))
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}
