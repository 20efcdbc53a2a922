"""The engine: the paper's recipe, a run directory, and a training that can be stopped and resumed."""

from advdrop.lab.config.recipes import recipe
from advdrop.lab.data import load
from advdrop.lab.engine import train

data = load("digits")
for method in ("dropout", "vadd-kl"):
    config = recipe(data, method=method, labels=50, updates=400)
    result = train(config, f"runs/02-{method}", data=data, force=True)  # resume=True continues a stopped run
    print(f"{method}: {result['test_error_percent']:.1f} % test error, saved in runs/02-{method}")
