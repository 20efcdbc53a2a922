import pytest
import yaml

from advdrop.lab.config.values import ConfigError, merged
from advdrop.lab.suites.suite import Key, Reported, Suite, differences, fingerprint, suites
from suites import small_suite

SHAPES = {"mnist": ((1, 28, 28), 60_000), "svhn": ((3, 32, 32), 73_257), "cifar10": ((3, 32, 32), 50_000)}
SHAPES["svhn-subset"] = ((3, 32, 32), 10_000)


def config(suite, key, protocol="short", preset="paper", **options):
    shape, examples = SHAPES.get(suite.columns[key.column].dataset, ((64,), 1437))
    return suite.config(key, protocol, preset, shape=shape, examples=examples, **options)


@pytest.fixture
def small(tmp_path):
    return Suite.load(str(small_suite(tmp_path)))


def test_there_is_a_suite_for_each_table_of_the_paper_and_for_our_own_questions():
    assert suites() == ["ablation", "ladder", "sensitivity", "table-d1", "table-d2", "table1", "table2"]


@pytest.mark.parametrize("name", suites())
def test_every_cell_of_every_suite_has_a_configuration(name):
    suite = Suite.load(name)
    for protocol in suite.protocols:
        for preset in ("paper", "authors"):
            for key in suite.cells(protocol, seeds=1):
                assert config(suite, key, protocol, preset).method == suite.rows[key.row].method


@pytest.mark.parametrize("name", ["table1", "table2", "table-d1", "table-d2"])
def test_the_paper_protocol_is_the_papers_length_with_its_repetitions(name):
    suite = Suite.load(name)
    assert suite.protocols["paper"].seeds == suite.repeats == (8 if name == "table1" else 5)
    for key in suite.cells("paper", seeds=1):
        training = config(suite, key, "paper").training
        epochs = 100 if name == "table1" else 300
        assert training.updates == epochs * training.epoch_updates
        if suite.columns[key.column].labels != "all":
            assert training.epoch_updates == (468 if name == "table1" else 400)


@pytest.mark.parametrize("name", suites())
def test_the_short_protocol_shrinks_the_schedules_with_the_length(name):
    suite = Suite.load(name)
    for key in suite.cells("short", seeds=1):
        short, whole = config(suite, key), config(suite, key, "paper")
        assert short.training.updates < whole.training.updates / 10
        assert short.objective == whole.objective  # ramps are shares of the whole training
        assert short.training.labeled <= whole.training.labeled
        supervised = suite.columns[key.column].labels == "all"
        assert (short.training.unlabeled == 0) == (whole.training.unlabeled == 0) == supervised


def test_the_papers_numbers_are_as_printed():
    table = Suite.load("table1").rows
    assert table["vadd-qe"].paper == {"1000": Reported(0.99, 0.09, True), "all": Reported(0.46, 0.02, True)}
    assert "1000" not in table["sadd"].paper
    second = Suite.load("table2").rows["vadd-qe+vat"].paper
    assert [str(number) for number in second.values()] == ["3.55 ± 0.07", "2.34 ± 0.05", "9.22 ± 0.10", "4.73 ± 0.04"]
    assert [number.bold for number in second.values()] == [True, False, True, False]
    # D.1 and D.2 repeat rows of Table 2.
    for name, column, there in (("table-d1", "all", "cifar10-all"), ("table-d2", "4000", "cifar10-4000")):
        rows = Suite.load(name).rows
        for row in ("pi", "vat", "vadd-kl", "vadd-qe", "vadd-kl+vat", "vadd-qe+vat", "pi-laine", "vat-miyato"):
            assert rows[row].paper[column] == Suite.load("table2").rows[row].paper[there], row


def test_every_switch_of_the_ablation_is_one_difference():
    suite = Suite.load("ablation")
    base = config(suite, Key("1000", "base", 0))
    switches = {row: differences(base, config(suite, Key("1000", row, 0))) for row in suite.trained}
    assert switches.pop("base") == []
    ties = "objective.terms.vadd-kl.ties"
    assert set(switches.pop("authors")) > {"preset", "objective.entropy", ties, "network.scale"}
    assert {row: keys for row, keys in switches.items() if len(keys) != 1} == {}
    table = Suite.load("table1")
    assert differences(base, config(table, Key("1000", "vadd-kl", 0))) == []  # one run serves both


def test_cells_come_as_whole_tables_seed_by_seed(small):
    keys = list(small.cells("short"))
    assert [str(key) for key in keys[:4]] == [
        "few dropout seed 0", "few vadd-kl seed 0", "few random seed 0", "few dropout seed 1",
    ]  # fmt: skip
    assert [key.row for key in small.cells("short", ["vadd-kl"], seeds=1)] == ["vadd-kl"]
    ablation = Suite.load("ablation")
    assert [key.row for key in ablation.cells("short", ["vadd-kl"], seeds=1)] == ablation.trained
    assert [key.row for key in small.cells("short", ["random"], ["few"], 1)] == ["random"]


def test_the_settings_of_a_row_in_one_protocol_come_last(small):
    own = {"optimizer": {"learning_rate": 0.5}}
    row = small.rows["dropout"].model_copy(update={"settings": {"optimizer": {"learning_rate": 0.1, "beta2": 0.9}}})
    protocol = small.protocol("short").model_copy(update={"rows": {"dropout": own}})
    changed = small.model_copy(
        update={"rows": {**small.rows, "dropout": row}, "protocols": {**small.protocols, "short": protocol}}
    )
    rates = {name: changed.settings(Key("few", "dropout", 0), name).get("optimizer") for name in ("short", "paper")}
    assert rates["short"]["learning_rate"] == 0.5
    assert rates["short"]["beta2"] == 0.9
    assert rates["paper"]["learning_rate"] == 0.1
    assert differences(config(small, Key("few", "vadd-kl", 0)), config(changed, Key("few", "vadd-kl", 0))) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("long",), "protocol 'long', which is unknown; there are paper, short"),
        (("short", ["vad"]), "--only has 'vad'"),
        (("short", ["quoted"]), "--only has 'quoted'"),
        (("short", [], ["many"]), "--columns has 'many'"),
    ],
)
def test_what_is_not_there_is_named(small, arguments, message):
    with pytest.raises(ConfigError, match=message):
        list(small.cells(*arguments))


def test_a_quoted_row_cannot_be_run(small):
    with pytest.raises(ConfigError, match="Quoted is quoted from Somebody"):
        config(small, Key("few", "quoted", 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": {"dropout": {"paper": {"many": "1.00"}}}}, "rows.dropout.paper has column 'many'"),
        ({"rows": {"dropout": {"paper": {"few": "about 2"}}}}, "'about 2' is not a number such as 12.36"),
        ({"rows": {"dropout": {"paper": {"few": "**1.00"}}}}, "is not a number such as"),
        ({"rows": {"dropout": {"method": "drop"}}}, "method has 'drop'"),
        ({"rows": {"new": {"name": "New"}}}, "rows.new has neither a method nor a source"),
        ({"compare": [["dropout", "pi"]]}, "compare has row 'pi'"),
        ({"compare": [["dropout", "quoted"]]}, "compare has row 'quoted', which has no method and is never run"),
        ({"compare": [["dropout", "dropout"]]}, "compare has row 'dropout' twice in a pair"),
        (
            {"compare": [["vadd-kl", "dropout"], ["random", "dropout"], ["vadd-kl", "dropout"]]},
            "compare has rows vadd-kl and dropout twice",
        ),
        (
            {"compare": [["vadd-kl", "dropout"], ["dropout", "vadd-kl"]]},
            "compare has rows vadd-kl and dropout twice",
        ),
        ({"curves": [{"title": "x", "values": {"dropout": "0", "quoted": "1"}}]}, "curves has row 'quoted', which has"),
        ({"protocols": {"short": {"columns": {"many": {}}}}}, "protocols.short.columns has 'many'"),
        ({"protocols": {"short": {"rows": {"pi": {}}}}}, "protocols.short.rows has 'pi'"),
        ({"protocols": {"short": {"without": {"few/drop": "why"}}}}, "protocols.short.without has 'few/drop'"),
        ({"columns": {"few": {"like": "many"}}}, "columns.few.like has column 'many'"),
        ({"columns": {"a/b": {"name": "x", "dataset": "digits", "labels": 30}}}, "cannot be part of a file's name"),
        ({"columns": {"new": {"name": "30 labels", "dataset": "digits", "labels": 30}}}, "the name '30 labels' twice"),
        ({"rows": {"new": {"name": "Plain", "method": "pi"}}}, "rows has the name 'Plain' twice"),
        (
            {"columns": {"few": {"labels": "ALL"}}},
            "columns.few.labels must be a number of examples or 'all', got 'ALL'",
        ),
        (
            {"rows": {False: {"name": "No", "method": "pi"}}},
            "rows has the key False, which is not a text; put it in quotes",
        ),
        ({"key": "../results"}, "key '../results' cannot be the name of the folder"),
        ({"key": ""}, "key '' cannot be the name of the folder"),
        ({"key": "(runs)"}, "key '(runs)' cannot be the name of the folder"),
        ({"colums": {}}, "colums Extra inputs"),
        (
            {"protocols": {"short": {"seeds": 10**9}}},
            "protocols.short.seeds Input should be less than or equal to 1000",
        ),
    ],
)
def test_a_suite_that_makes_no_sense_is_refused_in_one_line(tmp_path, change, message):
    path = small_suite(tmp_path)
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), change)))
    with pytest.raises(ConfigError) as error:
        Suite.load(str(path))
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)


def test_a_term_may_be_named_without_its_place(tmp_path):
    path = small_suite(tmp_path)
    change = {
        "rows": {row: {"settings": {"vadd-kl": {"weight": 3.0}}} for row in ("vadd-kl", "random")},
        "protocols": {"short": {"rows": {"random": {"objective": {"terms": {"vadd-kl": {"weight": 5.0}}}}}}},
    }
    path.write_text(yaml.safe_dump(merged(yaml.safe_load(path.read_text()), change)))
    suite = Suite.load(str(path))
    found = [config(suite, Key("few", row, 0)).objective.terms.vadd_kl.weight for row in ("vadd-kl", "random")]
    assert found == [3.0, 5.0]  # the protocol wins over the row, however each of them is written


@pytest.mark.parametrize("text", ["a: [", "- 1", ""])
def test_a_file_that_is_no_suite_is_refused(tmp_path, text):
    (tmp_path / "own.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"own\.yaml"):
        Suite.load(str(tmp_path / "own.yaml"))
    with pytest.raises(ConfigError, match="did you mean table1"):
        Suite.load("table11")


def test_runs_without_differences_share_a_fingerprint(small):
    key = Key("few", "vadd-kl", 0)
    base = config(small, key)
    elsewhere = base.model_copy(update={"engine": base.engine.model_copy(update={"memory_format": "channels_last"})})
    assert differences(base, elsewhere) == []
    assert fingerprint(base) == fingerprint(elsewhere)
    for other in (Key("few", "vadd-kl", 1), Key("few", "random", 0), Key("few", "dropout", 0)):
        assert differences(base, config(small, other))
        assert fingerprint(base) != fingerprint(config(small, other))
    half = base.model_copy(update={"engine": base.engine.model_copy(update={"precision": "bf16"})})
    assert differences(base, half) == ["engine.precision"]
    assert fingerprint(base) != fingerprint(half)


def test_a_place_of_the_layer_makes_another_run_and_the_papers_place_does_not():
    suite = Suite.load("sensitivity")
    base, first = (config(suite, Key("1000", row, 0)) for row in ("base", "first-pooling"))
    assert differences(first, base) == ["network.earlier"]
    assert fingerprint(first) != fingerprint(base)
    assert fingerprint(base) == fingerprint(config(Suite.load("table1"), Key("1000", "vadd-kl", 0)))


@pytest.mark.parametrize(
    ("part", "empty", "message"),
    [
        ("columns", {}, "columns has nothing"),
        ("protocols", {}, "protocols has nothing"),
        ("rows", {"quoted": {"name": "Quoted", "quoted": "Somebody (2000)"}}, "rows has no row with a method"),
    ],
)
def test_a_suite_with_nothing_to_run_is_refused(tmp_path, part, empty, message):
    path = small_suite(tmp_path)
    values = {**yaml.safe_load(path.read_text()), "compare": [], part: empty}
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError, match=message):
        Suite.load(str(path))


def test_keys_and_names_may_be_numbers(tmp_path):
    """YAML reads 1000 as a number."""
    text = small_suite(tmp_path).read_text().replace("few:", "30:").replace('"30 labels"', "30")
    path = tmp_path / "numbers.yaml"
    path.write_text(f"{text}curves: [{{title: \u03b4, values: {{dropout: 0.5, vadd-kl: 1}}}}]\n")
    suite = Suite.load(str(path))
    assert suite.columns["30"].name == "30"
    assert suite.rows["dropout"].paper["30"].mean == 20.0
    assert suite.curves[0].values == {"dropout": "0.5", "vadd-kl": "1"}


def test_a_curve_of_an_unknown_row_is_refused(tmp_path):
    path = small_suite(tmp_path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["curves"] = [{"title": "weight", "values": {"vadd-kl": "1", "vadd-qe": "2"}}]
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError, match="curves has row"):
        Suite.load(str(path))


@pytest.mark.parametrize("name", ["..", ".hidden", "a/b", ""])
def test_no_name_of_a_suite_leaves_its_folder(tmp_path, name):
    path = small_suite(tmp_path)
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["rows"][name] = {"name": "x", "method": "pi"}
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError, match="cannot be part of a file's name"):
        Suite.load(str(path))


def test_a_protocol_leaves_out_what_it_names_unless_it_is_asked_for(small):
    with_why = small.protocols["short"].model_copy(update={"without": {"random": "it is slow"}})
    less = small.model_copy(update={"protocols": {**small.protocols, "short": with_why}})
    assert {key.row for key in less.cells("short")} == {"dropout", "vadd-kl"}
    assert {key.row for key in less.cells("short", ["random"])} == {"random"}
    assert {key.row for key in less.cells("paper")} == {"dropout", "vadd-kl", "random"}
    fewer = with_why.model_copy(update={"without": {"few": "why not"}})
    none = small.model_copy(update={"protocols": {"short": fewer}})
    assert list(none.cells("short")) == []
    assert len(list(none.cells("short", columns=["few"], seeds=1))) == 3


def test_a_cell_that_is_left_out_is_run_if_its_row_and_its_column_are_asked_for(small):
    without = small.protocols["short"].model_copy(update={"without": {"few/random": "it is slow"}})
    less = small.model_copy(update={"protocols": {"short": without}})

    def rows(*asked):
        return {key.row for key in less.cells("short", *asked) if key.column == "few"}

    assert rows() == rows((), ["few"]) == {"dropout", "vadd-kl"}
    assert rows(["random"]) == set()
    assert rows(["random"], ["few"]) == {"random"}


def test_the_network_of_a_protocol_is_not_for_a_row_with_another_network():
    table = Suite.load("table-d1")
    there, here = (config(table, Key("all", row, 0), "scaled").network for row in ("pi", "highway"))
    assert (there.name, there.width, here.name) == ("conv-large", 0.25, "highway")


def test_the_network_of_a_protocol_is_not_for_a_method_with_another_network(small):
    def hidden(**rows):
        methods = {row: small.rows["dropout"].model_copy(update={"method": method}) for row, method in rows.items()}
        suite = small.model_copy(update={"rows": methods})
        return [config(suite, Key("few", row, 0)).network.hidden for row in rows]

    assert hidden(ours="vadd-kl", theirs="ladder+pi") == [(16, 12), (1000, 500, 250, 250, 250)]
    assert hidden(theirs="ladder") == [(16, 12)]  # the protocol is for it


def test_an_error_of_a_configuration_names_the_row(small):
    row = small.rows["dropout"].model_copy(update={"settings": {"network": {"width": 2}}})
    with pytest.raises(ConfigError, match=r"^row dropout: .*network\.width"):
        config(small.model_copy(update={"rows": {"dropout": row}}), Key("few", "dropout", 0))


@pytest.mark.parametrize("name", ["table1", "table2", "table-d1", "table-d2"])
def test_every_cell_of_the_paper_is_run_or_says_why_not(name):
    suite = Suite.load(name)
    for key, row in suite.rows.items():
        assert row.method is not None or row.why, key
    for protocol in suite.protocols.values():
        assert all(protocol.without.values())
    for name in {"scaled", "long"} & suite.protocols.keys():
        run = {(key.row, key.column) for key in suite.cells(name)}
        without = suite.protocols[name].without
        for row, about in suite.rows.items():
            for column in about.paper:
                said = about.why or without.keys() & {row, column, f"{column}/{row}"}
                assert (row, column) in run or said, (row, column)


def test_the_scaled_rows_of_table_2_are_those_that_are_compared():
    cells = list(Suite.load("table2").cells("scaled"))
    assert {key.column for key in cells} == {"svhn-subset-1000", "cifar10-4000"}
    assert {key.seed for key in cells} == {0, 1, 2}
    assert {key.row for key in cells} == {"dropout", "pi", "vat", "vadd-kl", "vadd-qe", "vadd-qe+vat"}
    for name in {suite for suite in suites() if "scaled" in Suite.load(suite).protocols}:
        for key in Suite.load(name).cells("scaled", seeds=1):
            whole, scaled = (config(Suite.load(name), key, protocol) for protocol in ("paper", "scaled"))
            assert scaled.objective == whole.objective
            assert (scaled.optimizer, scaled.data) == (whole.optimizer, whole.data)
