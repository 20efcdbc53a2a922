"""Objectives: one method per file, all with one interface, composed with ``+`` and ``*``."""

from advdrop.objectives.adversarial_dropout import AdD, SAdD, VAdD
from advdrop.objectives.adversarial_training import AT
from advdrop.objectives.base import Combination, Loss, Objective, Term, TrainingStep
from advdrop.objectives.cross_entropy import CrossEntropy
from advdrop.objectives.entropy import EntropyMinimisation
from advdrop.objectives.passes import Pass, Passes
from advdrop.objectives.pi_model import PiModel
from advdrop.objectives.sajjadi import MutualExclusivity, TransformationStability
from advdrop.objectives.temporal_ensembling import TemporalEnsembling
from advdrop.objectives.vat import VAT

__all__ = [
    "AT",
    "VAT",
    "AdD",
    "Combination",
    "CrossEntropy",
    "EntropyMinimisation",
    "Loss",
    "MutualExclusivity",
    "Objective",
    "Pass",
    "Passes",
    "PiModel",
    "SAdD",
    "TemporalEnsembling",
    "Term",
    "TrainingStep",
    "TransformationStability",
    "VAdD",
]
