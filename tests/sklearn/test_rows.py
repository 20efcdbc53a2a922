"""Sparse tables give the results of dense ones, and become dense one batch at a time."""

import pickle

import numpy as np
import pytest
import torch
from scipy.sparse import coo_array, csr_array, csr_matrix
from sklearn.preprocessing import StandardScaler

from advdrop.sklearn import AdversarialDropoutClassifier, AdversarialDropoutRegressor
from advdrop.sklearn.rows import SparseRows, measure_scale, sample, scaled_rows


@pytest.fixture
def wide():
    """60 rows with 12 features, most of them zero, and labels of 30 rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(2, 1, size=(60, 12)) * (rng.random((60, 12)) < 0.3)
    return x, np.where(np.arange(60) < 30, (x[:, 0] > x[:, 1]).astype(int), -1)


def small(**options):
    return AdversarialDropoutClassifier(**{"updates": 10, "members": 2, "random_state": 0} | options)


@pytest.mark.parametrize("form", [csr_matrix, csr_array, coo_array])
@pytest.mark.parametrize("standardize", [True, False])
def test_a_sparse_table_gives_the_result_of_a_dense_one(form, standardize, wide):
    x, y = wide
    dense, sparse = (small(standardize=standardize).fit(one, y) for one in (x, form(x)))
    for test in (x, form(x)):
        np.testing.assert_allclose(sparse.predict_proba(test), dense.predict_proba(test), atol=1e-4)
        np.testing.assert_allclose(sparse.disagreement(test), dense.disagreement(test), atol=1e-4)
    assert sparse.score(form(x), y) == dense.score(x, y)
    again = pickle.loads(pickle.dumps(sparse))
    np.testing.assert_array_equal(again.predict(x), sparse.predict(x))


def test_dense_and_sparse_parts_take_turns(wide):
    x, y = wide
    one, other = small(), small()
    for turn, form in enumerate((np.asarray, csr_array, np.asarray, csr_array)):
        rows = np.arange(turn, 60, 4)
        one.partial_fit(x[rows], y[rows], classes=[0, 1])
        other.partial_fit(form(x[rows]), y[rows], classes=[0, 1])
    np.testing.assert_allclose(other._scaler.mean_, x.mean(0))
    np.testing.assert_allclose(other.predict_proba(x), one.predict_proba(x), atol=1e-3)


def test_the_regressor_too(wide):
    x, _ = wide
    y = np.where(np.arange(60) % 2, np.nan, x[:, 3])
    one, other = (
        AdversarialDropoutRegressor(updates=10, members=2, random_state=0).fit(form(x), y)
        for form in (np.asarray, csr_array)
    )
    np.testing.assert_allclose(other.predict(csr_array(x)), one.predict(x), atol=1e-3)


def test_zeros_that_are_stored_change_nothing(wide):
    x, y = wide
    stored = csr_array(x)
    stored.data[::3] = 0.0
    clean = csr_array(stored.toarray())
    assert clean.nnz < stored.nnz
    one, other = (small().fit(form, y).predict_proba(x) for form in (stored, clean))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_nan_in_a_sparse_table_is_an_error(wide):
    x, y = wide
    bad = csr_array(x)
    bad.data[0] = np.nan
    with pytest.raises(ValueError, match="contains NaN"):
        small().fit(bad, y)
    with pytest.raises(ValueError, match="contains NaN"):
        small().fit(x, y).predict(bad)


def test_only_a_batch_becomes_dense(wide, monkeypatch):
    x, y = wide
    sizes, dense = [], csr_array.toarray

    def toarray(self, *args, **options):
        sizes.append(self.shape[0])
        return dense(self, *args, **options)

    monkeypatch.setattr(csr_array, "toarray", toarray)
    small(batch_size=8, unlabeled_batch_size=7).fit(csr_array(np.repeat(x, 100, axis=0)), np.repeat(y, 100))
    assert set(sizes) <= {7, 8, 1000, 4096 - 1096, 3000, 4096}
    assert sizes.count(8) == 10 * 3
    found = SparseRows(csr_array(x), StandardScaler().fit(x), torch.float64, torch.device("cpu"))
    assert [len(part) for part in found.split(25)] == [25, 25, 10]
    np.testing.assert_allclose(torch.cat(list(found.split(25))), (x - x.mean(0)) / x.std(0))
    np.testing.assert_allclose(found[:9][torch.tensor([8, 0])], ((x - x.mean(0)) / x.std(0))[[8, 0]])
    assert len(found[:0]) == 0


def test_the_scale_is_measured_without_a_dense_table(wide):
    x, _ = wide
    scaler = StandardScaler()
    measure_scale(scaler, csr_array(x))
    assert scaler.with_mean
    np.testing.assert_allclose(scaler.mean_, x.mean(0))
    np.testing.assert_allclose(scaler.scale_, x.std(0))
    assert isinstance(scaled_rows(scaler, x, torch.float32, torch.device("cpu")), torch.Tensor)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
@pytest.mark.parametrize("value", [1.7e18, -0.1, 1e30])
def test_a_feature_that_is_the_same_in_all_rows_says_nothing_however_large_it_is(form, value, wide):
    x, y = wide
    constant = form(np.column_stack([x, np.full(len(x), value)]))
    scaler = StandardScaler()
    measure_scale(scaler, constant)
    rows = scaled_rows(scaler, constant, torch.float64, torch.device("cpu"))
    dense = torch.cat(list(rows.split(16)))
    assert torch.equal(dense[:, -1], torch.zeros(60, dtype=torch.float64))
    np.testing.assert_allclose(dense[:, :-1], StandardScaler().fit_transform(x), atol=1e-12)
    found = small(updates=40).fit(constant, y)
    assert found.score(constant[:30], y[:30]) > 0.9
    later = form(np.column_stack([x, np.full(len(x), value + abs(value))]))  # whose weights have learned nothing
    np.testing.assert_array_equal(found.predict_proba(later), found.predict_proba(constant))


def test_rows_that_cannot_be_written_are_read(wide):
    x, y = wide
    x = x.copy()
    x.flags.writeable = False  # as joblib gives them to its processes
    small(standardize=False, updates=1).fit(x, y).predict(x)  # a warning is an error


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_it_says_nothing_in_several_parts_either_until_it_changes(form):
    scaler, parts = StandardScaler(), [np.full((n, 1), 1e30) for n in (7, 30, 178)]
    for part in parts:
        measure_scale(scaler, form(part))
        assert scaler.mean_ == 1e30
    measure_scale(scaler, form(np.zeros((215, 1))))
    np.testing.assert_allclose(scaler.mean_, 0.5e30)


@pytest.mark.parametrize("form", [np.asarray, csr_array])
def test_a_row_with_the_mean_of_a_feature_does_not_make_it_one_that_never_changes(form):
    scaler = StandardScaler()
    for part in ([[0.0, 5.0], [1.0, 5.0], [2.0, 5.0]], [[1.0, 5.0]]):
        measure_scale(scaler, form(part))
    np.testing.assert_allclose(scaler.scale_, [0.5**0.5, np.inf])


@pytest.mark.parametrize("standardize", [True, False])
def test_several_entries_of_one_place_are_their_sum(standardize, wide):
    x, y = wide
    rows, columns = np.nonzero(x)
    ends = np.searchsorted(rows, np.arange(61))
    half = np.repeat(x[rows, columns] / 2, 2)
    double = csr_matrix((half, np.repeat(columns, 2), 2 * ends), shape=x.shape)
    model = small(standardize=standardize).fit(double, y)
    np.testing.assert_array_equal(
        model.predict_proba(double), small(standardize=standardize).fit(csr_matrix(x), y).predict_proba(x)
    )
    assert double.nnz == 2 * len(rows)  # the table of the caller is as it was


@pytest.mark.parametrize("offset", [1e9, 1e15])
def test_a_large_number_with_small_differences_keeps_them(offset):
    x = offset + np.arange(60.0)[:, None] % 2
    scaler = StandardScaler()
    measure_scale(scaler, x)
    rows = scaled_rows(scaler, x, torch.float64, torch.device("cpu")).flatten()
    assert (rows[1::2] - rows[::2] > 0.9).all()


@pytest.mark.parametrize("sparse", [False, True])
def test_a_sample_has_rows_of_the_whole_table(sparse):
    x = np.arange(500.0)[:, None]
    scaler = StandardScaler(with_mean=False, with_std=False).fit(x)
    rows = scaled_rows(scaler, csr_matrix(x) if sparse else x, torch.float32, torch.device("cpu"))
    found = torch.cat(list(sample(rows, 100, seed=0).split(64)))[:, 0]
    assert len(found.unique()) == 100
    assert 200 < found.mean() < 300  # a hundred numbers from 0 to 499, at random
    assert isinstance(sample(rows, 100, seed=0), SparseRows) == sparse
    assert sample(rows, 500, seed=0) is rows
