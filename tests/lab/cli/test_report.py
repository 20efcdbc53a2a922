"""``advdrop report``, as a user meets it."""

from pathlib import Path

import pytest

from advdrop.lab.cli.main import main
from advdrop.lab.records.record import Ledger
from ledger import run_of, suite_of
from studies import autoencoder_of, theory_of


@pytest.fixture
def _measured():
    Ledger(Path("results")).add(theory_of())


@pytest.mark.usefixtures("_measured")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("report.html", ["report", "results"]),
        ("README.md", ["report", "results", "-o", "README.md"]),
        ("data.csv", ["report", "results", "-o", "data.csv"]),
        ("own.json", ["report", "results", "-o", "own.json"]),
        ("thesis.tex", ["report", "results", "-o", "thesis.tex"]),
    ],
)
def test_a_page_of_somebody_else_is_kept(name, words, capsys):
    page = Path(name)
    page.write_text("<h1>My thesis</h1>")
    assert main(words) == 2
    assert capsys.readouterr().err.startswith(f"advdrop: {name} was not written by advdrop and is left as it is")
    assert page.read_text() == "<h1>My thesis</h1>"
    page.unlink()
    assert main(words) == 0
    first = page.read_bytes()
    assert main(words) == 0  # its own page is replaced
    assert page.read_bytes() == first


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["audit", "runs/x"], "audit.svg"),
        (["audit", "runs/x", "-o", "thesis.txt"], "thesis.txt"),
        (["explain", "runs/x", "--image", "3"], "explain-3.svg"),
        (["explain", "runs/x", "-o", "thesis.docx"], "thesis.docx"),
    ],
)
def test_a_figure_of_somebody_else_is_kept(words, name, capsys):
    Path(name).write_text("<svg>mine</svg>")
    assert main(words) == 2
    said = "was not written by advdrop and is left as it is" if name.endswith(".svg") else "does not end in .svg"
    assert f"advdrop: {name} {said}" in capsys.readouterr().err
    assert Path(name).read_text() == "<svg>mine</svg>"


@pytest.mark.parametrize("content", ["[1]", '{"a": 1}', '{"a": [1]}', '{"a": [{"error": 1}]}', "mine"])
@pytest.mark.parametrize("name", ["compare.json", "answer.json"])
def test_results_of_somebody_else_are_kept(name, content, capsys):
    Path("c").mkdir()
    Path("c", name).write_text(content)
    assert main(["compare", "--dataset", "digits", "--updates", "1", "--jobs", "1", "--out", "c"]) == 2
    assert f"advdrop: c/{name} " in capsys.readouterr().err
    assert Path("c", name).read_text() == content
    assert [path.name for path in Path("c").iterdir()] == [name]


@pytest.mark.usefixtures("_measured")
def test_two_studies_of_one_kind_are_shown_side_by_side(capsys):
    for number, found in enumerate((theory_of(fits=9.0), autoencoder_of(), autoencoder_of(hoyer=0.1))):
        Ledger(Path(f"results/{number}")).add(found)
    assert main(["report", "results"]) == 0
    assert "0 tables and 4 studies from 4 records" in capsys.readouterr().out


def test_runs_of_several_lengths_and_copies_are_shown_side_by_side(capsys):
    words = ["--dataset", "digits", "--labels", "20", "--quiet"]
    assert main(["compare", "--methods", "dropout,pi", "--updates", "4", *words, "--jobs", "1"]) == 0
    for name, updates in (("longer", "6"), ("again", "4")):
        assert main(["train", name, "--method", "pi", "--updates", updates, *words]) == 0
    capsys.readouterr()
    assert main(["report", "runs"]) == 0
    assert "2 tables from 3 records" in capsys.readouterr().out


def test_a_suite_of_the_users_own_needs_its_file(tmp_path, capsys):
    Ledger(Path("results")).add(run_of(suite_of(tmp_path)))
    assert main(["report", "results"]) == 2
    assert "name its YAML file as well" in capsys.readouterr().err
    assert main(["report", "results", "small.yaml"]) == 0
    assert "advdrop reproduce small.yaml --protocol short" in Path("report.html").read_text()
