"""A table in which few rows have a label: -1 means no label, as in sklearn.semi_supervised."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from advdrop import AdversarialDropoutClassifier

x, y = load_digits(return_X_y=True)
x, x_test, y, y_test = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
few = np.where(np.random.default_rng(0).permutation(len(y)) < 60, y, -1)
labeled = few != -1

scaler = StandardScaler().fit(x)
plain = MLPClassifier((128,), random_state=0, max_iter=500).fit(scaler.transform(x[labeled]), y[labeled])
print(f"MLPClassifier, {labeled.sum()} labels: {plain.score(scaler.transform(x_test), y_test):.3f}")
ours = AdversarialDropoutClassifier(random_state=0, updates=100).fit(x, few)
print(f"AdversarialDropoutClassifier, {(~labeled).sum()} rows more, unlabeled: {ours.score(x_test, y_test):.3f}")
