"""The systems that the paper names in its text: PCL, SCCL, VaDE, SPICE, and our readings of SCL, DHOG and DDC."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

import reference_named as slow
from reference_losses import arrays, close, softmax, tensor, units
from small_peers import N, directions, method_of, step, views_of
from twincluster.methods.peers import peer_losses
from twincluster.methods.peers.pcl import Pcl


def assignments(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.array([softmax(row) for row in 2 * arrays((n, k), seed=seed)[0]])


# -- PCL -------------------------------------------------------------------------------------------------------------


def test_concentrations() -> None:
    rows, centres = units((9, 3), (4, 3), seed=1)
    labels = [0, 0, 0, 1, 1, 2, 2, 2, 3]  # the last cluster has one row, and counts as the loosest
    found = peer_losses.concentrations(tensor(rows), tensor(centres), torch.tensor(labels), 0.2)
    close(found, slow.concentrations(rows, centres, labels, 0.2), torch.float64)
    assert found.mean().item() == pytest.approx(0.2)


@pytest.mark.parametrize("n_known", [4, 3, 0])
def test_prototype_contrast(n_known: int) -> None:
    """Prototypes with a concentration of 0 are none; without any there is no loss."""
    query, prototypes = units((5, 3), (4, 3))
    phi, label = [0.1, 0.2, 0.5, 0.3], [0, 1, 2, 0, 1]
    known = tensor(np.array([*phi[:n_known], *[0.0] * (4 - n_known)]))
    found = peer_losses.prototype_contrast(tensor(query), tensor(prototypes), known, torch.tensor(label))
    wanted = slow.prototype_contrast(query, prototypes[:n_known], phi[:n_known], label) if n_known else 0.0
    assert found.item() == pytest.approx(wanted, abs=1e-9)


def test_prototypes_join_when_they_are_known() -> None:
    method: Pcl = method_of("pcl")
    without = step(method).loss
    method.prototypes.copy_(directions(*method.prototypes.shape))
    method.concentration[0, :3] = 0.2
    method.known.fill_(1)
    outcome = step(method)
    with torch.no_grad():
        query = method.online.project(method.online.backbone_features(views_of(method)[0])).numpy()
    clustering = method.prototypes[0, :3].numpy()
    wanted = slow.prototype_contrast(query, clustering, [0.2] * 3, [0] * N) / len(method.prototypes)
    assert outcome.loss.item() - without.item() == pytest.approx(wanted, abs=1e-6)


# -- VaDE ------------------------------------------------------------------------------------------------------------


def test_responsibilities_and_divergence_of_a_mixture() -> None:
    mean, log_variance, means, log_variances = arrays((5, 2), (5, 2), (3, 2), (3, 2), seed=2)
    (shares,) = arrays((3,), seed=3)
    code = tensor(mean)
    log_q = peer_losses.mixture_responsibilities(code, tensor(shares), tensor(means), tensor(log_variances))
    wanted = slow.responsibilities(mean, shares, means, log_variances)
    close(log_q.exp(), wanted, torch.float64)
    found = peer_losses.mixture_divergence(
        code, tensor(log_variance), log_q, tensor(shares), tensor(means), tensor(log_variances)
    )
    close(found, slow.mixture_divergence(mean, log_variance, wanted, shares, means, log_variances), torch.float64)


def test_divergence_is_that_of_a_sample_of_codes() -> None:
    """By Monte Carlo: E log q(z|x) q(k|x) - log p(z, k) over the posterior."""
    torch.manual_seed(0)
    mean, log_variance, shares, means, log_variances = (
        torch.randn(*shape, dtype=torch.float64) for shape in ((1, 2), (1, 2), (3,), (3, 2), (3, 2))
    )
    q = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    found = peer_losses.mixture_divergence(mean, log_variance, q.log(), shares, means, log_variances)
    posterior = torch.distributions.Normal(mean[0], (log_variance[0] / 2).exp())
    code = posterior.sample((200_000,))  # (S,D)
    prior = torch.distributions.Normal(means, (log_variances / 2).exp())
    log_prior = prior.log_prob(code[:, None]).sum(2) + shares.log_softmax(0)  # (S,K)
    sampled = posterior.log_prob(code).sum(1) + (q * (q.log() - log_prior)).sum(1)
    assert found.item() == pytest.approx(sampled.mean().item(), abs=0.05)


def test_the_mixture_is_learned_in_the_second_stage() -> None:
    method = method_of("vade")
    for clustering in (False, True):
        method.clustering.fill_(clustering)
        method.zero_grad()
        step(method, views_of(method, 1)).loss.backward()
        assert bool(method.online.prototypes.grad.any()) == clustering


# -- SPICE -----------------------------------------------------------------------------------------------------------


def test_prototype_labels() -> None:
    rows, assignment = units((8, 3), seed=4)[0], assignments(8, 2)
    found = peer_losses.prototype_labels(tensor(rows), tensor(assignment), 0.5)
    assert found.tolist() == slow.prototype_labels(rows, assignment, 0.5)
    assert found.sum(0).tolist() == [4, 4]


def test_only_the_head_learns_from_labels() -> None:
    method = method_of("spice")
    method.clustering.fill_(True)
    step(method, views_of(method, 3)).loss.backward()
    reached = {name.split(".")[1] for name, weight in method.named_parameters() if weight.grad is not None and (
        weight.grad.any())}  # fmt: skip
    assert reached == {"head"}


# -- SCCL ------------------------------------------------------------------------------------------------------------


def test_contrast_and_sharper_assignments() -> None:
    method = method_of("sccl", "own.contrast_weight=2.0").eval()
    torch.nn.init.normal_(method.online.prototypes)
    views = views_of(method, 3)
    method.clustering.fill_(True)
    both = step(method, views)
    method.clustering.fill_(False)
    alone = step(method, views)
    assert alone.loss.item() == pytest.approx(2 * both.metrics["contrast_loss"].item())
    with torch.no_grad():
        q = method.online.log_assign(views[0])
        divergence = peer_losses.target_divergence(q, peer_losses.sharpened_target(q))
    assert (both.loss - alone.loss).item() == pytest.approx(divergence.item(), abs=1e-6)


# -- our readings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_valid", [3, 1, 0])
def test_similarity_to_the_set_of_a_cluster(n_valid: int) -> None:
    query, rows = units((4, 3), (3, 3))
    members = assignments(3, 2)
    valid = torch.arange(3) < n_valid
    found = peer_losses.set_similarity(tensor(query), tensor(rows), tensor(np.log(members)), valid, 0.5).exp()
    wanted = slow.set_similarity(query, rows[:n_valid], members[:n_valid], 0.5) if n_valid else [[0.5, 0.5]] * 4
    close(found, wanted, torch.float64)


def test_information_with_the_heads_before() -> None:
    by_head = np.array([assignments(6, 3, seed) for seed in range(3)])
    found = peer_losses.hierarchical_information(tensor(by_head))
    assert found.item() == pytest.approx(slow.hierarchical_information(by_head))
    heads = tensor(by_head).requires_grad_()
    peer_losses.hierarchical_information(heads).backward()
    assert [bool(gradient.any()) for gradient in heads.grad] == [False, True, True]


def test_relations_are_transitive() -> None:
    chain = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.28, 0.96], [0.0, 1.0]])  # neighbours are alike, ends are not
    found = peer_losses.transitive_relation(chain, 0.75)
    near = torch.nn.functional.normalize(chain, dim=1)
    alike = near @ near.T >= 0.75
    assert alike[0].tolist() == [True, True, False, False]
    assert found[0].tolist() == [True, True, True, False]
    assert torch.equal(found, found.T)


def test_the_head_with_most_information_predicts() -> None:
    method = method_of("dhog")
    method.remember({"information": torch.tensor([0.1, 0.7])})
    assert method.after_epoch(0, lambda: iter(()), None) == {"best_head": 1.0}
    assert not method.totals.any()


GRADIENTS = {
    "prototype_contrast": (
        lambda q: peer_losses.prototype_contrast(
            q, tensor(units((4, 3))[0]), torch.full((4,), 0.3).double(), torch.tensor([0, 2])
        ),
        ((2, 3),),
    ),
    "mixture_responsibilities": (peer_losses.mixture_responsibilities, ((3, 2), (2,), (2, 2), (2, 2))),
    "mixture_divergence": (
        lambda m, v, q, s, mu, w: peer_losses.mixture_divergence(m, v, q.log_softmax(1), s, mu, w),
        ((3, 2), (3, 2), (3, 2), (2,), (2, 2), (2, 2)),
    ),
    "multiple_label_loss": (
        lambda p: peer_losses.multiple_label_loss(p, torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]])),
        ((3, 2),),
    ),
    "set_similarity": (
        lambda q: peer_losses.set_similarity(
            q, tensor(units((3, 2))[0]), tensor(np.log(assignments(3, 2))), torch.tensor([True, True, False]), 0.5
        ),
        ((4, 2),),
    ),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name: str) -> None:
    function, shapes = GRADIENTS[name]
    assert gradcheck(function, tuple(tensor(array).requires_grad_() for array in arrays(*shapes, seed=len(shapes))))
