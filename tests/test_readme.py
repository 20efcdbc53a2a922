"""The README shows what is there: its first code block is the example, its table is the record."""

import json
import re
import shlex
from pathlib import Path

import pytest

from advdrop.cli.compare import results_table
from advdrop.cli.main import _parse
from page import IMAGES, PAGES, TABLES, filled, images

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_first_code_block_is_the_first_example():
    block = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    example = (ROOT / "examples/01_plain_torch.py").read_text()
    assert example.split('"""\n\n', 1)[1] == block
    assert len(block.splitlines()) <= 25


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_made_from_the_records(name):
    page = (ROOT / name).read_text()
    assert filled(page) == page
    assert page.count("<!-- ") == 2 * len(re.findall("<!-- [a-z0-9-]+ -->\\n[|#]", page)) > 0


def test_pictures_are_made_from_the_records():
    drawn = images()
    assert {path.name for path in IMAGES.glob("*.svg")} == {*drawn, "explain.svg"}  # which needs a trained network
    for name, text in drawn.items():
        assert (IMAGES / name).read_text() == text, name


def test_pictures_of_the_pages_exist_and_are_described():
    for name in PAGES:
        for described, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", (ROOT / name).read_text()):
            assert len(described) > 20, target
            assert ((ROOT / name).parent / target).is_file(), target


def test_every_table_is_shown_somewhere():
    pages = "".join((ROOT / name).read_text() for name in PAGES)
    assert all(f"<!-- {name} -->" in pages for name in TABLES)


def test_demo_table_is_made_from_the_record():
    results = json.loads((ROOT / "results/demo.json").read_text())
    assert results_table(results) in README
    assert results["vadd-kl"][0]["test_error_percent"] < results["dropout"][0]["test_error_percent"]


def test_every_command_of_the_readme_parses():
    """The options that it shows are there; what they do is tested elsewhere."""
    commands = re.findall(r"^advdrop (.+?)(?:  +#.*)?$", README, re.MULTILINE)
    assert len(commands) > 6
    for command in commands:
        _parse(shlex.split(command))


def test_code_in_the_table_of_contents_exists():
    import advdrop
    from advdrop import masks, models

    known = {name for module in (advdrop, masks, models) for name in dir(module)}
    section = README.split("## What is in it")[1].split("How much of")[0]
    names = set(re.findall(r"\b([A-Za-z_]+)\(", section))
    assert len(names) > 15
    assert names <= known
