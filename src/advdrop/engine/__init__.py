"""Training: the objective inside Lightning, and the run directory it leaves behind. The only folder that imports it."""

from advdrop.engine.evaluate import error_percent, predictions
from advdrop.engine.run import evaluate_run, load_network, train
from advdrop.engine.rundir import RunDirectory

__all__ = ["RunDirectory", "error_percent", "evaluate_run", "load_network", "predictions", "train"]
