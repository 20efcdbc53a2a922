"""The pages: every block of code runs, every public name is documented, and they build without a warning."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import advdrop
from advdrop.lab.cli.main import main, parse

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
    page = (DOCS / "api.md").read_text()
    documented = set(re.findall(r"auto\w+:: advdrop\.(\w+)$", page, re.MULTILINE))
    assert "objectives" in documented  # a module: all of its names, so that a new method needs no line here
    listed = set(advdrop.objectives.__all__) - {"Combination", "Objective", "Term"}
    assert (documented - {"objectives"}) | listed == set(advdrop.__all__)
    assert not documented & listed


def test_every_public_name_has_words():
    for name in advdrop.__all__:
        assert (getattr(advdrop, name).__doc__ or "").strip(), name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_on_the_pages_parse(page):
    for command in re.findall(r"^advdrop (.+?)(?:  +#.*)?$", page.read_text(), re.MULTILINE):
        if not command.endswith("\\") and "tcp://" not in command:
            parse(command.replace("*", "x").split())


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


def test_the_gallery_has_every_figure_once_with_a_sentence():
    shown = re.findall(r"!\[[^\]]{20,}\]\(images/([^)]+)\)\n\n(?=[A-Z])", (DOCS / "gallery.md").read_text())
    assert sorted(shown) == sorted(path.name for path in (DOCS / "images").iterdir())


def test_what_the_paper_is_called_here_exists():
    from advdrop import masks
    from advdrop.lab import models

    known = {name for module in (advdrop, masks, models) for name in dir(module)}
    section = (DOCS / "method.md").read_text().split("## From the paper to the code")[1].split("\n## ")[0]
    names = set(re.findall(r"\b([A-Za-z_]+)\(", section))
    assert len(names) > 15
    assert names <= known


def test_tests_that_a_page_names_exist():
    tests = "".join(path.read_text() for path in DOCS.parent.glob("tests/**/test_*.py"))
    named = [name for page in PAGES for name in re.findall(r"`(test_\w+)`", page.read_text())]
    assert len(named) > 20
    assert [name for name in named if f"def {name}(" not in tests] == []


def test_paths_on_the_pages_exist():
    """Files of the repository that a page names, in the source folder or from the root."""
    root = DOCS.parent
    for page in [*PAGES, root / "README.md", root / "CONTRIBUTING.md"]:
        for name in re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|json))`", page.read_text()):
            if not name.startswith("runs/") and "your_method" not in name:
                assert any((folder / name).is_file() for folder in (root, root / "src/advdrop")), (page.name, name)


def test_the_spelling_is_american():
    british = r"\b\w*(?:isation|(?<!v)ised\b|(?<!a)(?<!no)ising\b|labell|optimis|haviour|colour|neighbour|learnt)\w*"
    for page in [*PAGES, *(DOCS.parent / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))]:
        assert re.findall(british, page.read_text(), re.IGNORECASE) == [], page.name


def test_configurations_on_the_pages_can_be_used(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = [block for page in PAGES for block in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)]
    assert blocks
    for block in blocks:
        Path("own.yaml").write_text(block)
        words = ["train", "--config", "own.yaml", "--dataset", "digits", "--updates", "2", "--dry-run"]
        assert main(words) == 0, capsys.readouterr().err
