"""Dropout masks: functions that sample εs and find εadv for units ``(B, *H)``, and the layer that applies masks."""

from advdrop.masks.budget import flip_budget
from advdrop.masks.distance import euclidean, graph_edit, hamming, jaccard
from advdrop.masks.flip import flip_mask
from advdrop.masks.jacobian import MaskDivergence, Masks, gradient, mask_jacobian, unit_jacobian
from advdrop.masks.layer import AdversarialDropout, use_masks
from advdrop.masks.measures import search_measures
from advdrop.masks.sample import mask_shape, sample_mask, scale_mask
from advdrop.masks.search import Exhaustive, FirstOrder, Iterated, MaskProblem, Probe, RandomFlips, Search

__all__ = [
    "AdversarialDropout",
    "Exhaustive",
    "FirstOrder",
    "Iterated",
    "MaskDivergence",
    "MaskProblem",
    "Masks",
    "Probe",
    "RandomFlips",
    "Search",
    "euclidean",
    "flip_budget",
    "flip_mask",
    "gradient",
    "graph_edit",
    "hamming",
    "jaccard",
    "mask_jacobian",
    "mask_shape",
    "sample_mask",
    "scale_mask",
    "search_measures",
    "unit_jacobian",
    "use_masks",
]
