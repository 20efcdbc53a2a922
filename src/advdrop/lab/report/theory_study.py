"""The theorem: its identities, and regularization paths beside lasso and ridge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10

from advdrop.lab.records.measurement import Measurement
from advdrop.lab.report.charts import COLORS, Figure, Line, chart
from advdrop.lab.report.study import Claim, Study

METHODS = {
    "ridge": ("ridge", "log10 of the penalty"),
    "lasso": ("lasso", "log10 of the penalty"),
    "training": ("adversarial training", "log10 of δ"),
    "dropout": ("adversarial dropout", "k, inputs that may be dropped"),
}
Series = Mapping[str, Sequence[float]]
ZERO = 1e-3
"""A coefficient of standardized features counts as zero below this."""


def study(dataset: str, found: Sequence[Measurement]) -> Study:
    """Make the section of one data set."""
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


def features(series: Series) -> list[str]:
    """Return the names of the features, in their order."""
    return [key.removeprefix("ridge/") for key in series if key.startswith("ridge/") and key != "ridge/parameter"]


def coefficients(series: Series, method: str) -> list[list[float]]:
    """Return the coefficients at each point of a path."""
    return [list(point) for point in zip(*(series[f"{method}/{name}"] for name in features(series)), strict=True)]


def l1(w: Sequence[float]) -> float:
    """Return the L1 norm."""
    return sum(map(abs, w))


def table(series: Series) -> list[list[str]]:
    """Return least squares, each method where it has half of its L1 norm, and every rank that has coefficients left."""
    paths = {method: coefficients(series, method) for method in METHODS}
    least = paths["training"][0]
    chosen = [("least squares", "", least)]
    for method in ("ridge", "lasso", "training"):
        nearest = min(range(len(paths[method])), key=lambda i: abs(l1(paths[method][i]) - l1(least) / 2))
        chosen.append((METHODS[method][0], f"{series[f'{method}/parameter'][nearest]:.3g}", paths[method][nearest]))
    for k, w in zip(series["dropout/parameter"][1:], paths["dropout"][1:], strict=True):
        if max(map(abs, w)) >= ZERO:
            chosen.append((METHODS["dropout"][0], f"{k:.3g}", w))
    rows = []
    for name, parameter, w in chosen:
        norms = [l1(w), sum(value * value for value in w) ** 0.5, max(map(abs, w))]
        zeros = sum(abs(value) < ZERO for value in w)
        rows.append([name, parameter, *(f"{norm:.3f}" for norm in norms), f"{zeros} of {len(w)}"])
    return rows


def claims(numbers: Mapping[str, float], series: Series) -> list[Claim]:
    """Judge the identities, and whether Algorithm 1 finds the mask that the theorem is about."""
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


def path_figures(series: Series) -> list[Figure]:
    """Draw the coefficients against the parameter of each method, on one scale."""
    names = features(series)
    everything = [value for method in METHODS for name in names for value in series[f"{method}/{name}"]]
    found = []
    for method, (title, axis) in METHODS.items():
        parameters = series[f"{method}/parameter"]
        logs = axis.startswith("log10")
        order = sorted((i for i, value in enumerate(parameters) if value > 0 or not logs), key=lambda i: parameters[i])
        x = [log10(parameters[i]) if logs else parameters[i] for i in order]
        lines = [
            Line(name, x, [series[f"{method}/{name}"][i] for i in order], style=style % len(COLORS), dots=not logs)
            for style, name in enumerate(names)
        ]
        within = (min(everything), max(everything))
        found.append(chart(lines, f"Coefficients, {title}", axis, "coefficient", within=within))
    return found


def linearized_figure(series: Series) -> Figure:
    """Draw how often the first-order mask is not the worst one."""
    k = series["linearized/k"]
    lines = [
        Line(name, k, series[f"linearized/{key}_percent"], style=style)
        for name, key, style in (
            ("examples whose worst mask is another one", "missed", 2),
            ("loss under the linearized masks, of that under the worst", "reached", 1),
        )
    ]
    title, axis = "Algorithm 1 beside the exact maximum", "k, inputs that may be dropped"
    return chart(lines, title, axis, "%", note="At the least-squares solution.")
