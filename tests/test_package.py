"""The shape of the package: what may import what, and what is public."""

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import advdrop

SOURCE = Path(advdrop.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
ORDER = ("data models", "config", "suites", "engine", "deploy", "records", "studies", "report", "cli")
"""The folders of the lab: each may import those before it. Data and models do not know each other."""
STEPS = {folder: step for step, folders in enumerate(ORDER) for folder in folders.split()}
LIBRARY = (
    "checks choices eval_mode hidden outputs randomness suggest",
    "masks divergences schedules trust",
    "objectives",
    "step",
    "insertion presets",
    "analysis sklearn",
)
"""The parts of the library: each may import those before it and its neighbors."""
LEVELS = {part: level for level, parts in enumerate(LIBRARY) for part in parts.split()}
STANDARD = {"__future__", *sys.stdlib_module_names}


def imports(path, typing=True):
    """Every module that a file imports: anywhere, also inside functions, and for type checkers alone if wanted."""
    package = [*path.relative_to(SOURCE.parent).parent.parts]
    tree = ast.parse(path.read_text())
    for block in ast.walk(tree):
        if not typing and isinstance(block, ast.If) and getattr(block.test, "id", "") == "TYPE_CHECKING":
            block.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*start, *([node.module] if node.module else [])])
            for alias in node.names:  # from advdrop import lab: the name may be a module
                yield f"{module}.{alias.name}"


def inside(name, module):
    return name == module or name.startswith(f"{module}.")


def library():
    lab = SOURCE / "lab"
    return [path for path in MODULES if lab not in path.parents and path != SOURCE / "__main__.py"]


def test_the_library_does_not_know_the_lab():
    for path in library():
        assert not [name for name in imports(path) if inside(name, "advdrop.lab")], path


def test_the_library_needs_torch_alone():
    for path in library():
        own = {"numpy", "sklearn"} if path.parent == SOURCE / "sklearn" else set()
        assert {name.split(".")[0] for name in imports(path)} <= {"advdrop", "torch"} | own | STANDARD, path


@pytest.mark.parametrize("part", LEVELS)
def test_imports_of_the_library_go_one_way(part):
    later = [other for other, level in LEVELS.items() if level > LEVELS[part]]
    paths = [SOURCE / f"{part}.py"] if (SOURCE / f"{part}.py").is_file() else sorted((SOURCE / part).rglob("*.py"))
    assert paths
    for path in paths:
        # A term names the passes of a step in its types; only what runs counts.
        found = [name for name in imports(path, typing=False) if any(inside(name, f"advdrop.{o}") for o in later)]
        assert not found, path


def test_every_part_of_the_library_has_its_place():
    parts = {path.relative_to(SOURCE).parts[0].removesuffix(".py") for path in library()}
    assert parts - {"__init__"} == set(LEVELS)


@pytest.mark.parametrize("folder", ["", *STEPS])
def test_imports_of_the_lab_go_one_way(folder):
    paths = sorted((SOURCE / "lab" / folder).rglob("*.py")) if folder else sorted((SOURCE / "lab").glob("*.py"))
    assert paths
    forbidden = [other for other, step in STEPS.items() if other != folder and (not folder or step >= STEPS[folder])]
    for path in paths:  # the lab itself names the engine for type checkers alone
        against = [
            name
            for name in imports(path, bool(folder))
            if any(inside(name, f"advdrop.lab.{other}") for other in forbidden)
        ]
        assert not against, path


def test_every_folder_of_the_lab_has_its_place():
    assert {path.parent.name for path in (SOURCE / "lab").glob("*/*.py")} == set(STEPS)


def test_only_the_engine_imports_lightning():
    for path in MODULES:
        lightning = any(inside(name, "lightning") or inside(name, "lightning_fabric") for name in imports(path))
        assert not lightning or path.parent.name == "engine", path


def test_what_is_imported_no_sooner_than_it_is_needed():
    """In a process of its own, one import after the other."""
    report = {path.stem for path in (SOURCE / "lab/report").glob("*.py")} - {"__init__"}
    steps = [
        ("import advdrop", "torch numpy"),
        ("import advdrop.lab.cli.main, advdrop.lab.config.config", "torch lightning_fabric numpy"),
        (f"from advdrop.lab.report import {', '.join(sorted(report))}", "torch lightning_fabric numpy scipy"),
        ("from advdrop.lab.suites.suite import Suite; Suite.load('table1')", "torch lightning_fabric numpy scipy"),
        ("advdrop.VAdD", "lightning_fabric requests pooch scipy sklearn PIL"),
        ("import advdrop.lab.data.sources", "lightning_fabric requests pooch scipy sklearn PIL"),
    ]
    lines = ["import sys"]
    for code, late in steps:
        lines += [code, f"assert not {set(late.split())} & set(sys.modules), {code!r}"]
    lines += ["assert 'torch' in sys.modules"]
    subprocess.run([sys.executable, "-c", "\n".join(lines)], check=True, timeout=300)


def test_public_names_are_there_and_typed():
    typed = {
        alias.name
        for node in ast.walk(ast.parse((SOURCE / "__init__.py").read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("advdrop.")
        for alias in node.names
    }
    assert set(advdrop.__all__) == typed
    assert all(getattr(advdrop, name) is not None for name in advdrop.__all__)
    with pytest.raises(AttributeError, match="no attribute 'VADD'"):
        _ = advdrop.VADD


def test_folders_can_be_reached_without_an_import(monkeypatch):
    for name in ("masks", "schedules", "lab"):
        monkeypatch.delattr(advdrop, name, raising=False)
        assert getattr(advdrop, name) is import_module(f"advdrop.{name}")


def test_nothing_that_is_read_can_run_code():
    text = "\n".join(path.read_text(encoding="utf-8") for path in MODULES)
    assert all("weights_only=True" in call for call in re.findall(r"torch\.load\(.*", text))
    assert all("allow_pickle=False" in call for call in re.findall(r"np\.load\(.*", text))
    assert set(re.findall(r"yaml\.\w*load\w*\(\w+, _Loader\)|yaml\.\w*load\w*", text)) == {
        "yaml.load(text, _Loader)",
        "yaml.safe_load",
    }
    for call in (r"pickle\.load", r"\beval\(", r"\bexec\(", "extractall", "loadmat", r"os\.system", "shell=True"):
        assert not re.search(rf"(?<!\.){call}", text), call
