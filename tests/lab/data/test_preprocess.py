import numpy as np
import pytest
import torch

from advdrop.lab.data import preprocess
from advdrop.lab.data.preprocess import Preprocess, fit, scaled, zca_matrix

SCALED = {"unit": lambda x: x / 255, "centered": lambda x: (x - 127.5) / 255, "none": lambda x: x}


def images(count=50, shape=(3, 4, 5), seed=0):
    """Bytes whose channels have means and spreads of their own."""
    draw = np.random.default_rng(seed)
    spread = np.linspace(10, 60, shape[0])[:, None, None]
    return torch.from_numpy(draw.normal(90 + spread, spread, (count, *shape)).clip(0, 255).astype(np.uint8))


def mixed(spectrum, count=200, seed=0):
    """Examples ``(N, D)`` of float32 whose covariance has these eigenvalues, in a basis of its own."""
    draw = np.random.default_rng(seed)
    white = draw.normal(size=(count, len(spectrum)))
    white -= white.mean(0)
    white = white @ np.linalg.inv(np.linalg.cholesky(white.T @ white / count)).T
    basis = np.linalg.qr(draw.normal(size=(len(spectrum), len(spectrum))))[0]
    return torch.from_numpy((white * np.sqrt(spectrum)) @ basis.T + 0.1).float()


def eigen(x):
    x = x.double().numpy().reshape(len(x), -1)
    return np.linalg.eigh(np.cov(x.T, bias=True))


@pytest.fixture(autouse=True)
def _a_cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(preprocess, "cache_folder", lambda: tmp_path / "default")


@pytest.fixture
def eigh_calls(monkeypatch):
    calls, eigh = [], torch.linalg.eigh
    monkeypatch.setattr(torch.linalg, "eigh", lambda matrix: calls.append(matrix.dtype) or eigh(matrix))
    return calls


@pytest.mark.parametrize("scaling", SCALED)
def test_scaling(scaling):
    x = images()
    expected = SCALED[scaling](x.numpy().astype(np.float64))
    for found in (scaled(x, scaling), Preprocess(scaling)(x), fit(x, scaling=scaling)(x)):
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)
    assert x.dtype == torch.uint8


@pytest.mark.parametrize(
    ("x", "axes"),
    [(images(), (0, 2, 3)), (images()[:, 0, 0].float() * 1e3 + 1e6, (0,)), (images()[:, 0].float(), (0,))],
)
@pytest.mark.parametrize("scaling", SCALED)
def test_standardization_is_numpys(x, axes, scaling):
    train, other = x[:30], x[30:]
    values = SCALED[scaling](train.numpy().astype(np.float64))
    mean, std = values.mean(axes, keepdims=True)[0], values.std(axes, keepdims=True)[0]
    found = fit(train, scaling=scaling, standardize=True)
    assert found.mean.shape == mean.shape == found.std.shape
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.std, std, rtol=1e-6)
    expected = (SCALED[scaling](other.numpy().astype(np.float64)) - mean) / std
    np.testing.assert_allclose(found(other), expected, atol=1e-2 if x.max() > 1e6 else 1e-4)


@pytest.mark.parametrize("unit", [1e-30, 1e-13, 1e25])
def test_the_unit_of_a_feature_makes_no_difference(unit):
    x = torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    found = fit(x * unit, scaling="none", standardize=True)(x * unit)
    torch.testing.assert_close(found, fit(x, scaling="none", standardize=True)(x))


@pytest.mark.parametrize("value", [0.0, 0.1, 1e6 / 3, -1e-7, 1e-40])
def test_a_feature_that_never_varies_is_only_centered(value):
    x = torch.randn(1000, 2)
    x[:, 1] = value
    found = fit(x, scaling="none", standardize=True)
    assert found.std[1] == 1.0
    x[0, 1] += 1.0
    assert found(x)[0, 1] == pytest.approx(1.0, abs=0.1)
    assert found(x)[1:, 1].abs().max() <= abs(value) * 1e-6


@pytest.mark.parametrize("value", [0.1, 12345.0, -1e-3])
def test_neither_is_one_that_varies_by_its_rounding_alone_blown_up(value):
    x = torch.full((1000, 1), value)
    x[::2] = torch.nextafter(x[::2], torch.tensor(float("inf")))
    assert fit(x, scaling="none", standardize=True)(x).abs().max() <= abs(value) * 1e-6


def test_a_feature_that_hardly_varies_is_scaled():
    x = 100.0 + 0.01 * torch.randn(1000, 1)
    assert fit(x, scaling="none", standardize=True)(x).std() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("regularizer", [1e-9, 0.3])
def test_whitened_training_data_have_the_spectrum_lambda_over_lambda_plus_regularizer(regularizer):
    x = mixed(np.linspace(0.1, 2.0, 8))
    eigenvalues, basis = eigen(x)
    whitened = fit(x, scaling="none", zca=True, regularizer=regularizer)(x).double().numpy()
    found = basis.T @ np.cov(whitened.T, bias=True) @ basis
    np.testing.assert_allclose(found, np.diag(eigenvalues / (eigenvalues + regularizer)), atol=1e-4)
    np.testing.assert_allclose(whitened.mean(0), 0.0, atol=1e-5)


def test_the_whitening_is_numpys_and_symmetric():
    x = images(300, (2, 3, 2))
    found = fit(x, scaling="centered", zca=True, regularizer=0.01)
    eigenvalues, basis = eigen(scaled(x, "centered"))
    expected = basis @ np.diag((eigenvalues + 0.01) ** -0.5) @ basis.T
    np.testing.assert_allclose(found.whitening, expected, atol=1e-5)
    np.testing.assert_allclose(found.whitening, found.whitening.T, atol=1e-6)
    center = SCALED["centered"](x.double().numpy()).reshape(300, -1).mean(0)
    np.testing.assert_allclose(found.center, center, atol=1e-6)
    other = images(10, (2, 3, 2), seed=1)
    flat = (SCALED["centered"](other.double().numpy()).reshape(10, -1) - center) @ expected
    assert found(other).shape == other.shape
    np.testing.assert_allclose(found(other).flatten(1), flat, atol=1e-4)


def test_small_eigenvalues_are_whitened_where_float32_would_lose_them(eigh_calls):
    x = mixed(10.0 ** -np.arange(10.0), count=400)
    whitened = fit(x, scaling="none", zca=True, regularizer=1e-13)(x)
    assert eigh_calls == [torch.float64]
    np.testing.assert_allclose(np.cov(whitened.double().numpy().T, bias=True), np.eye(10), atol=0.05)
    single = torch.cov(x.T, correction=0)
    values, u = torch.linalg.eigh(single)
    lost = (x - x.mean(0)) @ ((u * (values.clamp_min(0) + 1e-13).rsqrt()) @ u.T)
    assert np.abs(np.cov(lost.double().numpy().T, bias=True) - np.eye(10)).max() > 0.5


def test_whitening_comes_after_standardization():
    x = images(200, (2, 2, 2))
    found = fit(x, standardize=True, zca=True, regularizer=0.1)
    first = fit(x, standardize=True)
    center, whitening = zca_matrix(first(x), 0.1, Preprocess("none"))
    torch.testing.assert_close(found(x), ((first(x).flatten(1) - center) @ whitening).view(x.shape))


def test_the_parts_do_not_show(monkeypatch):
    x, seen = images(50, (2, 3, 2)), []
    options = {"standardize": True, "zca": True, "regularizer": 0.1}
    whole = fit(x, **options)
    monkeypatch.setattr(preprocess, "PART", 7)
    monkeypatch.setattr(preprocess, "scaled", lambda x, scaling: seen.append(len(x)) or scaled(x, scaling))
    parts = fit(x, **options)
    assert max(seen) == 7  # and no more were ever floats
    for name in ("mean", "std", "center", "whitening"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), rtol=1e-5, atol=1e-6)


def test_a_whitening_that_is_kept_is_not_announced(tmp_path):
    told = []
    for _ in range(2):
        fit(images(30, (1, 3, 2)), zca=True, cache=tmp_path, whitens=lambda: told.append("now"))
    assert told == ["now"]


def test_a_whitening_is_kept_by_the_checksum_of_what_it_was_fitted_on(tmp_path, eigh_calls):
    cache, x = tmp_path / "not" / "there", images(30, (1, 3, 2))
    options = {"zca": True, "regularizer": 0.1, "cache": cache}
    first, again = fit(x, **options), fit(x.clone(), **options)
    assert len(eigh_calls) == len(list(cache.iterdir())) == 1
    assert torch.equal(first.whitening, again.whitening)
    assert torch.equal(first.center, again.center)
    changed = x.clone()
    changed[3, 0, 0, 0] += 1
    others = [
        (changed, options),
        (x[:29], options),
        (x.view(30, 1, 2, 3), options),
        (x, {**options, "regularizer": 0.2}),
        (x, {**options, "scaling": "centered"}),
        (x, {**options, "standardize": True}),
    ]
    for count, (data, other) in enumerate(others, start=2):
        fit(data, **other)
        assert len(eigh_calls) == len(list(cache.iterdir())) == count
    fit(x, zca=True, regularizer=0.1)
    assert len(eigh_calls) == len(others) + 2


@pytest.mark.parametrize(
    "trouble", ["a file where the folder should be", "a folder where the file should be", "no room"]
)
def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch, trouble):
    cache, x = tmp_path / "cache", images(30, (1, 3, 2))
    options = {"zca": True, "regularizer": 0.1}
    if trouble.startswith("a file"):
        cache.write_text("")
    elif trouble.startswith("a folder"):
        fit(x, **options, cache=cache)
        (kept,) = cache.iterdir()
        kept.unlink()
        kept.mkdir()
    else:

        def full(path):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(preprocess, "written", full)
    assert torch.equal(fit(x, **options, cache=cache).whitening, fit(x, **options).whitening)


@pytest.mark.parametrize("content", [b"", b"spoilt" * 10])
def test_a_spoilt_cache_is_made_again(tmp_path, content):
    x = images(30, (1, 3, 2))
    expected = fit(x, zca=True, cache=tmp_path).whitening
    (kept,) = tmp_path.iterdir()
    good = kept.read_bytes()
    kept.write_bytes(content)
    assert torch.equal(fit(x, zca=True, cache=tmp_path).whitening, expected)
    assert kept.read_bytes() == good


def test_all_of_it_moves_to_a_device():
    moved = fit(images(20, (1, 2, 2)), scaling="centered", standardize=True, zca=True).to(torch.device("meta"))
    assert moved.scaling == "centered"
    assert {getattr(moved, name).device.type for name in ("mean", "std", "center", "whitening")} == {"meta"}
    assert Preprocess("none").to(torch.device("meta")) == Preprocess("none")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_inputs_are_the_same_in_half_precision(dtype):
    """A training makes its batches under autocast, an evaluation does not."""
    fitted = fit(images(), zca=True)
    with torch.autocast("cpu", dtype=dtype):
        found = fitted(images(8))
    assert found.dtype == torch.float32
    assert torch.equal(found, fitted(images(8)))


def test_the_shape_of_inputs_can_be_had_without_memory():
    """As a model that is loaded asks for it."""
    fitted = fit(images(), standardize=True, zca=True).to(torch.device("meta"))
    assert fitted(torch.empty(2, 3, 4, 5, device="meta")).shape == (2, 3, 4, 5)
