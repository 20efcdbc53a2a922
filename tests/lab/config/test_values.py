import os

import pytest

from advdrop.lab.config.values import ConfigError, merged, overrides, read_yaml


def test_overrides_are_nested_values_in_yaml():
    settings = ["a.b=1", "a.c.d=[1, x]", "e=", "f=a=b", " g =true", "a.b=2"]
    assert overrides(["vat.xi=1", "vat={xi: 2}"]) == {"objective": {"terms": {"vat": {"xi": 2}}}}
    assert overrides(settings) == {"a": {"b": 2, "c": {"d": [1, "x"]}}, "e": None, "f": "a=b", "g": True}
    assert overrides([]) == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["network.delta"], "--set takes KEY=VALUE, such as network.delta=0.01; got 'network.delta'"),
        (["=1"], "--set takes KEY=VALUE"),
        (["a=1", "a.b=2"], "--set a.b=2: a was given a value before"),
        (["a=[1"], r"--set a: '\[1' is not YAML: while parsing"),
        (["a=" + "[" * 5000], r"--set a: '\[\[.*\.\.\..*' is nested too deeply; a configuration has at most"),
        (["a=" + "9" * 5000], r"--set a: '9.*' is not YAML: Exceeds the limit"),
    ],
)
def test_overrides_refuse(settings, message):
    with pytest.raises(ConfigError, match=f"^{message}"):
        overrides(settings)


def test_later_layers_win_key_by_key():
    first, second, third = (
        {"a": {"b": 1, "c": {"d": 2}}, "e": 3},
        {"a": {"c": {"f": 4}}, "e": {"g": 5}},
        {"a": {"b": 6}},
    )
    assert merged(first, second, third) == {"a": {"b": 6, "c": {"d": 2, "f": 4}}, "e": {"g": 5}}
    assert first == {"a": {"b": 1, "c": {"d": 2}}, "e": 3}
    assert merged({"a": {"b": 1}}, {"a": 2}) == {"a": 2}
    assert merged() == {}


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1]\nb: *a\n",
        "&a {b: *a}",
        "a: &a {b: 1}\nc: {<<: *a}\n",
        "!!python/object/apply:os.system [exit]",
        "!!timestamp soon",
        "!!int ''",
        "!!bool perhaps",
        "a: 2025-99-99",
        "a: " + "9" * 5000,
        "[" * 10_000,
        "{a: " * 10_000,
        "\0",
        "a: b: c",
        "? [1]\n: 2",
        "a: 1\n" * 30_000,
    ],
)
def test_yaml_from_a_stranger_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"c\.yaml (is not YAML|is nested too deeply|has more than 131,072)") as caught:
        read_yaml(path, "configuration")
    assert "\n" not in str(caught.value)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(ValueError, match=r"c\.yaml is not a file"):
        read_yaml(path, "configuration")


@pytest.mark.parametrize(
    "text", ["a: 1\nb: 2\na: 3\n", "rows: {a: {x: 1}, a: {y: 2}}\n", 'columns:\n  1000: x\n  "1000": y\n']
)
def test_a_key_that_is_there_twice_is_refused(tmp_path, text):
    """The first one was forgotten without a word."""
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"c\.yaml is not YAML: it has the key '(a|1000)' twice in a section.* line "):
        read_yaml(path, "configuration")
