"""The theorem: its identities, and regularization paths beside lasso and ridge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.report.studies import Claim, Study
from advdrop.lab.report.svg import Figure, Line, chart

METHODS = {
    "ridge": ("ridge", "log10 of the penalty"),
    "lasso": ("lasso", "log10 of the penalty"),
    "training": ("adversarial training", "log10 of δ"),
    "dropout": ("adversarial dropout", "k, inputs that may be dropped"),
}
ZERO = 1e-3
"""A coefficient of standardized features counts as zero below this."""


def study(dataset: str, found: Sequence[Measurement]) -> Study:
    """The section of one data set."""
    [measurement] = found
    numbers, series = measurement.numbers, measurement.series
    about = (
        f"Linear regression on {dataset} ({numbers['examples']:.0f} examples, {numbers['features']:.0f} features, all "
        "standardized): adversarial training perturbs every input by δ at most, adversarial dropout drops k inputs at "
        "most, either of them the worst for each example. The fits are exact: with a bound from below, "
        f"{numbers['fits'] - numbers['not_converged']:.0f} of {numbers['fits']:.0f} converged, and the largest gap is "
        f"{numbers['largest_gap']:.1g} of the objective."
    )
    return Study(
        title=f"The theorem: what is regularized in linear regression, {dataset}",
        about=about,
        head=["model", "parameter", "‖w‖₁", "‖w‖₂", "largest", "coefficients at zero"],
        rows=table(series),
        notes=[
            "Ridge, lasso and adversarial training are shown where their L1 norm is nearest to half of that of least "
            "squares; adversarial dropout, which has nothing in between two ranks, at every k that leaves something.",
        ],
        claims=claims(numbers, series),
        figures=[*path_figures(series), linearized_figure(series)],
        commands=["advdrop reproduce theory"],
        measurements=[measurement],
    )


def features(series: Mapping[str, Sequence[float]]) -> list[str]:
    """The names of the features, in their order."""
    return [key.removeprefix("ridge/") for key in series if key.startswith("ridge/") and key != "ridge/parameter"]


def coefficients(series: Mapping[str, Sequence[float]], method: str, place: int) -> list[float]:
    """Those of a point of a path."""
    return [series[f"{method}/{name}"][place] for name in features(series)]


def table(series: Mapping[str, Sequence[float]]) -> list[list[str]]:
    """Least squares, each method where it has half of its L1 norm, and every rank that has not shrunk to nothing."""
    least = sum(map(abs, coefficients(series, "training", 0)))
    chosen = [("least squares", "training", 0)]
    for method in ("ridge", "lasso", "training"):
        sizes = [sum(map(abs, coefficients(series, method, i))) for i in range(len(series[f"{method}/parameter"]))]
        chosen.append((METHODS[method][0], method, min(range(len(sizes)), key=lambda i: abs(sizes[i] - least / 2))))
    for place in range(1, len(series["dropout/parameter"])):
        if max(map(abs, coefficients(series, "dropout", place))) >= ZERO:
            chosen.append((METHODS["dropout"][0], "dropout", place))
    rows = []
    for name, method, place in chosen:
        w = coefficients(series, method, place)
        parameter = "" if name == "least squares" else f"{series[f'{method}/parameter'][place]:.3g}"
        norms = [sum(map(abs, w)), sum(value * value for value in w) ** 0.5, max(map(abs, w))]
        zeros = sum(abs(value) < ZERO for value in w)
        rows.append([name, parameter, *(f"{norm:.3f}" for norm in norms), f"{zeros} of {len(w)}"])
    return rows


def claims(numbers: Mapping[str, float], series: Mapping[str, Sequence[float]]) -> list[Claim]:
    """The identities, and whether Algorithm 1 finds the mask that the theorem speaks of."""
    found = []
    for key, text in (
        ("training_identity", "l_AT = l + Σ|δ∇l| + δ²wᵀΓw, with Γ an outer product"),
        ("dropout_identity", "l_AdD = l + Σ|x∇l| + wᵀΓw, with the linearized mask"),
    ):
        said = f"largest relative deviation {numbers[key]:.1g} over random problems in float64"
        found.append(Claim(text, "holds" if numbers[key] < 1e-9 else "does not hold", said))
    missed = series["linearized/missed_percent"]
    worst = max(range(len(missed)), key=lambda i: missed[i])
    numbers_said = (
        f"at the least-squares solution the worst mask is another one for up to {missed[worst]:.0f} % of the examples, "
        f"at k = {series['linearized/k'][worst]:.0f}"
    )
    verdict = "holds" if missed[worst] == 0 else "does not hold"
    return [*found, Claim("The mask of Algorithm 1 is the argmax that defines it", verdict, numbers_said)]


def path_figures(series: Mapping[str, Sequence[float]]) -> list[Figure]:
    """Coefficients against the parameter of each method, on one scale."""
    names = features(series)
    everything = [value for method in METHODS for name in names for value in series[f"{method}/{name}"]]
    found = []
    for method, (title, axis) in METHODS.items():
        parameters = series[f"{method}/parameter"]
        logs = axis.startswith("log10")
        order = sorted((i for i, value in enumerate(parameters) if value > 0 or not logs), key=lambda i: parameters[i])
        x = [log10(parameters[i]) if logs else parameters[i] for i in order]
        lines = [
            Line(name, x, [series[f"{method}/{name}"][i] for i in order], style=style % 10, dots=not logs)
            for style, name in enumerate(names)
        ]
        about = f"Coefficients, {title}"
        drawn = chart(lines, about, axis, "coefficient", within=(min(everything), max(everything)))
        found.append(Figure(about, drawn, [(line.name, line.style) for line in lines]))
    return found


def linearized_figure(series: Mapping[str, Sequence[float]]) -> Figure:
    """How often the first-order mask is not the worst one."""
    k = series["linearized/k"]
    lines = [
        Line("examples whose worst mask is another one", k, series["linearized/missed_percent"], style=2),
        Line(
            "loss under the linearized masks, of that under the worst", k, series["linearized/reached_percent"], style=1
        ),
    ]
    title = "Algorithm 1 beside the exact maximum"
    drawn = chart(lines, title, "k, inputs that may be dropped", "%")
    return Figure(title, drawn, [(line.name, line.style) for line in lines], "At the least-squares solution.")
