"""Every example runs as a user would run it."""

import re
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name, folder=None, quiet=True):
    """What an example prints; one that shows a progress may say it on stderr."""
    command = [sys.executable, EXAMPLES / name]
    own = {"OMP_NUM_THREADS": "1", "HOME": str(folder or EXAMPLES)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=own, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert not (quiet and done.stderr), done.stderr
    return done.stdout


def test_01_plain_torch():
    alone, with_vadd = (float(error) for error in re.findall(r"([\d.]+) % test error", run("01_plain_torch.py")))
    assert with_vadd < alone < 20.0


def test_02_the_engine(tmp_path):
    found = re.findall(r"([\w-]+): ([\d.]+) % test error", run("02_the_engine.py", tmp_path, quiet=False))
    errors = {method: float(error) for method, error in found}
    assert set(errors) == {"dropout", "vadd-kl"}
    assert max(errors.values()) < 30.0
    assert (tmp_path / "runs/02-vadd-kl/model.safetensors").is_file()


def test_03_two_processes(tmp_path):
    errors = re.findall(r"process \d: ([\d.]+) % test error", run("03_two_processes.py", tmp_path))
    assert len(errors) == 2
    assert errors[0] == errors[1]  # one network
    assert float(errors[0]) < 20.0


def test_04_your_own_network(tmp_path):
    said = run("04_your_own_network.py", tmp_path)
    assert "5: Flatten, 128 units (128,)" in said
    plain, adversarial = (float(share) for share in re.findall(r"([\d.]+) % without the worst 4", said))
    assert adversarial > plain


def test_05_your_own_images(tmp_path):
    said = run("05_your_own_images.py", tmp_path, quiet=False)
    assert "1500 training images of (1, 8, 8), 10 classes, 297 for testing" in said
    assert float(re.search(r"([\d.]+) % test error", said)[1]) < 40.0


def test_06_scikit_learn(tmp_path):
    plain, ours = (float(score) for score in re.findall(r": (0\.\d+)", run("06_scikit_learn.py", tmp_path)))
    assert ours > plain > 0.5


def test_07_a_transformer(tmp_path):
    assert int(re.match(r"(\d+) % of 42 sentences right", run("07_a_transformer.py", tmp_path))[1]) > 70


def test_08_lightning(tmp_path):
    error, layers = re.search(
        r"([\d.]+) % test error, (\d) layers left", run("08_lightning.py", tmp_path, quiet=False)
    ).groups()
    assert float(error) < 20.0
    assert layers == "0"


def test_09_accelerate(tmp_path):
    assert float(re.match(r"([\d.]+) % test error", run("09_accelerate.py", tmp_path))[1]) < 20.0


def test_10_timm_style(tmp_path):
    assert float(re.match(r"([\d.]+) % test error", run("10_timm_style.py", tmp_path))[1]) < 20.0


def test_11_averaged_weights(tmp_path):
    last, average = (
        float(error) for error in re.findall(r"([\d.]+) % test error", run("11_averaged_weights.py", tmp_path))
    )
    assert average <= last < 12.0


def test_examples_are_short():
    assert all(len(path.read_text().splitlines()) < 40 for path in EXAMPLES.glob("*.py"))


def test_every_example_is_tested():
    tested = set(re.findall(r"def test_(\d\d_\w+)", Path(__file__).read_text()))
    assert tested == {path.stem for path in EXAMPLES.glob("*.py")}
