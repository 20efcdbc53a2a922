"""The wheel, installed in an environment that has what it asks for and nothing else.

Nothing is downloaded: the packages that it needs, and those that they need, are linked from where the tests run.
"""

import subprocess
import sys
import tarfile
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import advdrop

ROOT = Path(__file__).parents[1]
EXTRAS = sorted(set(metadata.metadata("advdrop").get_all("Provides-Extra")) - {"dev"})


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """What ``make dist`` makes: the wheel and the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def needed(name, extras=(), seen=None):
    """The distributions that this one needs, and those that they need, by name."""
    seen = {} if seen is None else seen
    for text in metadata.requires(name) or []:
        requirement = Requirement(text)
        marker, key = requirement.marker, canonicalize_name(requirement.name)
        if marker and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        if key in seen and requirement.extras <= seen[key]:
            continue
        seen[key] = seen.get(key, set()) | requirement.extras
        needed(key, requirement.extras, seen)
    return seen


def environment(folder, wheel, *extras):
    """A new environment with the wheel and what it needs: its interpreter."""
    venv.create(folder, with_pip=False, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for name in needed("advdrop", extras):
        distribution = metadata.distribution(name)
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    python = folder / "bin/python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], check=True)
    return python


def run(python, code, *arguments):
    done = subprocess.run([python, *arguments, "-c", code], capture_output=True, text=True, cwd=python.parents[1])
    assert done.returncode == 0, done.stderr
    return done.stdout


LIBRARY = """
import importlib.util, torch, advdrop
from torch import nn
assert importlib.util.find_spec("numpy") is None and importlib.util.find_spec("lightning_fabric") is None
torch.manual_seed(0)
x, y, u = torch.randn(8, 4), torch.randint(3, (8,)), torch.randn(8, 4)
objective = advdrop.CrossEntropy() + advdrop.Ramp(1.0) * advdrop.VAdD(delta=0.1) + advdrop.VAT(epsilon=1.0)

own = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), advdrop.AdversarialDropout(p=0.5), nn.Linear(32, 3))
out = advdrop.Step(own, objective)(x, y, unlabeled=u, progress=0.5)
out.loss.backward()
assert own[0].weight.grad.abs().sum() > 0 and set(out.terms) == {"cross_entropy", "vadd_kl", "vat"}

class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower, self.upper = nn.Linear(4, 32), nn.Linear(32, 3)
    def forward(self, x):
        return {"logits": self.upper(torch.relu(self.lower(x)))}

plain = Plain()
print(advdrop.places(plain, x))
assert advdrop.insert(plain, after="lower", delta=0.2) is plain
advdrop.Step(plain, objective)(x, y, unlabeled=u, progress=1.0).loss.backward()
assert plain.lower.weight.grad.abs().sum() > 0
print(advdrop.audit(plain.eval(), [(x, y)]).summary)
print(advdrop.explain(own, x[0]).summary)
assert advdrop.remove(plain) is plain and not plain.lower._forward_hooks
for name in advdrop.__all__:
    try:
        getattr(advdrop, name)
    except ImportError as error:
        assert "pip install 'advdrop[" in str(error), (name, error)
        print("extra:", name)
"""


def test_with_torch_alone_the_library_works_and_the_rest_says_what_it_needs(built, tmp_path):
    python = environment(tmp_path / "env", built[0])
    said = run(python, LIBRARY)
    assert {line.split()[1] for line in said.splitlines() if line.startswith("extra:")} == {
        "AdversarialDropoutClassifier",
        "AdversarialDropoutRegressor",
    }
    command = subprocess.run([python.with_name("advdrop"), "train"], capture_output=True, text=True)
    assert command.returncode == 2
    assert "pip install 'advdrop[train]'" in command.stderr
    assert "Traceback" not in command.stderr


USES = {
    "docs": "import furo, myst_parser, sphinx",
    "examples": "import transformers, sklearn, advdrop; advdrop.AdversarialDropoutClassifier",
    "export": "import onnx, onnxruntime, onnxscript",
    "serve": "import fastapi, multipart, uvicorn",
    "transformers": """
from advdrop.integrations.transformers import AdversarialDropoutTrainer
import accelerate
""",
    "sklearn": """
import numpy as np, advdrop
x = np.random.default_rng(0).normal(size=(60, 3))
y = np.where(np.arange(60) < 30, (x[:, 0] > 0).astype(int), -1)
assert advdrop.AdversarialDropoutClassifier(updates=20, random_state=0).fit(x, y).score(x, x[:, 0] > 0) > 0.7
""",
    "tensorboard": "import tensorboard, torch.utils.tensorboard",
    "train": """
from advdrop.lab.cli.main import main
assert main(["train", "--updates", "3", "--quiet", "--out", "run"]) == 0
assert main(["audit", "run", "--images", "5"]) == 0
assert main(["report", "run", "-o", "page.html"]) == 0
import importlib, pkgutil, scipy.stats, sklearn.linear_model, advdrop
others = ("__main__", "deploy.server", "integrations.transformers")  # each has an extra of its own, or runs
for module in pkgutil.walk_packages(advdrop.__path__, "advdrop."):
    module.name.endswith(others) or importlib.import_module(module.name)
""",
}


@pytest.mark.parametrize("extra", EXTRAS)
def test_each_extra_brings_what_it_is_for(built, tmp_path, extra):
    run(environment(tmp_path / "env", built[0], extra), USES[extra])


def test_the_sdist_has_what_its_tests_need(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"Makefile", "constraints.txt", "pyproject.toml", "tests/test_dist.py", "results/demo.json"} <= names
    assert not any(
        name.startswith((".git/", ".venv", "runs", "docs/_build")) or "__pycache__" in name for name in names
    )


def test_there_is_one_version():
    assert metadata.version("advdrop") == advdrop.__version__
    assert f"version: {advdrop.__version__}\n" in (ROOT / "CITATION.cff").read_text()
