"""Objectives: one method per file, all with one interface, combined with ``+`` and ``*``."""

from advdrop.objectives.adversarial_dropout import AdD, SAdD, VAdD
from advdrop.objectives.adversarial_training import AT
from advdrop.objectives.base import Combination, Objective, Term
from advdrop.objectives.binary_cross_entropy import BinaryCrossEntropy
from advdrop.objectives.catgan import CategoricalGenerator, CatGAN
from advdrop.objectives.cross_entropy import CrossEntropy
from advdrop.objectives.deep_supervision import DeepSupervision
from advdrop.objectives.ema import EMA
from advdrop.objectives.entropy_minimization import EntropyMinimization
from advdrop.objectives.feature_matching import FakeClass, FeatureMatching
from advdrop.objectives.fraternal_dropout import FraternalDropout
from advdrop.objectives.gamma import Gamma
from advdrop.objectives.mean_teacher import MeanTeacher
from advdrop.objectives.pi_model import PiModel
from advdrop.objectives.r_drop import RDrop
from advdrop.objectives.sajjadi import MutualExclusivity, TransformationStability
from advdrop.objectives.squared_error import SquaredError
from advdrop.objectives.targets import OtherMembers
from advdrop.objectives.temporal_ensembling import TemporalEnsembling
from advdrop.objectives.vat import VAT

__all__ = [
    "AT",
    "EMA",
    "VAT",
    "AdD",
    "BinaryCrossEntropy",
    "CatGAN",
    "CategoricalGenerator",
    "Combination",
    "CrossEntropy",
    "DeepSupervision",
    "EntropyMinimization",
    "FakeClass",
    "FeatureMatching",
    "FraternalDropout",
    "Gamma",
    "MeanTeacher",
    "MutualExclusivity",
    "Objective",
    "OtherMembers",
    "PiModel",
    "RDrop",
    "SAdD",
    "SquaredError",
    "TemporalEnsembling",
    "Term",
    "TransformationStability",
    "VAdD",
]
