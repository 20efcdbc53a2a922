"""Adversarial dropout for PyTorch (Park, Park, Shin and Moon, AAAI 2018)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advdrop.analysis.audit import audit as audit
    from advdrop.analysis.explain import explain as explain
    from advdrop.checks import value_checks as value_checks
    from advdrop.divergences import bernoulli_kl as bernoulli_kl
    from advdrop.divergences import cross_entropy as cross_entropy
    from advdrop.divergences import kl as kl
    from advdrop.divergences import mse as mse
    from advdrop.divergences import qe as qe
    from advdrop.divergences import reverse_kl as reverse_kl
    from advdrop.insertion import insert as insert
    from advdrop.insertion import places as places
    from advdrop.insertion import remove as remove
    from advdrop.masks import AdversarialDropout as AdversarialDropout
    from advdrop.masks import Exhaustive as Exhaustive
    from advdrop.masks import FirstOrder as FirstOrder
    from advdrop.masks import Iterated as Iterated
    from advdrop.masks import MaskProblem as MaskProblem
    from advdrop.masks import Probe as Probe
    from advdrop.masks import RandomFlips as RandomFlips
    from advdrop.masks import Search as Search
    from advdrop.masks import flip_budget as flip_budget
    from advdrop.masks import flip_mask as flip_mask
    from advdrop.masks import sample_mask as sample_mask
    from advdrop.objectives import AT as AT
    from advdrop.objectives import EMA as EMA
    from advdrop.objectives import VAT as VAT
    from advdrop.objectives import AdD as AdD
    from advdrop.objectives import BinaryCrossEntropy as BinaryCrossEntropy
    from advdrop.objectives import CategoricalGenerator as CategoricalGenerator
    from advdrop.objectives import CatGAN as CatGAN
    from advdrop.objectives import CrossEntropy as CrossEntropy
    from advdrop.objectives import DeepSupervision as DeepSupervision
    from advdrop.objectives import EntropyMinimization as EntropyMinimization
    from advdrop.objectives import FakeClass as FakeClass
    from advdrop.objectives import FeatureMatching as FeatureMatching
    from advdrop.objectives import FraternalDropout as FraternalDropout
    from advdrop.objectives import Gamma as Gamma
    from advdrop.objectives import MeanTeacher as MeanTeacher
    from advdrop.objectives import MutualExclusivity as MutualExclusivity
    from advdrop.objectives import OtherMembers as OtherMembers
    from advdrop.objectives import PiModel as PiModel
    from advdrop.objectives import RDrop as RDrop
    from advdrop.objectives import SAdD as SAdD
    from advdrop.objectives import SquaredError as SquaredError
    from advdrop.objectives import TemporalEnsembling as TemporalEnsembling
    from advdrop.objectives import Term as Term
    from advdrop.objectives import TransformationStability as TransformationStability
    from advdrop.objectives import VAdD as VAdD
    from advdrop.presets import AUTHORS as AUTHORS
    from advdrop.presets import PAPER as PAPER
    from advdrop.presets import ROBUST as ROBUST
    from advdrop.schedules import Ramp as Ramp
    from advdrop.sklearn import AdversarialDropoutClassifier as AdversarialDropoutClassifier
    from advdrop.sklearn import AdversarialDropoutRegressor as AdversarialDropoutRegressor
    from advdrop.step.batch_norm import frozen_statistics as frozen_statistics
    from advdrop.step.passes import Passes as Passes
    from advdrop.step.step import Loss as Loss
    from advdrop.step.step import Step as Step

__version__ = "0.1.0"

# `import advdrop` does not import torch: a name is fetched from its module when it is first used.
_HOME = {
    "analysis.audit": ["audit"],
    "analysis.explain": ["explain"],
    "checks": ["value_checks"],
    "divergences": ["bernoulli_kl", "cross_entropy", "kl", "mse", "qe", "reverse_kl"],
    "insertion": ["insert", "places", "remove"],
    "masks": [
        "AdversarialDropout",
        "Exhaustive",
        "FirstOrder",
        "Iterated",
        "MaskProblem",
        "Probe",
        "RandomFlips",
        "Search",
        "flip_budget",
        "flip_mask",
        "sample_mask",
    ],
    "objectives": [
        "AT",
        "EMA",
        "VAT",
        "AdD",
        "BinaryCrossEntropy",
        "CatGAN",
        "CategoricalGenerator",
        "CrossEntropy",
        "DeepSupervision",
        "EntropyMinimization",
        "FakeClass",
        "FeatureMatching",
        "FraternalDropout",
        "Gamma",
        "MeanTeacher",
        "MutualExclusivity",
        "OtherMembers",
        "PiModel",
        "RDrop",
        "SAdD",
        "SquaredError",
        "TemporalEnsembling",
        "Term",
        "TransformationStability",
        "VAdD",
    ],
    "presets": ["AUTHORS", "PAPER", "ROBUST"],
    "schedules": ["Ramp"],
    "sklearn": ["AdversarialDropoutClassifier", "AdversarialDropoutRegressor"],
    "step.batch_norm": ["frozen_statistics"],
    "step.passes": ["Passes"],
    "step.step": ["Loss", "Step"],
}
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}
__all__ = sorted(_MODULE_OF)


def __getattr__(name: str) -> Any:
    if name in _MODULE_OF:
        try:
            value = getattr(import_module(f"advdrop.{_MODULE_OF[name]}"), name)
        except ModuleNotFoundError as error:
            if _MODULE_OF[name] != "sklearn" or (error.name or "advdrop").startswith("advdrop"):
                raise
            raise ImportError(
                f"{name} needs {error.name}, which is not installed; pip install 'advdrop[sklearn]'"
            ) from None
        globals()[name] = value  # the next access does not call this function
        return value
    if name in {module.split(".")[0] for module in _HOME} | {"lab"}:
        return import_module(f"advdrop.{name}")
    raise AttributeError(f"module 'advdrop' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
