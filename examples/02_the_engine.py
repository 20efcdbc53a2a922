"""The engine: the paper's recipe, a run directory, and training that can be killed and gone on with."""

from advdrop.data import load
from advdrop.engine import train
from advdrop.experiments.recipes import recipe

data = load("digits")
for method in ("dropout", "vadd-kl"):
    config = recipe(data, method=method, labels=50, updates=400)
    result = train(config, f"runs/02-{method}", data=data, force=True)  # resume=True goes on with a killed run
    print(f"{method}: {result['test_error_percent']:.1f} % test error, all of it in runs/02-{method}")
