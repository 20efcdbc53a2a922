"""``advdrop report``, as a user meets it."""

from pathlib import Path

import pytest

from advdrop.lab.cli.main import main
from advdrop.lab.records.record import Ledger
from ledger import run_of, suite_of
from studies import autoencoder_of, theory_of


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def _measured():
    Ledger(Path("results")).add(theory_of())


@pytest.mark.usefixtures("_measured")
def test_a_page_of_somebody_else_is_kept(capsys):
    page = Path("report.html")
    page.write_text("<h1>My thesis</h1>")
    assert main(["report", "results"]) == 2
    assert capsys.readouterr().err.startswith("advdrop: report.html is not a page of advdrop and is left as it is")
    assert page.read_text() == "<h1>My thesis</h1>"
    page.unlink()
    assert main(["report", "results"]) == 0
    first = page.read_bytes()
    assert main(["report", "results"]) == 0  # its own page is replaced
    assert page.read_bytes() == first


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
