import re
import socket
import subprocess
from pathlib import Path

import pytest
import torch

from advdrop.lab.environment import commit, machine, versions


def repository(path, name="src/advdrop"):
    package = path / name
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (path / "pyproject.toml").write_text("")
    for command in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"]):
        subprocess.run(["git", *command], cwd=path, check=True)
    return package


def test_the_commit_is_that_of_the_checkout_and_says_if_it_was_changed(tmp_path):
    package = repository(tmp_path)
    head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=tmp_path, capture_output=True, text=True).stdout.strip()
    assert commit(package) == head
    (package / "__init__.py").write_text("x = 1\n")
    assert commit(package) == f"{head}+changes"


def test_a_package_installed_inside_someone_elses_repository_has_no_commit(tmp_path):
    repository(tmp_path)
    inside = tmp_path / ".venv" / "lib" / "site-packages" / "advdrop"
    inside.mkdir(parents=True)
    assert commit(inside) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "cpu family\t: 25\nmodel\t\t: 17\nmodel name\t: A B\n\nmodel\t: 1\nmodel name\t: C\n",
            "A B, family 25, model 17",
        ),
        ("model name\t: A B\n", "A B"),
        ("Processor : nothing that is known\n", "old one"),
    ],
)
def test_processors_with_one_name_are_told_apart(text, name, monkeypatch):
    monkeypatch.setattr(Path, "read_text", lambda _: text)
    monkeypatch.setattr("platform.processor", lambda: "old one")
    assert machine()["processor"] == name


def test_a_record_names_versions_and_hardware_and_no_one():
    assert re.match(r"\d+\.\d+", versions()["torch"])
    found = machine()
    assert found["cores"] >= 1
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert socket.gethostname() not in str(found)
    assert str(Path.home()) not in str(found)
