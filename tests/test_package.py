"""The shape of the package: what may import what, and what is public."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import advdrop

SOURCE = Path(advdrop.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def modules(*folders):
    """The modules of these folders; ``""`` is the package itself."""
    found = [path for path in MODULES if (path.parent.name if path.parent != SOURCE else "") in folders]
    assert found
    return found


@pytest.mark.parametrize(
    ("folder", "forbidden"),
    [
        ("masks", ("objectives", "models", "data", "engine", "presets", "experiments", "cli")),
        ("models", ("objectives", "data", "engine", "presets", "experiments", "cli")),
        ("objectives", ("data", "engine", "presets", "experiments", "cli")),
        ("data", ("objectives", "models", "engine", "presets", "experiments", "cli")),
        ("experiments", ("engine", "cli")),
        ("engine", ("cli",)),
        ("analysis", ("engine", "cli", "experiments", "presets")),
        ("report", ("analysis", "objectives", "masks", "models", "data")),
    ],
)
def test_imports_go_one_way(folder, forbidden):
    for path in modules(folder):
        for name in imports(path):
            assert not name.startswith(tuple(f"advdrop.{other}" for other in forbidden)), (path.name, name)


def test_the_core_needs_torch_alone():
    allowed = {"advdrop", "torch", "__future__", *sys.stdlib_module_names}
    for path in modules("masks", "models", "objectives", ""):
        own = {"files.py": {"pooch"}, "estimator.py": {"numpy", "sklearn"}}.get(path.name, set())
        assert {name.split(".")[0] for name in imports(path)} <= allowed | own, path


def test_only_the_engine_imports_lightning():
    for path in MODULES:
        lightning = any(name.split(".")[0] == "lightning" for name in imports(path))
        assert not lightning or path.parent.name == "engine", path


def test_help_and_configuration_wait_for_no_torch():
    code = (
        "import sys, advdrop.cli.main, advdrop.experiments.config; "
        "assert not {'torch', 'lightning', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_advdrop_imports_no_torch():
    code = "import sys, advdrop; assert 'torch' not in sys.modules; advdrop.VAdD; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names_are_there_and_typed():
    typed = {
        alias.name
        for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("advdrop.")
        for alias in node.names
    }
    assert set(advdrop.__all__) == typed
    assert all(getattr(advdrop, name) is not None for name in advdrop.__all__)
    code = "import advdrop; advdrop.masks.hamming; advdrop.models.mnist_cnn; advdrop.schedules.ramp_up"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'VADD'"):
        _ = advdrop.VADD


def test_the_report_imports_no_torch():
    code = (
        "import sys\n"
        "from advdrop.report import collect, diagram, explanation, figures, formats, html, pictures, records\n"
        "from advdrop.report import autoencoder_study, statistics, studies, svg, theory_study, verdicts\n"
        "from advdrop.experiments import suite\n"
        "suite.Suite.load('table1')\n"
        "assert not {'torch', 'lightning', 'numpy', 'scipy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
