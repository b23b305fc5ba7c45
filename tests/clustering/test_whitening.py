"""Whitening against numpy: which directions are evened out and how far, and rows that are few or do not vary."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.clustering import kmeans as assign
from twincluster.clustering.kmeans import whiten
from twincluster.core import InputError


def stretched(n: int = 400, d: int = 6) -> Tensor:
    """Rows away from 0 whose directions vary very differently, and none along an axis."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(d, d, generator=generator))[0]
    return torch.randn(n, d, generator=generator) * 3.0 ** -torch.arange(d) @ turn + 5


@pytest.mark.parametrize("shrinkage", [0.0, 0.1, 1.0])
def test_whitening_evens_out_directions_down_to_the_floor(shrinkage: float) -> None:
    features = stretched()
    whitening = whiten(features, shrinkage)
    shrinkage *= 1 + 10 * 6 / 400  # the fewer rows per direction, the less their variances are trusted
    rows = features.double().numpy()
    variance, directions = np.linalg.eigh(np.cov(rows.T, bias=True))
    projected = (features - whitening.mean).double() @ whitening.matrix.double()
    assert projected.mean(0).abs().max() < 1e-3
    found = np.linalg.eigvalsh(np.cov(projected.numpy().T, bias=True))
    assert np.allclose(found, np.sort(variance / (variance + shrinkage * variance.mean())), rtol=1e-2)
    wanted = (rows - rows.mean(0)) @ directions / np.sqrt(variance + shrinkage * variance.mean())
    wanted /= np.linalg.norm(wanted, axis=1, keepdims=True)
    unit = whitening(features).double().numpy()
    assert np.allclose(unit @ unit.T, wanted @ wanted.T, atol=1e-2)  # the same cosines; directions have no sign


def test_whitening_survives_an_eigensolver_that_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """LAPACK's divide and conquer failed so on 16 rows of 1,280 features, on one thread of one processor."""
    features = stretched(n=16, d=40)
    expected = whiten(features)(features)

    def fail(matrix: Tensor) -> None:
        raise torch.linalg.LinAlgError("the algorithm failed to converge")

    monkeypatch.setattr(torch.linalg, "eigh", fail)
    found = whiten(features)(features)
    torch.testing.assert_close(found @ found.T, expected @ expected.T, rtol=0, atol=1e-4)


def test_features_of_an_estimator_may_be_float64() -> None:
    features = stretched()
    torch.testing.assert_close(whiten(features.double())(features.double()), whiten(features)(features))


def test_whitening_does_not_blow_up_directions_without_variance() -> None:
    features = stretched()
    features[:, 2] = features[:, 1]  # a direction in which nothing varies
    gain = torch.linalg.svdvals(whiten(features, shrinkage=1.0).matrix)
    variance = torch.linalg.eigvalsh(torch.cov(features.T, correction=0))
    assert gain.max() == pytest.approx(float((1.15 * variance.mean()) ** -0.5), rel=1e-3)


def test_whitening_leaves_few_rows_nearly_as_they_are() -> None:
    features = torch.randn(50, 400, generator=torch.Generator().manual_seed(0))
    centred = F.normalize(features - features.mean(0), dim=1)
    similarity = whiten(features)(features) @ whiten(features)(features).T
    torch.testing.assert_close(similarity, centred @ centred.T, rtol=0, atol=0.05)


def test_whitening_is_blind_to_shift_and_scale_and_takes_new_rows() -> None:
    features = stretched()
    wanted = whiten(features)(features)
    torch.testing.assert_close(wanted.norm(dim=1), torch.ones(len(features)))
    moved = 7 * features + 3
    similarity = whiten(moved)(moved) @ whiten(moved)(moved).T
    torch.testing.assert_close(similarity, wanted @ wanted.T, rtol=0, atol=1e-3)
    torch.testing.assert_close(whiten(features)(features[:3]), wanted[:3])


@pytest.mark.parametrize(("n", "d", "spread"), [(5, 3, 0.0), (1, 3, 1.0), (2, 8, 1.0)])
@pytest.mark.parametrize("level", [0.0, 1.0])
def test_whitening_of_rows_that_do_not_vary_is_finite(n: int, d: int, spread: float, level: float) -> None:
    features = level + spread * torch.randn(n, d, generator=torch.Generator().manual_seed(0))
    rows = whiten(features)(features)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(n))


def test_whitening_is_done_in_float32_and_keeps_no_gradient() -> None:
    features = stretched().requires_grad_()
    expected = whiten(features)
    assert not expected.matrix.requires_grad
    assert whiten(features.bfloat16()).matrix.dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(whiten(features).matrix, expected.matrix)


def test_whitening_refuses_features_that_are_not_numbers() -> None:
    features = stretched()
    features[3, 1] = float("nan")
    with pytest.raises(InputError, match="training diverged, lower the learning rate$"):
        whiten(features)


def test_principal_directions_of_few_rows_that_are_nearly_alike() -> None:
    """Single precision finds no answer for some such covariances."""
    rows = torch.randn(40, 1, generator=torch.Generator().manual_seed(0)) * torch.ones(1, 600)
    rows += 1e-6 * torch.randn(40, 600, generator=torch.Generator().manual_seed(1))
    variance, directions = assign.principal_directions(rows)
    assert variance[-1].item() == pytest.approx(600 * rows.square().mean().item(), rel=1e-3)
    assert directions[:, -1].abs().sub(600**-0.5).abs().max() < 1e-4
    close = directions.T @ directions
    torch.testing.assert_close(close, torch.eye(600), rtol=0, atol=1e-4)
