"""Training on Fabric, and the run directory that it writes. The only folder that imports Lightning's Fabric."""

from advdrop.lab.engine.run import train
from advdrop.lab.engine.rundir import RunDirectory

__all__ = ["RunDirectory", "train"]
