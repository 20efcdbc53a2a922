"""The commands that run the rows of a table again."""

from __future__ import annotations

import json
import shlex
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain, product
from typing import Any

from advdrop.lab.config.values import ConfigError, parse_yaml
from advdrop.lab.report.deviations import config_in, flat
from advdrop.lab.report.results import LOOSE, Results
from advdrop.lab.suites.suite import Key, Suite, differences, suites


def run_again(results: Results) -> list[str]:
    """Return the commands that run all rows again, for a shell such as bash or zsh.

    Cells of a suite are run by one command if they have the same number of seeds and form a table of their own.
    """
    if results.suite.key == LOOSE:
        return [command for row in results.measured for command in _without_suite(results, row)]
    rows: dict[tuple[int, tuple[str, ...]], list[str]] = defaultdict(list)  # for each number of seeds and its columns
    for row in results.measured:
        columns: dict[int, list[str]] = defaultdict(list)
        for column in results.columns:
            if records := results.entries[row, column].records:
                columns[1 + max(record.seed for record in records)].append(column)
        for seeds, run in columns.items():
            rows[seeds, tuple(run)].append(row)
    return [_reproduce(results, named, run, seeds) for (seeds, run), named in rows.items()]


def _reproduce(results: Results, rows: Sequence[str], columns: Sequence[str], seeds: int) -> str:
    """Return the command that runs some cells of a suite, with the instructions that most of their records name."""
    suite = results.suite
    name = suite.key if suite.key in suites() and suite == Suite.load(suite.key) else f"{suite.key}.yaml"
    preset = [] if results.preset == "paper" else ["--preset", results.preset]
    words = ["advdrop", "reproduce", name, "--protocol", results.protocol, *preset, "--only", ",".join(rows)]
    records = chain.from_iterable(results.entries[cell].records for cell in product(rows, columns))
    used = [record.machine["instructions"] for record in records if "instructions" in record.machine]
    limit = ["--instructions", "avx2"] if 2 * used.count("AVX2") > len(used) else []
    return shell([*words, "--columns", ",".join(columns), "--seeds", str(seeds), *limit])


def _without_suite(results: Results, row: str) -> list[str]:
    """Return the commands that run a row that belongs to no suite."""
    records = results.of_row(row)
    return _train([records[0].method], settings(results, row), [record.seed for record in records])


def _train(methods: Sequence[str], what: Sequence[str], seeds: Sequence[int]) -> list[str]:
    """Return one command for seeds from 0 on, or one for each run. Only ``train`` has ``--from``."""
    if "--from" not in what and list(seeds) == list(range(len(seeds))):
        return [shell(["advdrop", "compare", "--methods", ",".join(methods), *what, "--seeds", str(len(seeds))])]
    runs = product(methods, seeds)
    return [shell(["advdrop", "train", "--method", method, *what, "--seed", str(seed)]) for method, seed in runs]


def settings(results: Results, row: str) -> list[str]:
    """Return the options of a row that belongs to no suite: the data, and all settings that are not the recipe's."""
    first = results.of_row(row)[0]
    config = config_in(first)
    key = Key("runs", row, first.seed)
    facts = {"shape": first.shape, "examples": first.examples, "half_labeled": first.half_labeled}
    recipe = results.suite.config(key, "own", config.preset, **facts)
    different = differences(recipe, config)
    # Another network has other defaults, and --from takes the options of the run that it names.
    sections = ("network.",) if config.start or "network.name" in different else ()
    what = ["--dataset", first.dataset, "--labels", str(first.labels), "--preset", config.preset]
    what += ["--updates", str(first.updates)]
    what += ["--from", str(config.start.run)] if config.start else []
    for name, value in flat(config).items():
        if name in different or name.startswith(sections):
            what += ["--set", f"{name}={_as_yaml(value)}"]
    return what


def more_seeds(results: Results, seeds: int = 5) -> list[str]:
    """Return the commands that run all rows with this many seeds, together if they have the same settings."""
    if results.suite.key != LOOSE:
        return [_reproduce(results, results.measured, results.columns, seeds)]
    groups: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for row in results.measured:
        groups[tuple(settings(results, row))].append(results.of_row(row)[0].method)
    commands = (_train([*dict.fromkeys(methods)], what, range(seeds)) for what, methods in groups.items())
    return [*chain.from_iterable(commands)]


def _as_yaml(value: Any) -> str:
    """Return a value as ``--set`` reads it."""
    with suppress(ConfigError):
        if isinstance(value, str) and parse_yaml(value, "") == value:
            return value
    return json.dumps(value)


def shell(words: Iterable[str]) -> str:
    r"""Quote words for a shell, on one line and without a character that HTML or Markdown would read.

    >>> print(shell(["ls", "my data", "<b>\n"]))
    ls 'my data' $'\U0000003cb>\U0000000a'
    """
    return " ".join(map(_quoted, words))


def _quoted(word: str) -> str:
    if word.isprintable() and not set(word) & set("<`"):
        return shlex.quote(word)
    safe = (letter if letter.isprintable() and letter not in "<`'\\" else f"\\U{ord(letter):08x}" for letter in word)
    return f"$'{''.join(safe)}'"
