"""The pages: every block of code runs, every public name is documented, and they build without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import advdrop
from advdrop.cli.main import _parse

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(DOCS.glob("*.md"))
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_of_code_runs(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "<docs>", "exec"), {"__name__": "__main__"})


def test_there_are_blocks():
    assert len(BLOCKS) > 8


def test_every_public_name_is_documented():
    documented = set(re.findall(r"auto\w+:: advdrop\.(\w+)$", (DOCS / "api.md").read_text(), re.MULTILINE))
    assert documented == set(advdrop.__all__)


def test_every_public_name_has_words():
    for name in advdrop.__all__:
        assert (getattr(advdrop, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_the_pages_parse(page):
    for command in re.findall(r"^advdrop (.+?)(?:  +#.*)?$", page.read_text(), re.MULTILINE):
        if not command.endswith("\\") and "tcp://" not in command:
            _parse(command.replace("*", "x").split())


def test_the_pages_build_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", DOCS, tmp_path / "html"]
    done = subprocess.run(
        [*command, "-d", tmp_path / "doctrees"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    links = set()
    for page in (tmp_path / "html").glob("*.html"):
        links |= {link.split("#")[0] for link in re.findall(r'href="([^":]+)"', page.read_text())}
    missing = [link for link in links if link and not (tmp_path / "html" / link.split("?")[0]).exists()]
    assert missing == []


def test_what_the_paper_is_called_here_exists():
    from advdrop import masks, models

    known = {name for module in (advdrop, masks, models) for name in dir(module)}
    section = (DOCS / "method.md").read_text().split("## From the paper to the code")[1].split("\n## ")[0]
    names = set(re.findall(r"\b([A-Za-z_]+)\(", section))
    assert len(names) > 15
    assert names <= known
