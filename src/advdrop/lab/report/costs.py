"""What a training costs: the time of an update, of a whole training, and the error at a given cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from advdrop.lab.config.config import parse_method
from advdrop.lab.config.terms import METHODS, Method
from advdrop.lab.records.record import ERROR, Record


def on_one_machine(rows: Iterable[Sequence[Record]]) -> list[list[Record]]:
    """Return the runs of each row on one machine: that on which most rows were run, and among those most runs.

    Only their times can be compared. A row without a run on that machine keeps none.
    """
    rows = [*rows]
    best: list[list[Record]] = [[] for _ in rows]
    for machine in _machines(record for runs in rows for record in runs):
        kept = [[record for record in runs if same_machine(record.machine, machine)] for runs in rows]
        if _rows_and_runs(kept) > _rows_and_runs(best):
            best = kept
    return best


def _machines(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the different machines, without those that are named more exactly in another record."""
    found = [*{str(record.machine): record.machine for record in records}.values()]
    return [
        each
        for each in found
        if not any(len(str(other)) > len(str(each)) and same_machine(each, other) for other in found)
    ]


def _rows_and_runs(rows: Sequence[Sequence[Record]]) -> tuple[int, int]:
    return sum(map(bool, rows)), sum(map(len, rows))


def same_machine(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return True if two machines have the same speed as far as their records tell.

    Older records have only the processor's name, without its family and model, and not its instructions.

    >>> zen = {"processor": "AMD EPYC, family 25, model 17", "instructions": "AVX512"}
    >>> same_machine(zen, {"processor": "AMD EPYC"}), same_machine(zen, zen | {"instructions": "AVX2"})
    (True, False)
    """
    names = [str(machine.get("processor")).split(", family ") for machine in (one, other)]
    instructions = {machine.get("instructions") for machine in (one, other)} - {None}
    keys = (one.keys() | other.keys()) - {"processor", "instructions"}
    alike = all(mine == theirs for mine, theirs in zip(*names, strict=False)) and len(instructions) < 2
    return alike and all(one.get(key) == other.get(key) for key in keys)


def update_costs(records: Sequence[Record]) -> dict[bool, float]:
    """Return the milliseconds of an update with the terms for unlabeled images (True) and without them (False).

    They are those of the fastest stretch of each kind between two evaluations of some runs. Other programs can only
    make a run slower, and they disturb a whole run more often than each stretch of it. If there are no stretches of one
    kind, all of them count.
    """
    found = [each for record in records for each in _stretches(record)]
    alike = {kind: [cost for cost, kinds in found if kinds == {kind}] for kind in (True, False)}
    return {kind: min(costs or [cost for cost, _ in found]) for kind, costs in alike.items()}


def _stretches(record: Record) -> list[tuple[float, set[bool]]]:
    """Return the milliseconds of an update in the whole run and in each stretch, with the evaluation at its end.

    Beside it stands whether the terms for unlabeled images ran: both True and False if only in a part of it.
    """
    used = _used_unlabeled(record)
    found = [(record.milliseconds_per_update, {*used})]
    before, start, kinds = 0.0, 0.0, set[bool]()
    for update, end, each in zip(record.curve["update"], record.curve.get("seconds", ()), used, strict=False):
        kinds = kinds | {each}
        if update is None or end is None:
            continue
        if update > before and end > start:
            found.append((1000 * (end - start) / (update - before), kinds))
        before, start, kinds = update, end, set()
    return found


def _used_unlabeled(record: Record) -> list[bool]:
    """Return for each epoch whether the terms for unlabeled images ran; True if the method has no such terms.

    A companion network has no trust in them in the first epoch. At the end of each epoch it decides about the next one.
    """
    trust = record.curve.get("companion_trust")
    if trust is None or not any(term.semi_supervised for term in terms_of(record.method)):
        return [True] * len(record.curve["update"])
    return [False, *map(bool, trust[:-1])]


def spent(record: Record, costs: Mapping[bool, float]) -> dict[float, float]:
    """Return the milliseconds that a training had cost after each update of its curve, at the costs of its row."""
    counts, before, found = {True: 0.0, False: 0.0}, 0.0, {}
    for update, used in zip(record.curve["update"], _used_unlabeled(record), strict=True):
        if update is not None:
            counts[used] += update - before
            before = update
            found[update] = sum(counts[kind] * costs[kind] for kind in counts)
    return found


def training_cost(records: Sequence[Record], costs: Mapping[bool, float]) -> float:
    """Return the milliseconds of the whole training of a row: those of the seed that used unlabeled images the most."""
    return max(spent(record, costs)[record.updates] for record in records)


def at_cost(records: Sequence[Record], costs: Mapping[bool, float], budget: float) -> float | None:
    """Return the mean of the last errors that were measured before a training had cost this many milliseconds.

    It is None if a run had no error by then.
    """
    errors: list[float] = []
    for record in records:
        cost = spent(record, costs)
        pairs = zip(record.curve["update"], record.curve[ERROR], strict=True)
        known = [(update, error) for update, error in pairs if update is not None and error is not None]
        errors += [error for update, error in known if cost[update] <= budget * 1.0001][-1:]
    return fmean(errors) if errors and len(errors) == len(records) else None


def terms_of(method: str) -> list[type[Method]]:
    """Return the kinds of the terms that a method adds to the cross-entropy."""
    return [METHODS[term] for term in parse_method(method) if term in METHODS]
