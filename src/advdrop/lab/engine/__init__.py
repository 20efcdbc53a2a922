"""Training on Fabric, and the run directory that it writes. The only folder that imports Lightning's Fabric."""

from advdrop.lab.engine.evaluate import error_percent, predictions
from advdrop.lab.engine.run import evaluate_run, load_network, train
from advdrop.lab.engine.rundir import RunDirectory

__all__ = ["RunDirectory", "error_percent", "evaluate_run", "load_network", "predictions", "train"]
