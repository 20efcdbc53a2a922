"""Estimators for scikit-learn: multilayer perceptrons with adversarial dropout, for tables with missing labels."""

from advdrop.sklearn.classifier import AdversarialDropoutClassifier
from advdrop.sklearn.regressor import AdversarialDropoutRegressor
from advdrop.sklearn.selection import SemiSupervisedKFold, labeled_scorer

__all__ = ["AdversarialDropoutClassifier", "AdversarialDropoutRegressor", "SemiSupervisedKFold", "labeled_scorer"]
