"""The gradient of every loss: against finite differences, where a mask must stop it, and at logits that underflow."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from reference_losses import arrays, tensor, units
from twincluster.methods import losses


def leaves(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor(array).requires_grad_() for array in arrays(*shapes, seed=len(shapes)))


ALLOWED = torch.tensor([[True, False, True, True], [False, False, False, False], [True, True, True, False]])
VALID = torch.arange(6) < 3
DIFFERENTIABLE: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "info_nce": (lambda q, k, n: losses.info_nce(q, k, n, ALLOWED, 0.5), ((3, 2), (3, 2), (4, 2))),
    "assignment": (lambda f, mu: losses.assignment(f, mu, 0.7), ((3, 2), (4, 2))),
    "cluster_representations": (losses.cluster_representations, ((4, 3), (4, 2))),
    "cluster_loss": (lambda r, k, q: losses.cluster_loss(r, k, q, VALID, 0.5), ((3, 2), (3, 2), (6, 2))),
    "cluster_loss of some": (
        lambda r, k, q, p: losses.cluster_loss(r, k, q, VALID, 0.5, 1 + p.abs()),
        ((3, 2), (3, 2), (6, 2), (3,)),
    ),
    "gumbel_softmax": (lambda p, e: losses.gumbel_softmax(p, e, 0.8), ((3, 4), (3, 4))),
    "embedding": (losses.embedding, ((3, 2), (3, 2))),
    "entropy": (losses.entropy, ((3, 4),)),
    "batch_entropy": (losses.batch_entropy, ((3, 4),)),
    "instance_loss": (lambda p, h: losses.instance_loss(p, h, 4), ((3,), (3,))),
    "total_loss": (lambda one, two: losses.total_loss(one, two, 0.3), ((), ())),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    function, shapes = DIFFERENTIABLE[name]
    assert gradcheck(function, leaves(*shapes))


@pytest.mark.parametrize("scale", [1e2, 1e4])
@pytest.mark.parametrize("name", ["assignment", "entropy", "batch_entropy", "gumbel", "representations", "objective"])
def test_extreme_logits_stay_finite(name: str, scale: float) -> None:
    """Logits of +-1e4 in float32: assignments underflow to exact zeros, yet no value or gradient breaks."""
    random = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(6, 3, generator=random), dim=1).requires_grad_()
    prototypes = (scale * torch.eye(3)[[0, 1, 2, 0]] * torch.tensor([[1], [1], [-1], [-1]])).requires_grad_()
    log_pi = losses.assignment(features, prototypes)
    clusters = losses.cluster_representations(features, log_pi.exp())
    keys, queue = clusters.detach(), torch.randn(8, 3, generator=random)
    sample = losses.gumbel_softmax(log_pi, torch.randn(6, 4, generator=random), 0.8)
    likelihood = losses.info_nce(features, -features.detach(), queue, torch.ones(8, dtype=torch.bool), 1 / scale)
    outcome = {
        "assignment": log_pi,
        "entropy": losses.entropy(log_pi),
        "batch_entropy": losses.batch_entropy(log_pi),
        "gumbel": sample,
        "representations": clusters,
        "objective": losses.cluster_loss(clusters, keys, queue, torch.ones(8, dtype=torch.bool), 1 / scale)
        + losses.instance_loss(likelihood, losses.entropy(log_pi), 4),
    }[name]
    weights = torch.linspace(-1, 1, outcome.numel()).view_as(outcome) if outcome.ndim else torch.tensor(1.0)
    (outcome * weights).sum().backward()
    assert torch.isfinite(outcome).all()
    assert torch.isfinite(features.grad).all()
    assert torch.isfinite(prototypes.grad).all()


def test_info_nce_of_extreme_logits_has_the_exact_value() -> None:
    query, key = torch.tensor([[1.0, 0.0]]), torch.tensor([[-1.0, 0.0]])
    everyone = torch.ones(1, dtype=torch.bool)
    assert losses.info_nce(query, key, query, everyone, 1e-4).item() == pytest.approx(-2e4)
    assert losses.info_nce(query, query, key, everyone, 1e-4).item() == 0.0


def test_cluster_loss_gradient_never_reaches_masked_rows() -> None:
    k, d, size = 3, 4, 12
    clusters, keys, queue = (tensor(a).requires_grad_() for a in units((k, d), (k, d), (size, d)))
    valid = torch.arange(size) < 6
    losses.cluster_loss(clusters, keys, queue, valid, 1.0, torch.arange(k) == 1).backward()
    counts = [row < 6 and row % k != 1 for row in range(size)]
    assert [bool(row.any()) for row in queue.grad] == counts
    assert [bool(row.any()) for row in clusters.grad] == [False, True, False]
