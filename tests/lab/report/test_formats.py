import csv
import io
import json
import re
from dataclasses import replace

import pytest

from advdrop.lab.records.record import Record
from advdrop.lab.report import tables
from advdrop.lab.report.answer import answer_in_words
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import COLUMNS, FORMATS, as_csv, as_json, latex, main_table, markdown, page
from advdrop.lab.report.results import Results
from advdrop.lab.report.sections import comparison_table, cost_table, gaps, in_words, sentences, verdicts
from advdrop.lab.report.statistics import Difference
from ledger import hostile, loose_of, run_of

EVIL = "<script>alert(1)</script> & \"quotes\" | 'a', {b}_100% \\end #1 $x$ ~^\n\nnext"


def made(suite, *records):
    return results_of(records, {suite.key: suite})


@pytest.fixture
def evil(tmp_path):
    suite = hostile(tmp_path, EVIL)
    runs = [run_of(suite, row, seed, commit=EVIL) for row in ("pi", "vadd") for seed in (0, 1)]
    return made(suite, *runs, run_of(suite, "pi", column="all"), loose_of(dataset=f"{EVIL.splitlines()[0]}.npz"))


def cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def rows_of(text):
    if not isinstance(text, str):
        text = tables.markdown(text)
    return {row[0]: row[1:] for row in (cells(line) for line in text.splitlines() if line.startswith("|"))}


def test_there_is_a_format_for_each_ending():
    assert set(FORMATS) == {"html", "markdown", "csv", "json", "latex"}


def test_the_table_has_the_papers_numbers_and_ours(results):
    assert rows_of(main_table(results[0])) == {
        "Method": ["20 labels: paper", "here", "n", "All labels: here", "n"],
        "-" * 17: ["-" * 18, "-" * 13, "---", "-" * 18, "---"],
        "Ladder (quoted)": ["1.06 ± 0.37", "", "", "", ""],
        "Dropout": ["12.36", "not run", "", "not run", ""],
        "Π model": ["**5.10 ± 0.20**", "4.00 ± 0.00", "3", "not run", ""],
        "VAdD (KL)": ["–", "4.20 ± 0.10", "3", "not run", ""],
    }


def test_a_column_without_numbers_of_the_paper_has_none(suite):
    (found,) = made(suite, run_of(suite, "vadd", column="all"))
    assert rows_of(main_table(found))["Method"][3:] == ["All labels: here", "n"]
    assert rows_of(main_table(found))["VAdD (KL)"] == ["–", "not run", "", "10.00", "1"]


def test_gaps_are_told_for_what_was_run_and_printed(results):
    assert gaps(results[0]) == ["Π model, 20 labels: lower than the paper by 1.10 in each of 3 runs"]


def test_comparisons_in_a_table_and_in_words(results):
    # Differences 0.1, 0.2, 0.3: see the tests of the statistics. Power 80 % with 3 seeds: 3.264 standard deviations.
    assert rows_of(comparison_table(results[0]))["VAdD (KL) – Π model"] == [
        "+0.20 ± 0.25",
        "3",
        "0.074",
        "0.074",
        "0.250",
        "+2.0",
        "0.33",
    ]
    assert sentences(results[0]) == [
        "20 labels: VAdD (KL) is higher than Π model by 0.20 ± 0.25, which may be chance; "
        "3 seeds would miss a true difference of 0.33 one time in five"
    ]


def test_what_is_said_in_words_agrees_with_the_verdict(results, monkeypatch):
    # The interval leaves out zero, but with other comparisons beside it the difference may be chance.
    (comparison,) = results[0].comparisons
    sure = replace(comparison.found, difference=Difference(0.2, 0.1, 3), t_p=0.03)
    for p, chance in ((0.09, True), (0.03, False)):
        monkeypatch.setattr(Results, "comparisons", [comparison._replace(found=sure, holm_p=p)])
        assert ("may be chance" in sentences(results[0])[0]) == chance
        assert ("may be chance" in in_words(results[0])[0]) == chance
        verdict = next(line for lines in verdicts(results[0]).values() for line in lines if "20 labels" in line)
        assert (verdict in verdicts(results[0]).get("What is not known yet", [])) == chance


def test_a_comparison_of_one_seed_has_dashes(suite):
    (found,) = made(suite, run_of(suite, "vadd"), run_of(suite, "pi", 0, (50.0, 12.0)))
    row = rows_of(comparison_table(found))["VAdD (KL) – Π model"]
    assert row == ["-2.00", "1", "–", "–", "–", "–", "–"]
    assert sentences(found) == ["20 labels: VAdD (KL) is lower than Π model by 2.00 in a single run"]


def test_the_cost_table_has_the_error_at_equal_cost(results):
    # Π: 40 updates of 1 ms. VAdD costs twice as much: 20 of its updates, where 13.3 is the last one measured.
    found = rows_of(cost_table(results[0]))
    assert found["Π model"] == ["1", "4.00", "4.00"]
    assert found["VAdD (KL)"] == ["2", "4.20", "50.00"]
    assert "Dropout" not in found


def test_markdown_has_all_parts(results):
    text = markdown(results)
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## A small table, protocol short",
        "### Beside the paper",
        "### What is not known yet",
        "### Method against method, seed by seed",
        "### At equal cost",
        "### What differs from the paper",
        "### Run it again",
    ]
    assert rows_of(text)["`training.updates`"] == ["40", "1000", "all"]
    assert "advdrop reproduce small.yaml --protocol short --only pi,vadd --columns 20 --seeds 3\n" in text


def test_markdown_has_the_answer_of_runs_that_belong_to_no_suite():
    runs = [loose_of(method, seed, (40.0, 10.0 + seed)) for method in ("dropout", "pi") for seed in (0, 1)]
    (found,) = results_of(runs)
    sentence = answer_in_words(found)
    assert sentence.startswith("2 seeds are too few to tell")
    assert sentence in markdown([found])


def test_parts_with_nothing_to_say_are_left_out(suite):
    text = markdown(made(suite, run_of(suite, "vadd", column="all", protocol="paper")))
    assert [line for line in text.splitlines() if line.startswith("###")] == [
        "### What is not known yet",
        "### Run it again",
    ]


def test_no_text_ends_a_cell_or_a_line_or_becomes_html_in_markdown(evil):
    text = markdown(evil)
    assert "<script" not in text
    found = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(found) == 4
    for table in found:
        assert len({len(cells(line)) for line in table.splitlines()}) == 1
    assert not any(line.startswith(("next", "<")) for line in text.splitlines())


def test_csv_is_read_back(results):
    rows = list(csv.DictReader(io.StringIO(as_csv(results))))
    assert len(rows) == len(results[0].records) == 6
    for row, record in zip(rows, results[0].records, strict=True):
        assert list(row) == list(COLUMNS)
        assert row == {name: str(getattr(record, name)) for name in COLUMNS}


def test_csv_of_difficult_texts_is_read_back(evil):
    rows = list(csv.DictReader(io.StringIO(as_csv(evil))))
    records = [record for found in evil for record in found.records]
    for name in ("commit", "dataset"):
        written = [" ".join(getattr(record, name).split()).replace("<", "&lt;") for record in records]
        assert [row[name] for row in rows] == written
    assert rows[-1]["suite"] == ""  # a run of no suite
    assert rows[-1]["row"] == ""


@pytest.mark.parametrize("name", ["results", "evil"])
def test_json_is_read_back(name, request):
    found = request.getfixturevalue(name)
    values = json.loads(as_json(found), parse_constant=pytest.fail)
    records = [Record.model_validate(record) for record in values["records"]]
    assert records == [record for table in found for record in table.records]
    for record in records:
        assert next(record.complaints(), None) is None
    assert [table["suite"] for table in values["results"]] == [table.suite.key for table in found]


def test_json_has_the_numbers(results):
    (found,) = json.loads(as_json(results))["results"]
    cell = {(cell["row"], cell["column"]): cell for cell in found["cells"]}
    assert cell["pi", "20"]["paper"] == {"mean": 5.1, "std": 0.2, "bold": True}
    assert cell["pi", "20"]["here"] == {"mean": 4.0, "std": 0.0, "n": 3}
    assert cell["pi", "20"]["gap"] == {
        "mean": pytest.approx(-1.1),
        "margin": None,
        "runs": 3,
    }
    assert cell["pi", "20"]["records"] == [record.digest for record in results[0].entries["pi", "20"].records]
    assert cell["dropout", "20"]["here"] is None
    assert cell["vadd", "20"]["equal_cost"] == 50.0
    (comparison,) = found["comparisons"]
    assert (comparison["one"], comparison["other"], comparison["n"]) == ("vadd", "pi", 3)
    assert comparison["t_p"] == comparison["holm_p"] == pytest.approx(0.074180, abs=1e-6)
    assert {line["key"]: (line["here"], line["paper"]) for line in found["deviations"]}["training.updates"] == (
        "40",
        "1000",
    )


def test_latex_is_bold_as_in_the_paper_and_where_ours_is_the_lowest(results):
    lines = latex(results).splitlines()
    assert lines[:2] == ["% A small table, protocol short", r"\begin{tabular}{lrrrrr}"]
    assert r"Ladder (quoted) & 1.06 $\pm$ 0.37 &  &  &  &  \\" in lines
    assert r"Dropout & 12.36 & not run &  & not run &  \\" in lines
    assert r"$\Pi$ model & \textbf{5.10 $\pm$ 0.20} & \textbf{4.00 $\pm$ 0.00} & 3 & not run &  \\" in lines
    assert r"VAdD (KL) & -- & 4.20 $\pm$ 0.10 & 3 & not run &  \\" in lines
    assert lines[-1] == r"\end{tabular}"


def test_no_text_leaves_its_cell_in_latex(evil):
    for text in latex(evil).split("\\begin{tabular}")[1:]:
        layout = re.match(r"\{(l[r]+)\}", text)[1]
        body = [line for line in text.splitlines() if line.endswith(r" \\")]
        assert {len(re.split(r"(?<!\\)&", line)) for line in body} == {len(layout)}
        assert text.count(r"\end{tabular}") == 1
    comments = [line for line in latex(evil).splitlines() if line.startswith("%")]
    assert len(comments) == len(evil)
    assert not any(line.startswith("next") for line in latex(evil).splitlines())


@pytest.mark.parametrize("form", FORMATS)
def test_no_format_keeps_a_tag_of_a_text(form, evil):
    assert "<script" not in FORMATS[form](evil, [])


@pytest.mark.parametrize("form", ["markdown", "csv", "json", "latex", "html"])
def test_nothing_is_called_reproduced(form, results, evil):
    for found in (results, evil):
        assert "reproduced" not in FORMATS[form](found).lower()


def test_the_words_are_the_same_on_the_page(results):
    text = page(results)
    for line in gaps(results[0]):
        assert f"<li>{line}.</li>" in text
