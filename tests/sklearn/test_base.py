"""The fit that the classifier and the regressor share."""

import pickle

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from torch import nn

from advdrop.sklearn import AdversarialDropoutClassifier, AdversarialDropoutRegressor


def small(**options):
    return AdversarialDropoutClassifier(**({"max_iter": 30, "random_state": 0, "hidden_layer_sizes": (40,)} | options))


def test_rows_without_a_label_count(moons):
    x, few, _, _ = moons
    with_them = small().fit(x, few)
    without = small().fit(x[few != -1], few[few != -1])
    assert not np.allclose(with_them.predict_proba(x), without.predict_proba(x))


def test_the_same_seed_gives_the_same_network_and_leaves_the_global_generator_alone(moons):
    x, few, _, _ = moons
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one = small(random_state=3).fit(x, few)
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(one.predict_proba(x), small(random_state=3).fit(x, few).predict_proba(x))
    assert not np.allclose(one.predict_proba(x), small(random_state=4).fit(x, few).predict_proba(x))


def test_the_adversarial_term_changes_the_network(moons):
    x, few, _, _ = moons
    plain, adversarial = (small(weight=weight).fit(x, few).predict_proba(x) for weight in (0.0, 1.0))
    assert not np.allclose(plain, adversarial)


def test_a_second_fit_starts_anew(moons):
    x, few, test, y = moons
    found = small().fit(test, y)
    np.testing.assert_array_equal(found.fit(x, few).predict_proba(x), small().fit(x, few).predict_proba(x))
    assert found.n_iter_ == len(found.loss_curve_) == 30


def test_partial_fits_train_one_network(moons):
    x, few, _, _ = moons
    found = small()
    for epoch in range(1, 41):
        found.partial_fit(x, few, classes=[0, 1])
        assert found.n_iter_ == epoch
    assert found.loss_curve_[-1] < found.loss_curve_[0]
    assert found.score(x[:10], few[:10]) > 0.8


def test_weights_count(moons):
    _, _, x, y = moons
    found = small().fit(x, y, sample_weight=np.where(y == 1, 50.0, 1.0))
    assert found.predict(x).mean() > small().fit(x, y).predict(x).mean()
    equal = small().fit(x, y, sample_weight=np.full(100, 3.0))
    np.testing.assert_allclose(equal.predict_proba(x), small().fit(x, y).predict_proba(x))


def test_a_row_of_weight_0_is_one_without_a_label(moons):
    _, _, x, y = moons
    some = np.arange(100) < 20
    weighted = small(noise=0.1).fit(x, y, sample_weight=some.astype(float))
    unlabeled = small(noise=0.1).fit(x, np.where(some, y, -1))
    np.testing.assert_array_equal(weighted.predict_proba(x), unlabeled.predict_proba(x))


def test_early_stopping_keeps_the_network_with_the_best_score(moons, monkeypatch):
    _, _, x, y = moons
    scores, networks = iter([0.2, 0.7, 0.5, 0.7]), []

    def score(self, y, outputs):
        networks.append(self.network_[0].weight.detach().clone())
        return next(scores)

    monkeypatch.setattr(AdversarialDropoutClassifier, "_validation_score", score)
    found = small(early_stopping=True, validation_fraction=0.2, n_iter_no_change=2, max_iter=200).fit(x, y)
    assert found.n_iter_ == 4
    assert found.best_validation_score_ == 0.7
    assert torch.equal(found.network_[0].weight, networks[1])
    assert not torch.equal(networks[1], networks[3])


def test_early_stopping_scores_rows_that_are_not_trained_on(moons, monkeypatch):
    _, _, x, y = moons
    seen = []
    monkeypatch.setattr(
        AdversarialDropoutClassifier, "_validation_score", lambda self, y, outputs: seen.append(len(y)) or 1.0
    )
    found = small(early_stopping=True, validation_fraction=0.3, n_iter_no_change=1).fit(x, y)
    assert seen == [30, 30]
    tables = []
    monkeypatch.setattr(found._training, "epoch", lambda table, begin, end: tables.append(table) or 0.0)
    monkeypatch.setattr(type(found), "_start", lambda self, x, labeled, outputs: None)
    found.best_validation_score_ = -np.inf
    found.fit(x, y)
    assert len(tables[0].x) == len(tables[0].labeled) == 70


@pytest.mark.parametrize("kind", [small(), AdversarialDropoutRegressor(max_iter=5, random_state=0)])
def test_pickles_and_clones(kind, moons):
    _, _, x, y = moons
    fitted = clone(kind).fit(x, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(x), fitted.predict(x))
    np.testing.assert_array_equal(again.partial_fit(x, y).predict(x), fitted.partial_fit(x, y).predict(x))
    assert not hasattr(clone(fitted), "network_")
    assert clone(fitted).get_params() == kind.get_params()


def test_grids_and_pipelines(moons):
    _, _, x, y = moons
    search = GridSearchCV(
        make_pipeline(MinMaxScaler(), small(max_iter=5)), {"adversarialdropoutclassifier__delta": [0.05, 0.2]}, cv=2
    )
    assert search.fit(x, y).best_score_ > 0.5


def test_progress_is_printed_on_request(moons, capsys):
    x, few, _, _ = moons
    small(verbose=True, max_iter=20, early_stopping=True, validation_fraction=0.3).fit(x, few)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("epoch 2 of 20, loss ")
    assert "best score" in lines[0]
    assert len(lines) == 10
    small(max_iter=2).fit(x, few)
    assert capsys.readouterr().out == ""


def test_several_hidden_layers_or_one_number(moons):
    _, _, x, y = moons
    deep = small(hidden_layer_sizes=(30, 20), max_iter=2).fit(x, y)
    assert [layer.out_features for layer in deep.network_ if isinstance(layer, nn.Linear)] == [30, 20, 2]
    assert small(hidden_layer_sizes=25, max_iter=2).fit(x, y).network_[-1].in_features == 25


def test_features_are_standardized_unless_told_otherwise(moons):
    _, _, x, y = moons
    far = 1000 * x + 5
    np.testing.assert_allclose(
        small(max_iter=5).fit(far, y).predict_proba(far), small(max_iter=5).fit(x, y).predict_proba(x), atol=1e-4
    )
    raw = small(max_iter=1, standardize=False).fit(far, y)
    assert np.ptp(raw._predicted(far)) > 100 * np.ptp(small(max_iter=1).fit(far, y)._predicted(far))


def test_a_constant_feature_changes_nothing_but_the_scale(moons):
    _, _, x, y = moons
    constant = np.column_stack([x, np.full(100, 1e6)])
    assert np.isfinite(small(max_iter=5).fit(constant, y).predict_proba(constant)).all()


def test_automatic_choices_depend_on_the_table():
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    few = np.where(np.arange(40) < 10, y, -1)
    found = [AdversarialDropoutClassifier(max_iter=1, random_state=0).fit(x, labels)._training for labels in (few, y)]
    assert [made.noise for made in found] == pytest.approx([0.6 * 0.75, 0.0])
    assert [made.batch_size for made in found] == [10, 10]
    regressor = AdversarialDropoutRegressor(max_iter=1, random_state=0).fit(x, np.where(few == -1, np.nan, y))
    assert regressor._training.noise == 0.0
    own = AdversarialDropoutClassifier(max_iter=1, noise=0.2, batch_size=7, random_state=0).fit(x, few)._training
    assert (own.noise, own.batch_size) == (0.2, 7)


def test_bad_input_is_an_error(moons):
    x, few, test, y = moons
    with pytest.raises(ValueError, match="would hold back 2 of 2 labeled rows"):
        small(early_stopping=True, validation_fraction=0.9).fit(x[:2], [0, 1])
    with pytest.raises(ValueError, match="nothing to learn from"):
        small().fit(x, few, sample_weight=(few == -1).astype(float))
    with pytest.raises(ValueError, match="The 'delta' parameter"):
        small(delta=2.0).fit(test, y)
    with pytest.raises(NotFittedError):
        small().predict(x)
