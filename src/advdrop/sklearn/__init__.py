"""Estimators for scikit-learn: multilayer perceptrons with adversarial dropout, for tables with missing labels."""

from advdrop.sklearn.classifier import AdversarialDropoutClassifier
from advdrop.sklearn.regressor import AdversarialDropoutRegressor

__all__ = ["AdversarialDropoutClassifier", "AdversarialDropoutRegressor"]
