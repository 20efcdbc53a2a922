"""Training: the objective inside Lightning, and the run directory it leaves behind. The only folder that imports it."""

from advdrop.lab.engine.evaluate import error_percent, predictions
from advdrop.lab.engine.run import evaluate_run, load_network, train
from advdrop.lab.engine.rundir import RunDirectory

__all__ = ["RunDirectory", "error_percent", "evaluate_run", "load_network", "predictions", "train"]
