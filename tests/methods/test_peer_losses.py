"""The value and the gradient of what the peers optimise: against slow references, and where something is masked.

Shapes: N samples of a batch, K clusters or prototypes, D features, J rows of a queue, n samples of the data.
"""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import reference_peers as slow
from reference_losses import TOLERANCES, Array, arrays, close, softmax, tensor, units
from twincluster.methods.peers import peer_losses

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])


def assignments(n: int, k: int, seed: int) -> Array:
    return np.array([softmax(row) for row in 2 * arrays((n, k), seed=seed)[0]])


@both_dtypes
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("n,d", [(1, 2), (2, 3), (7, 4)])
def test_nt_xent(n: int, d: int, temperature: float, dtype: torch.dtype) -> None:
    one, two = units((n, d), (n, d), seed=n)
    close(peer_losses.nt_xent(tensor(one, dtype), tensor(two, dtype), temperature),
          slow.nt_xent(one, two, temperature), dtype)  # fmt: skip


@both_dtypes
@pytest.mark.parametrize("n,k", [(3, 2), (6, 4), (2, 5)])
def test_clusters_are_contrasted_by_columns(n: int, k: int, dtype: torch.dtype) -> None:
    one, two = assignments(n, k, seed=1), assignments(n, k, seed=2)
    wanted = slow.nt_xent(np.array(slow.columns(one)), np.array(slow.columns(two)), 0.7)
    close(peer_losses.cluster_contrast(tensor(one, dtype), tensor(two, dtype), 0.7), wanted, dtype)


@both_dtypes
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("n,k", [(1, 3), (5, 2), (8, 8)])
def test_sinkhorn(n: int, k: int, rounds: int, dtype: torch.dtype) -> None:
    (scores,) = arrays((n, k), seed=n)
    close(peer_losses.sinkhorn(tensor(scores, dtype), 0.5, rounds).exp(), slow.sinkhorn(scores, 0.5, rounds), dtype)


def test_sinkhorn_uses_all_prototypes_alike_and_survives_sharp_scores() -> None:
    scores = torch.rand(60, 4, generator=torch.Generator().manual_seed(0)) + torch.tensor([5.0, 0.0, 0.0, 0.0])
    code = peer_losses.sinkhorn(scores, 0.05, 50).exp()
    torch.testing.assert_close(code.sum(1), torch.ones(60))
    torch.testing.assert_close(code.sum(0), torch.full((4,), 15.0), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("n_valid", [1, 4])
def test_sinkhorn_of_rows_that_are_not_there(n_valid: int) -> None:
    """As where a queue is not yet full: the same codes as without these rows, and none for them."""
    (scores,) = arrays((7, 3))
    valid = torch.arange(7) < n_valid
    found = peer_losses.sinkhorn(tensor(scores), 0.5, 3, valid).exp()
    close(found[valid], slow.sinkhorn(scores[:n_valid], 0.5, 3))
    assert not found[~valid].any()


@both_dtypes
def test_code_loss(dtype: torch.dtype) -> None:
    scores, code = arrays((5, 4))[0], assignments(5, 4, seed=3)
    wanted = slow.cross_entropy(code, scores / 0.3)
    close(peer_losses.code_loss(tensor(scores, dtype), tensor(code, dtype), 0.3), wanted, dtype)


@both_dtypes
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("n,k,d,j", [(1, 2, 3, 1), (4, 3, 2, 5), (2, 5, 4, 0)])
def test_experts(n: int, k: int, d: int, j: int, temperature: float, dtype: torch.dtype) -> None:
    experts, keys, centres, queue = units((n, k, d), (n, k, d), (k, d), (j, k, d), seed=j)
    valid = np.arange(j) % 2 == 0
    wanted = slow.expert_likelihood(experts, keys, centres, queue[valid], temperature)
    inputs = [tensor(a, dtype) for a in (experts, keys, centres, queue)]
    found = peer_losses.expert_likelihood(*inputs, torch.tensor(valid), temperature)
    close(found, wanted, dtype)
    prior = np.log(assignments(n, k, seed=4))
    close(peer_losses.mixture_loss(tensor(prior, dtype), found), slow.negative_elbo(prior, np.array(wanted)), dtype)


@both_dtypes
@pytest.mark.parametrize("present", [[True] * 4, [True, False, True, False], [False, True, False, False], [False] * 4])
def test_prototypes_scatter(present: list[bool], dtype: torch.dtype) -> None:
    clusters, keys = units((4, 3), (4, 3))
    found = peer_losses.scatter_loss(tensor(clusters, dtype), tensor(keys, dtype), torch.tensor(present), 0.5)
    close(found, slow.scatter(clusters, keys, present, 0.5), dtype)


@both_dtypes
@pytest.mark.parametrize("n,d,bank", [(1, 2, 3), (5, 4, 9)])
def test_instances_and_features(n: int, d: int, bank: int, dtype: torch.dtype) -> None:
    features, rows = units((n, d), (bank, d), seed=n)
    samples = [(3 * i) % bank for i in range(n)]
    found = peer_losses.instance_discrimination(
        tensor(features, dtype), tensor(rows, dtype), torch.tensor(samples), 0.6
    )
    close(found, slow.instance_discrimination(features, rows, samples, 0.6), dtype)
    close(peer_losses.decorrelation(tensor(features, dtype), 2.0), slow.decorrelation(features, 2.0), dtype)


@both_dtypes
@pytest.mark.parametrize("threshold", [0.0, 0.5, 0.7, 1.0])
def test_neighbours_and_self_labels(threshold: float, dtype: torch.dtype) -> None:
    one, two = assignments(9, 3, seed=5), assignments(9, 3, seed=6)
    logs = [tensor(np.log(rows), dtype) for rows in (one, two)]
    close(peer_losses.neighbour_loss(*logs), slow.neighbours(one, two), dtype)
    found = peer_losses.self_label_loss(logs[0], tensor(two, dtype), threshold)
    close(found, slow.self_labels(one, two, threshold), dtype)


@both_dtypes
@pytest.mark.parametrize("weight", [1.0, 1.5])
@pytest.mark.parametrize("n,k", [(1, 2), (6, 3), (3, 5)])
def test_information_of_pairs(n: int, k: int, weight: float, dtype: torch.dtype) -> None:
    heads = [(assignments(n, k, seed=head), assignments(n, k, seed=head + 10)) for head in range(2)]
    one, two = (tensor(np.stack(side), dtype) for side in zip(*heads, strict=True))
    wanted = [slow.paired_information(*pair, weight) for pair in heads]
    close(peer_losses.paired_information(one, two, weight), wanted, dtype)


def test_information_of_assignments_that_are_sure() -> None:
    """Two clusters of equal size share a bit; one cluster for all says nothing. Shares of 0 give no NaN."""
    even, one = torch.eye(2).repeat(3, 1).requires_grad_(), torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    found = peer_losses.paired_information(even, even, 1.0)
    assert found.item() == pytest.approx(np.log(2), abs=1e-6)
    found.backward()
    assert even.grad.isfinite().all()
    assert peer_losses.paired_information(one, one, 1.0).item() == pytest.approx(0, abs=1e-6)


@both_dtypes
@pytest.mark.parametrize("n,k", [(3, 2), (6, 4), (2, 5)])
def test_uncertainty_of_a_partition(n: int, k: int, dtype: torch.dtype) -> None:
    one, two = assignments(n, k, seed=1), assignments(n, k, seed=2)
    found = peer_losses.partition_uncertainty(tensor(one, dtype), tensor(two, dtype))
    close(found, slow.partition_uncertainty(one, two), dtype)


@both_dtypes
@pytest.mark.parametrize("n,k,d", [(1, 2, 3), (7, 3, 2)])
def test_student_assignments_and_their_target(n: int, k: int, d: int, dtype: torch.dtype) -> None:
    embedding, centres = arrays((n, d), (k, d), seed=n)
    log_q = peer_losses.student_assignment(tensor(embedding, dtype), tensor(centres, dtype))
    q = np.array(slow.student(embedding, centres))
    close(log_q.exp(), q, dtype)
    close(peer_losses.sharpened_target(log_q), slow.sharpened(q), dtype)
    target = assignments(n, k, seed=3)
    target[0] = np.eye(k)[0]  # sharp enough to underflow
    close(peer_losses.target_divergence(log_q, tensor(target, dtype)), slow.divergence(target, q), dtype)


@both_dtypes
@pytest.mark.parametrize("upper,lower", [(0.95, 0.45), (0.6, 0.6), (0.99, 0.0)])
def test_pairs_by_two_thresholds(upper: float, lower: float, dtype: torch.dtype) -> None:
    learned, known = assignments(6, 3, seed=1), assignments(6, 3, seed=2)
    cosine, label = (tensor(slow.cosines(rows), dtype) for rows in (learned, known))
    chosen = (label >= upper) | (label < lower) | torch.eye(6, dtype=torch.bool)
    alike = ((label >= upper) | torch.eye(6, dtype=torch.bool)).to(dtype)
    found = peer_losses.pair_loss(cosine, alike, chosen)
    wanted = slow.pairs_by_threshold(learned, known, upper, lower)
    torch.testing.assert_close(found, torch.tensor(wanted, dtype=dtype), rtol=0, atol=2e-6)  # the diagonal is 1 - 1e-6


@both_dtypes
@pytest.mark.parametrize("threshold", [0.0, 0.6, 1.0])
def test_sure_labels_are_learned_cluster_by_cluster(threshold: float, dtype: torch.dtype) -> None:
    one, two = assignments(9, 3, seed=5), assignments(9, 3, seed=6)
    found = peer_losses.sure_label_loss(tensor(np.log(one), dtype), tensor(two, dtype), threshold)
    close(found, slow.sure_labels(one, two, threshold), dtype)


@both_dtypes
@pytest.mark.parametrize("valid", [[True, True, True], [True, False, True], [False] * 3])
def test_true_and_false_pairs(valid: list[bool], dtype: torch.dtype) -> None:
    true, false = arrays((3,), (3,))
    found = peer_losses.discrimination_loss(tensor(true, dtype), tensor(false, dtype), torch.tensor(valid))
    close(found, slow.discrimination(true, false, valid), dtype)


@both_dtypes
@pytest.mark.parametrize("label", [[0], [0, 1, 2], [0, 0, 1, 1], [2, 0, 1, 0, 2]])
@pytest.mark.parametrize("n,d", [(1, 3), (4, 2), (6, 5)])
def test_walks_to_others_and_back(label: list[int], n: int, d: int, dtype: torch.dtype) -> None:
    start, via = (array / 2 for array in arrays((len(label), d), (n, d), seed=n))  # no walk is all but impossible
    first, second = tensor(start, dtype), tensor(via, dtype)
    close(peer_losses.walk_loss(first, second, torch.tensor(label)), slow.walks(start, via, label), dtype)
    close(peer_losses.visit_loss(first, second), slow.visits(start, via), dtype)
    close(peer_losses.length_loss(first, 3.0), slow.lengths(start, 3.0), dtype)


def test_walks_that_cannot_end_where_they_began() -> None:
    """Two rows that a walk never takes back: the loss is large, and it is a number with a gradient."""
    start = torch.tensor([[-60.0, 0.0], [60.0, 0.0]], requires_grad=True)
    loss = peer_losses.walk_loss(start, torch.tensor([[1.0, 0.0]]), torch.tensor([0, 1]))
    loss.backward()
    assert loss.item() == pytest.approx(-np.log(1e-12) / 2, rel=1e-3)
    assert start.grad.isfinite().all()


def test_rows_without_a_length() -> None:
    none = torch.zeros(3, 2, requires_grad=True)
    loss = peer_losses.length_loss(none, 2.0)
    loss.backward()
    assert loss.item() == 12
    assert not none.grad.any()


@pytest.mark.parametrize("n,k", [(12, 3), (10, 4), (2, 3)])
def test_the_surest_of_each_cluster(n: int, k: int) -> None:
    q = assignments(n, k, seed=n)
    assert peer_losses.most_confident_of_clusters(tensor(q, torch.float64)).tolist() == slow.surest(q)


@both_dtypes
@pytest.mark.parametrize("starts", [[0], [5, 1, 3], list(range(7))])
@pytest.mark.parametrize("rounds", [0, 3])
def test_neighbours_share_what_they_are_to_believe(starts: list[int], rounds: int, dtype: torch.dtype) -> None:
    rows, q = arrays((7, 2), seed=4)[0], assignments(7, 3, seed=1)
    found = peer_losses.mini_cluster_means(tensor(rows, dtype), tensor(q, dtype), torch.tensor(starts), rounds)
    close(found, slow.mini_clusters(rows, q, starts, rounds), dtype)


def test_a_mini_cluster_that_loses_its_rows_stays_where_it_is() -> None:
    rows = torch.tensor([[0.0], [0.0], [4.0]], dtype=torch.float64)  # the first two starts are one place
    found = peer_losses.mini_cluster_means(rows, rows + 1, torch.tensor([0, 1, 2]), 5)
    assert found.tolist() == [[1.0], [1.0], [5.0]]


@both_dtypes
@pytest.mark.parametrize("n,side", [(1, 1), (3, 2), (2, 5)])
def test_attention_is_a_gaussian_over_the_places_of_a_map(n: int, side: int, dtype: torch.dtype) -> None:
    place = 1 / (1 + np.exp(-arrays((n, 3), seed=n)[0]))
    found = peer_losses.gaussian_attention(tensor(place, dtype), side, 0.05)
    close(found.squeeze(1), slow.gaussian(place, side, 0.05), dtype)


@both_dtypes
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("n,k", [(1, 2), (6, 3), (3, 5)])
def test_targets_that_are_even_and_what_learns_them(n: int, k: int, power: float, dtype: torch.dtype) -> None:
    q, others = assignments(n, k, seed=n), assignments(9, k, seed=2)
    share = others.sum(0)
    target = np.array(slow.even(q, share, power))
    close(peer_losses.even_target(tensor(np.log(q), dtype), tensor(np.log(share), dtype), power), target, dtype)
    learned = assignments(n, k, seed=3)
    pair = tensor(learned, dtype), tensor(target, dtype)
    close(peer_losses.invariance_loss(*pair), slow.invariance(learned, target), dtype)
    found = peer_losses.attention_loss(tensor(np.log(learned), dtype), pair[1])
    close(found, slow.attention(learned, target), dtype)


@both_dtypes
@pytest.mark.parametrize("n,k", [(1, 2), (6, 3), (9, 4)])
def test_relations_are_learned_from_each_pair_once(n: int, k: int, dtype: torch.dtype) -> None:
    q, label = assignments(n, k, seed=1), np.arange(n) % 2
    alike = (label[:, None] == label).astype(float)
    close(peer_losses.relation_loss(tensor(q, dtype), tensor(alike, dtype)), slow.relation(q, alike), dtype)


def test_assignments_that_are_almost_alike_are_told_apart() -> None:
    """Where one minus the cosine would be nothing but rounding."""
    q = assignments(1, 4, seed=1).repeat(5, 0)
    q[:, 0] *= 1 + 0.01 * np.arange(5)
    found = peer_losses.relation_loss(tensor(q, torch.float32), torch.eye(5))
    assert found.item() == pytest.approx(slow.relation(q, np.eye(5)), rel=1e-4)


@both_dtypes
@pytest.mark.parametrize("n,k", [(1, 2), (5, 3), (3, 6)])
def test_distance_from_corners(n: int, k: int, dtype: torch.dtype) -> None:
    (points,), corner = units((n, k), seed=n), [(2 * i) % k for i in range(n)]
    found = peer_losses.corner_distance(tensor(points, dtype), torch.tensor(corner))
    close(found, slow.corner_distance(points, corner), dtype)


@both_dtypes
@pytest.mark.parametrize("n,k", [(1, 2), (5, 3), (3, 6)])
def test_divergence_of_two_assignments(n: int, k: int, dtype: torch.dtype) -> None:
    one, two = assignments(n, k, seed=1), assignments(n, k, seed=2)
    found = peer_losses.assignment_divergence(tensor(np.log(one), dtype), tensor(np.log(two), dtype))
    close(found, slow.divergence(one, two), dtype)


@both_dtypes
@pytest.mark.parametrize("n,d,r", [(1, 2, 1), (6, 3, 2), (9, 4, 8)])
def test_triplets(n: int, d: int, r: int, dtype: torch.dtype) -> None:
    (rows,), label = units((n, d), seed=n), np.arange(n) % 3
    other = np.array([[(i + 1 + j) % n for j in range(r)] for i in range(n)])
    valid = label[other] != label[:, None]
    same = label[:, None] == label
    chosen = [
        (i, p, int(other[i, j]))
        for i, p, j in itertools.product(range(n), range(n), range(r))
        if i != p and same[i, p] and valid[i, j]
    ]
    inputs = tensor(rows, dtype), *(torch.tensor(array) for array in (same, other, valid))
    close(peer_losses.triplet_loss(*inputs, 0.3, 1.2), slow.triplets(rows, chosen, 0.3, 1.2), dtype)


# -- gradients -------------------------------------------------------------------------------------------------------

PAIRED = torch.arange(4)[:, None] // 2 != torch.arange(4) // 2
OTHER = torch.tensor([[2, 3], [2, 3], [0, 1], [0, 1]]), torch.tensor([[True, True], [True, False]] * 2)
VALID = torch.tensor([True, False, True])
LABEL = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]], dtype=torch.float64)
DIFFERENTIABLE: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "nt_xent": (lambda a, b: peer_losses.nt_xent(a, b, 0.5), ((3, 2), (3, 2))),
    "cluster_contrast": (lambda a, b: peer_losses.cluster_contrast(a, b, 0.5), ((3, 2), (3, 2))),
    "code_loss": (lambda s, c: peer_losses.code_loss(s, c, 0.5), ((3, 2), (3, 2))),
    "experts": (
        lambda f, v, mu, q: peer_losses.expert_likelihood(f, v, mu, q, VALID, 0.5),
        ((2, 2, 3), (2, 2, 3), (2, 3), (3, 2, 3)),
    ),
    "mixture_loss": (peer_losses.mixture_loss, ((3, 2), (3, 2))),
    "scatter_loss": (lambda c, k: peer_losses.scatter_loss(c, k, VALID, 0.5), ((3, 2), (3, 2))),
    "instances": (lambda f, b: peer_losses.instance_discrimination(f, b, torch.tensor([1, 3]), 0.5), ((2, 3), (4, 3))),
    "decorrelation": (lambda f: peer_losses.decorrelation(f, 2.0), ((4, 3),)),
    "neighbour_loss": (peer_losses.neighbour_loss, ((3, 2), (3, 2))),
    "self_label_loss": (lambda p: peer_losses.self_label_loss(p, LABEL, 0.6), ((3, 2),)),
    "paired_information": (
        lambda a, b: peer_losses.paired_information(a.softmax(1), b.softmax(1), 1.5),
        ((3, 2), (3, 2)),
    ),
    "partition_uncertainty": (peer_losses.partition_uncertainty, ((3, 2), (3, 2))),
    "student_assignment": (peer_losses.student_assignment, ((3, 2), (2, 2))),
    "target_divergence": (lambda q: peer_losses.target_divergence(q, LABEL), ((3, 2),)),
    "assignment_divergence": (peer_losses.assignment_divergence, ((3, 2), (3, 2))),
    "pair_loss": (lambda s: peer_losses.pair_loss(s.sigmoid(), LABEL, LABEL > 0.15), ((3, 2),)),
    "sure_label_loss": (lambda p: peer_losses.sure_label_loss(p, LABEL, 0.6), ((3, 2),)),
    "label_loss": (lambda p: peer_losses.label_loss(p, torch.tensor([1, 0, 1]), VALID), ((3, 2),)),
    "walk_loss": (lambda a, b: peer_losses.walk_loss(a, b, torch.tensor([0, 1, 0])), ((3, 2), (4, 2))),
    "visit_loss": (peer_losses.visit_loss, ((3, 2), (4, 2))),
    "length_loss": (lambda rows: peer_losses.length_loss(rows, 2.0), ((3, 2),)),
    "gaussian_attention": (lambda p: peer_losses.gaussian_attention(p.sigmoid(), 3, 0.5), ((2, 3),)),
    "invariance_loss": (lambda p: peer_losses.invariance_loss(p, LABEL), ((3, 2),)),
    "attention_loss": (lambda p: peer_losses.attention_loss(p.log_softmax(1), LABEL), ((3, 2),)),
    "relation_loss": (lambda p: peer_losses.relation_loss(p.softmax(1), torch.eye(3).double()), ((3, 2),)),
    "corner_distance": (lambda p: peer_losses.corner_distance(p, torch.tensor([1, 0, 1])), ((3, 2),)),
    "triplet_loss": (
        lambda rows: peer_losses.triplet_loss(rows, torch.eye(4).bool() | ~PAIRED, *OTHER, 3.0, 1.2),
        ((4, 2),),
    ),
    "discrimination_loss": (lambda t, f: peer_losses.discrimination_loss(t, f, VALID), ((3,), (3,))),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_gradients(name: str) -> None:
    function, shapes = DIFFERENTIABLE[name]
    assert gradcheck(function, tuple(tensor(array).requires_grad_() for array in arrays(*shapes, seed=len(shapes))))


def test_the_evidence_has_the_gradient_of_the_bound_with_its_posterior_held() -> None:
    """That the posterior is a function of the weights costs nothing: at its best the bound is flat in it."""
    prior, likelihood = (
        tensor(a).requires_grad_() for a in (np.log(assignments(4, 3, seed=1)), -(arrays((4, 3))[0] ** 2))
    )
    found = torch.autograd.grad(peer_losses.mixture_loss(prior, likelihood), (prior, likelihood))
    posterior = torch.softmax(prior + likelihood, 1).detach()
    bound = (posterior * (prior + likelihood - posterior.log())).sum(1).mean()
    torch.testing.assert_close(found, torch.autograd.grad(-bound, (prior, likelihood)))


def test_nobody_is_sure() -> None:
    log = tensor(np.log(assignments(4, 3, seed=1))).requires_grad_()
    loss = peer_losses.self_label_loss(log, torch.full((4, 3), 1 / 3, dtype=torch.float64), 0.9)
    loss.backward()
    assert loss.item() == 0
    assert not log.grad.any()
