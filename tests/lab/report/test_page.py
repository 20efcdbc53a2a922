import re
from html.parser import HTMLParser

import pytest

import advdrop
from advdrop.lab.records.record import ERROR
from advdrop.lab.report.answer import with_answers
from advdrop.lab.report.collect import results_of
from advdrop.lab.report.formats import anchor, page
from advdrop.lab.report.statistics import p_value
from ledger import hostile, loose_of, run_of, tables

EVIL = "<script>alert(1)</script> & \"quotes\" 'single' <img src=x onerror=alert(1)>"
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.ids, self.open, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open and data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def values(self, name):
        return [value for _, found, value in self.attributes if found == name]

    def text(self, tag):
        return [text for found, text in self.texts if found == tag]


@pytest.fixture
def evil(tmp_path):
    suite = hostile(tmp_path, EVIL)
    own = {"commit": EVIL, "machine": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "finished": EVIL}
    runs = [run_of(suite, row, seed, **own) for row in ("pi", "vadd") for seed in (0, 1)]
    runs.append(run_of(suite, "pi", column="all"))
    loose = [
        loose_of("vadd-kl", 0, dataset=f"a/{EVIL}.npz", preset=EVIL, **own),
        loose_of("pi", 0, dataset=f"b/{EVIL}.npz", preset=EVIL, **own),
        loose_of("pi", 0, labels=50),
        loose_of("pi", 0, labels="all"),
    ]
    curve = loose[0].curve | {f"search_{EVIL}_flips": [1.0, 2.0, 3.0, 4.0]}
    loose[0] = loose[0].model_copy(update={"curve": curve}).sealed()
    return tables(suite, *runs, *loose)


@pytest.fixture
def answered(answer):
    """A table of runs of one's own data with hostile names, and its answer."""
    runs = [loose_of(m, seed, dataset=f"{EVIL}.npz") for m in ("dropout", "vadd-qe") for seed in (0, 1)]
    names = {"classes": (EVIL, "dog"), "method": EVIL, "baseline": EVIL}
    changed = tuple(one.model_copy(update={"truth": EVIL, "before": EVIL, "now": EVIL}) for one in answer.changed)
    given = names | {"changed": changed, "records": tuple(run.digest for run in runs)}
    return with_answers(results_of(runs), [answer.model_copy(update=given)])


@pytest.mark.parametrize("name", ["results", "evil", "answered"])
def test_the_page_loads_nothing_and_runs_nothing(name, request):
    text = page(request.getfixturevalue(name))
    found = Page(text)
    assert not {"script", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert [attribute for _, attribute, _ in found.attributes if attribute.startswith("on")] == []
    assert all(
        tag == "img" and value.startswith("data:image/png;base64,") for tag, n, value in found.attributes if n == "src"
    )
    assert len(found.values("src")) == (2 if name == "answered" else 0) == found.tags.count("img")
    assert {tag for tag, name, _ in found.attributes if name == "style"} <= {"path", "text", "use", "image"}
    assert all(href == "data:," or href.startswith("#") for href in found.values("href"))
    assert "http://" not in text
    assert "https://" not in text
    assert "url(" not in text.replace("url(#", "")
    assert "@import" not in text
    assert "default-src 'none'" in found.values("content")[1]


@pytest.mark.parametrize("name", ["results", "evil"])
def test_every_link_has_its_place_and_no_place_has_two(name, request):
    found = Page(page(request.getfixturevalue(name)))
    assert len(found.ids) == len(set(found.ids))
    assert not any(set(name) & set(" \t\n\"'<>") for name in found.ids)
    links = [href.removeprefix("#") for href in found.values("href") if href.startswith("#")]
    assert links
    assert set(links) <= set(found.ids)


def test_every_text_is_escaped_and_none_is_lost(evil):
    text = page(evil, title=EVIL)
    assert "<script" not in text
    assert "<img" not in text
    found = Page(text)
    assert found.text("h1") == [EVIL]
    assert found.text("title")[0] == EVIL
    assert found.text("h2")[0] == EVIL
    assert EVIL in found.text("p")
    assert f"{EVIL}." in found.text("p")
    assert any(line.startswith(f"Bold as in the paper ({EVIL}; 5 runs") for line in found.text("p"))
    assert {f"{EVIL}: paper", f"{EVIL} 2: here", f"{EVIL} 2", f"{EVIL} 3"} <= {*found.text("th")}
    assert EVIL in found.values("title")
    assert any(label.startswith(f"Test error, {EVIL}. ") for label in found.values("aria-label"))
    assert EVIL in found.text("a")
    assert any("$'a/\\U0000003cscript>" in text for text in found.text("pre"))


def test_an_escaped_record_is_still_what_its_file_says(evil):
    found = Page(page(evil))
    shown = found.text("pre")
    for table in evil:
        for record in table.records:
            assert record.dump().strip() in shown


def test_missing_cells_say_that_they_were_not_run(results):
    found = Page(page(results))
    assert found.text("span").count("not run") == 4  # dropout and the other column; the ladder is quoted and cannot be
    assert found.text("span").count("Ladder (quoted)") == 1
    assert found.values("title") == ["Rasmus et al. 2015"]
    assert "12.36" in found.text("td")


def test_numbers_are_bold_as_in_the_paper(results):
    found = Page(page(results))
    assert [text for text in found.text("strong") if "Protocol" not in text] == ["5.10 ± 0.20"]
    assert "1.06 ± 0.37" in found.text("td")


def test_each_number_links_to_its_record_and_the_lowest_is_marked(results):
    text = page(results)
    (table,) = results
    pi, vadd = (anchor(table.entries[row, "20"].records[0]) for row in ("pi", "vadd"))
    assert f'<a href="#{pi}" class="best">4.00 ± 0.00</a>' in text
    assert f'<a href="#{vadd}">4.20 ± 0.10</a>' in text


def test_the_number_of_seeds_is_told_from_the_seeds(suite):
    (table,) = tables(suite, *(run_of(suite, "vadd", seed) for seed in (4, 7)))
    four, seven = (anchor(record) for record in table.records)
    assert f'>2 (<a href="#{four}">4</a> <a href="#{seven}">7</a>)</td>' in page([table])


def test_the_lowest_is_the_lowest_that_is_shown(suite):
    def rows(*errors):
        trained = zip(suite.trained, errors, strict=False)
        (table,) = tables(suite, *(run_of(suite, row, 0, (50.0, error), test_images=100_000) for row, error in trained))
        return table.best("20")

    assert rows(3.0, 2.0, 4.0) == ["pi"]
    assert rows(2.001, 2.0, 4.0) == ["dropout", "pi"]  # both are 2.00
    assert rows(2.0) == []  # one alone is not the best of anything


def test_a_page_of_several_tables_lists_them(suite):
    found = tables(suite, run_of(suite), run_of(suite, protocol="paper"), loose_of(), loose_of(labels=50))
    parsed = Page(page(found))
    assert "nav" in parsed.tags
    assert len(found) == 4
    assert [text for text in parsed.text("a") if "±" not in text and text != "10.00" and not text.isdigit()] == [
        table.suite.title for table in found
    ]
    assert "nav" not in Page(page(found[:1])).tags


def test_the_page_counts_its_records(results, suite):
    assert "is computed from 6 records;" in " ".join(page(results).split())
    assert "is computed from 1 record;" in " ".join(page(tables(suite, run_of(suite))).split())


def test_all_records_are_there(results):
    found = Page(page(results))
    assert len([text for text in found.text("summary") if text.endswith(" %")]) == 6
    assert "VAdD (KL), 20 labels, seed 2: 4.30 %" in found.text("summary")


def test_parts_with_nothing_to_say_are_left_out(suite):
    found = Page(page(tables(suite, run_of(suite, "vadd", column="all", protocol="paper"))))
    assert found.text("h3") == [
        "What is not known yet",
        "Curves",
        "Run it again",
    ]
    assert not any("Bold as in the paper" in text for text in found.text("p"))
    assert not any("Marked" in text for text in found.text("p"))  # a single row is not the lowest of any


def test_the_lowest_mean_is_marked(results):
    assert any("Marked: the lowest mean here." in text for text in Page(page(results)).text("p"))


def test_what_differs_and_how_to_run_it_again_are_there(results):
    found = Page(page(results))
    assert "training.updates" in found.text("code")
    assert "advdrop reproduce small.yaml --protocol short --only pi,vadd --columns 20 --seeds 3" in found.text("pre")
    assert not any("--only dropout" in text for text in found.text("pre"))


def test_another_preset_is_named(suite):
    assert any(
        "Preset authors." in text for text in Page(page(tables(suite, run_of(suite, preset="authors")))).text("p")
    )
    assert not any("Preset" in text for text in Page(page(tables(suite, run_of(suite)))).text("p"))


def test_the_version_is_there(results):
    assert any(text == f"Made by advdrop {advdrop.__version__}." for text in Page(page(results)).text("p"))


def test_the_same_records_make_the_same_page(results):
    assert page(results) == page(results)


def test_a_row_is_measured_when_a_column_of_it_is(suite):
    (table,) = tables(suite, run_of(suite, "vadd", column="all"))
    assert table.measured == ["vadd"]


def test_an_unmeasured_curve_is_a_page_as_well(suite):
    record = run_of(suite, "vadd", 0, (None, None, 10.0))
    assert record.curve[ERROR][0] is None
    assert Page(page(tables(suite, record))).tags.count("figure") == 1  # one point is no curve


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.5, "0.500"), (0.001, "0.001"), (0.00099, "< 0.001"), (0.0, "< 0.001"), (1.0, "1.000")],
)
def test_a_p_value_is_never_zero(value, text):
    assert p_value(value) == text


def tables_of_own(answer=None, seeds=3, labels=20):
    rows = (("dropout", 10.0), ("pi", 9.0), ("vadd-qe", 8.0))
    runs = [loose_of(m, seed, (40.0, error + seed), labels=labels) for m, error in rows for seed in range(seeds)]
    digests = tuple(run.digest for run in runs if run.method != "pi")
    return with_answers(results_of(runs), [answer.model_copy(update={"records": digests})] if answer else [])


def test_the_first_screen_asks_answers_and_counts(answer):
    found = Page(page(tables_of_own(answer)))
    assert found.text("h1") == found.text("title") == ["digits, 20 labels: do the unlabeled examples help?"]
    assert "h2" not in found.tags
    (sentence,) = (text for text in found.text("p") if text.startswith("The 1,600 unlabeled examples helped"))
    assert sentence == answer.text.replace(" %", "\u00a0%").replace(" ± ", "\u00a0±\u00a0")
    assert list(zip(found.text("b")[:3], found.text("li")[:3], strict=True)) == [
        ("200", "labeled examples"),
        ("1,600", "unlabeled examples"),
        ("5", "test examples"),
    ]
    assert found.text("th")[:7] == ["Method", "test error %", "seeds", "ms per update", "dropout", "pi", "vadd-qe"]
    order = [found.tags.index(tag) for tag in ("h1", "svg", "table", "img", "details")]
    assert order == sorted(order)
    assert found.text("h3")[:3] == ["Predictions that changed", "Confusion matrix", "Curves"]


def test_pictures_say_what_is_right_now_and_what_is_wrong(answer):
    found = Page(page(tables_of_own(answer)))
    assert found.text("figcaption")[1:6] == [
        "now right",
        "before: dog",
        "now wrong:",
        "cat",
        found.text("figcaption")[5],
    ]
    assert found.values("alt") == ["A test image of the class cat", "A test image of the class dog"]
    assert any("Right only with vadd-qe: 2 of 5 test examples." in " ".join(text.split()) for text in found.text("p"))


def test_many_classes_have_a_list_of_mistakes_instead_of_a_matrix(answer):
    count = 13
    square = tuple(
        tuple(7 * (row == column) + (row == 0 and column == 5) for column in range(count)) for row in range(count)
    )
    many = answer.model_copy(update={"classes": tuple(f"kind {n}" for n in range(count)), "confusion": square})
    found = Page(page(tables_of_own(many)))
    assert "The most frequent mistakes" in found.text("h3")
    assert "Confusion matrix" not in found.text("h3")
    assert found.text("th")[7:11] == ["true class", "vadd-qe predicts", "test examples", "kind 0"]
    assert found.text("td")[9:11] == ["kind 5", "1"]


def test_records_alone_make_a_page_with_an_answer_over_seeds():
    found = Page(page(tables_of_own()))
    assert "3 seeds are too few to tell whether the unlabeled examples help: 9.0\u00a0% errors" in found.text("p")[0]
    assert "img" not in found.tags
    assert "Confusion matrix" not in found.text("h3")


def test_one_seed_proves_nothing_and_five_seeds_are_one_command():
    found = Page(page(tables_of_own(seeds=1)))
    assert found.text("strong") == ["One seed proves nothing."]
    what = "--dataset digits --labels 20 --preset robust --updates 40 --seeds 5"
    assert found.text("pre")[0] == f"advdrop compare --methods dropout,pi,vadd-qe {what}"
    assert "One seed proves nothing." not in Page(page(tables_of_own(seeds=2))).text("strong")


def test_no_table_of_dashes_appears(suite, results):
    for shown in (results, tables_of_own(seeds=1), tables_of_own(seeds=2)):
        text = page(shown)
        for table in re.findall("<table>.*?</table>", text, flags=re.DOTALL):
            heads = re.findall('<th scope="col">', table)
            rows = [re.findall("<td[^>]*>(.*?)</td>", row, flags=re.DOTALL) for row in table.split("<tr>")[2:]]
            for column in zip(*rows, strict=True):
                assert {*column} != {"–"}, table
            assert heads


def test_statistics_are_folded_and_come_after_the_curves(results, answer):
    for shown in (results, tables_of_own(answer)):
        found = Page(page(shown))
        assert found.text("summary")[0] == "Statistics, and how to run it again"
        assert found.text("h3").index("Curves") < found.text("h3").index("Method against method, seed by seed")


def test_the_seeds_of_a_table_are_drawn_before_its_numbers_and_those_of_own_runs_are_folded(suite):
    runs = [
        run_of(suite, row, seed, (40.0, error + seed)) for row, error in (("pi", 5.0), ("vadd", 4.0)) for seed in (0, 1)
    ]
    made = page(tables(suite, *runs))
    assert made.index("Seed by seed") < made.index("<table") < made.index('class="fold"')
    own = page(tables_of_own())
    assert own.index('class="fold"') < own.index("Seed by seed")
