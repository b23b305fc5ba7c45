"""The value of every loss: against slow references in plain Python, and against what theory says about it.

Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P.
"""

import math
from functools import partial

import numpy as np
import pytest
import torch

import reference_losses as slow
from reference_losses import TOLERANCES, arrays, close, tensor, units
from twincluster.methods import losses
from twincluster.nn import Queue

both_dtypes = pytest.mark.parametrize("dtype", TOLERANCES, ids=["float64", "float32"])

# -- Eq. 1 -----------------------------------------------------------------------------------------------------------


@both_dtypes
@pytest.mark.parametrize("temperature", [0.2, 1.0])
@pytest.mark.parametrize("n,j,d", [(1, 1, 1), (1, 7, 3), (5, 1, 4), (6, 11, 8), (3, 40, 2), (4, 0, 3)])
def test_info_nce(n: int, j: int, d: int, temperature: float, dtype: torch.dtype) -> None:
    query, key, negatives = units((n, d), (n, d), (j, d), seed=n + j)
    for share in (0.0, 0.5, 1.0):  # of the rows that count
        each = np.random.default_rng(j).uniform(size=(n, j)) < share
        everyone = each[0]
        for allowed, rows in ((each, each), (everyone, np.tile(everyone, (n, 1)))):
            wanted = [slow.info_nce(query[i], key[i], list(negatives[rows[i]]), temperature) for i in range(n)]
            inputs = [tensor(a, dtype) for a in (query, key, negatives)]
            close(losses.info_nce(*inputs, torch.tensor(allowed), temperature), wanted, dtype)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
@pytest.mark.parametrize("j", [1, 5, 31])
def test_info_nce_closed_forms(j: int, temperature: float) -> None:
    basis = torch.eye(j + 1, dtype=torch.float64)
    query, others, everyone = basis[:1], basis[1:], torch.ones(j, dtype=torch.bool)
    # the key is the query, the negatives are orthogonal to it; then the negatives are the key; then it stands alone
    close(losses.info_nce(query, query, others, everyone, temperature), [-math.log(1 + j * math.exp(-1 / temperature))])
    close(losses.info_nce(query, query, query.repeat(j, 1), everyone, temperature), [-math.log(1 + j)])
    close(losses.info_nce(query, query, others, ~everyone, temperature), [0.0])


def test_info_nce_of_unit_vectors_is_bounded() -> None:
    j, temperature = 20, 0.3
    query, key, negatives = (tensor(a) for a in units((200, 2), (200, 2), (j, 2)))
    found = losses.info_nce(query, key, negatives, torch.ones(j, dtype=torch.bool), temperature)
    assert (found <= -math.log(1 + j * math.exp(-2 / temperature))).all()
    assert (found >= -math.log(1 + j * math.exp(2 / temperature))).all()


# -- Eqs. 3 and 4 ----------------------------------------------------------------------------------------------------


@both_dtypes
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("n,k,d", [(1, 2, 1), (1, 5, 3), (7, 2, 4), (9, 6, 8), (3, 1, 2)])
def test_assignment(n: int, k: int, d: int, temperature: float, dtype: torch.dtype) -> None:
    features, prototypes = arrays((n, d), (k, d), seed=n * k)
    found = losses.assignment(tensor(features, dtype), tensor(prototypes, dtype), temperature)
    close(found, np.log(slow.assignment(features, prototypes, temperature)), dtype)
    close(found.exp().sum(1), np.ones(n), dtype)


@both_dtypes
@pytest.mark.parametrize("n,k,d", [(1, 2, 3), (1, 1, 1), (8, 3, 4), (20, 7, 5), (4, 6, 2)])
def test_cluster_representations(n: int, k: int, d: int, dtype: torch.dtype) -> None:
    features, prototypes = arrays((n, d), (k, d), seed=n + k)
    weights = slow.assignment(features, prototypes)
    found = losses.cluster_representations(tensor(features, dtype), tensor(weights, dtype))
    close(found, slow.clusters(features, weights), dtype)
    close(found.norm(dim=1), np.ones(k), dtype)


def test_cluster_representations_ignore_order_and_scale() -> None:
    features, logits = (tensor(a) for a in arrays((12, 5), (12, 4)))
    weights = logits.softmax(1)
    expected = losses.cluster_representations(features, weights)
    for seed in range(5):
        order = torch.randperm(12, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(losses.cluster_representations(features[order], weights[order]), expected)
    rarity = tensor([1e-6, 1.0, 20.0, 1e-3])  # how much of the batch a cluster holds does not matter, only who
    torch.testing.assert_close(losses.cluster_representations(features, weights * rarity), expected)
    clusters = torch.tensor([2, 0, 3, 1])
    torch.testing.assert_close(losses.cluster_representations(features, weights[:, clusters]), expected[clusters])


def test_cluster_representation_of_hard_assignments() -> None:
    features = tensor(arrays((6, 3))[0]).requires_grad_()
    members = tensor([[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 1, 0], [1, 0, 0]])
    found = losses.cluster_representations(features, members)
    for k, rows in enumerate(([0, 1, 5], [2, 3, 4])):
        close(found[k], slow.unit(features.detach()[rows].mean(0).tolist()))
    assert (found[2] == 0).all()  # a cluster without members has no direction
    found.sum().backward()
    assert torch.isfinite(features.grad).all()


# -- Eq. 5 -----------------------------------------------------------------------------------------------------------

CLUSTER_SIZES = [(2, 1, 1), (2, 3, 1), (3, 4, 1), (3, 4, 4), (5, 2, 3), (7, 8, 10), (1, 3, 2)]  # K, D, L / K


@both_dtypes
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("k,d,blocks", CLUSTER_SIZES)
def test_cluster_loss(k: int, d: int, blocks: int, temperature: float, dtype: torch.dtype) -> None:
    clusters, keys, queue = units((k, d), (k, d), (k * blocks, d), seed=k + d)
    for written in range(0, k * blocks + 1, k):  # from an empty P to a full one
        stored = [(row % k, list(queue[row])) for row in range(written)]
        terms = slow.cluster_terms(list(clusters), list(keys), stored, temperature)
        inputs = [tensor(a, dtype) for a in (clusters, keys, queue)]
        valid = torch.arange(k * blocks) < written
        close(losses.cluster_loss(*inputs, valid, temperature), np.mean(terms), dtype)
        present = np.arange(k) % 2 == 0
        for kind in (torch.bool, dtype):
            found = losses.cluster_loss(*inputs, valid, temperature, torch.tensor(present).to(kind))
            close(found, np.mean(np.array(terms)[present]), dtype)


@pytest.mark.parametrize("k,d,blocks", CLUSTER_SIZES)
@pytest.mark.parametrize("turns", [0.5, 1.0, 1.5, 3.0])
def test_cluster_loss_masks_its_own_past_after_wraps(k: int, d: int, blocks: int, turns: float) -> None:
    size, temperature = k * blocks, 0.7
    pushes = max(1, round(turns * blocks))
    clusters, keys, history = units((k, d), (k, d), (pushes * k, d), seed=pushes)
    queue = Queue(size, d).double()
    for push in range(pushes):
        queue.push(tensor(history[push * k : (push + 1) * k]))
    stored = [(row % k, list(history[row])) for row in range(pushes * k)][-size:]  # cluster of each push, newest last
    terms = slow.cluster_terms(list(clusters), list(keys), stored, temperature)
    inputs = tensor(clusters), tensor(keys)
    close(losses.cluster_loss(*inputs, queue.rows, queue.valid(), temperature), np.mean(terms))
    for own in range(k):
        alone = torch.arange(k) == own
        before = losses.cluster_loss(*inputs, queue.rows, queue.valid(), temperature, alone)
        close(before, terms[own])
        changed = queue.rows.clone()
        changed[own::k] = 50.0  # rows of the own cluster
        changed[~queue.valid()] = -50.0  # rows never written
        assert torch.equal(losses.cluster_loss(*inputs, changed, queue.valid(), temperature, alone), before)
        for other in (row for row in range(min(size, pushes * k)) if row % k != own):
            changed = queue.rows.clone()
            changed[other] += 1.0
            assert losses.cluster_loss(*inputs, changed, queue.valid(), temperature, alone) != before


def test_cluster_loss_closed_forms() -> None:
    k, blocks = 4, 3
    clusters, valid = torch.eye(k, dtype=torch.float64), torch.ones(k * blocks, dtype=torch.bool)
    past = clusters.repeat(blocks, 1)  # each cluster has always been its own axis
    found = losses.cluster_loss(clusters, clusters, past, valid, 1.0)
    close(found, math.log(1 + (k - 1) * blocks * math.exp(-1)))
    same = clusters[:1].repeat(k, 1)  # all clusters have always been one and the same
    close(losses.cluster_loss(same, same, same.repeat(blocks, 1), valid, 1.0), math.log(1 + (k - 1) * blocks))
    close(losses.cluster_loss(clusters, clusters, past, ~valid, 1.0), 0.0)
    close(losses.cluster_loss(clusters, clusters, past, valid, 1.0, torch.zeros(k, dtype=torch.float64)), 0.0)


# -- Eqs. 6 to 9 -----------------------------------------------------------------------------------------------------


@both_dtypes
@pytest.mark.parametrize("temperature", [0.3, 0.8, 2.0])
@pytest.mark.parametrize("n,k", [(1, 2), (5, 3), (4, 10)])
def test_gumbel_softmax(n: int, k: int, temperature: float, dtype: torch.dtype) -> None:
    logits, noise = arrays((n, k), (n, k), seed=k)
    probabilities = np.array([slow.softmax(row) for row in logits])
    wanted = [slow.sample(probabilities[i], noise[i], temperature) for i in range(n)]
    found = losses.gumbel_softmax(tensor(np.log(probabilities), dtype), tensor(noise, dtype), temperature)
    close(found, wanted, dtype)


def test_gumbel_softmax_samples_from_the_assignment() -> None:
    """The Gumbel-max trick: whatever the temperature, the largest entry of c is k with probability pi(k)."""
    n, pi = 20_000, np.array([0.5, 0.3, 0.15, 0.05])
    noise = np.random.default_rng(0).gumbel(size=(n, 4))
    log_pi = tensor(np.tile(np.log(pi), (n, 1)))
    cold, warm = (losses.gumbel_softmax(log_pi, tensor(noise), temperature) for temperature in (0.01, 0.8))
    assert torch.equal(cold.argmax(1), warm.argmax(1))
    assert cold.amax(1).median() > 0.999  # one-hot in the limit
    share = np.bincount(warm.argmax(1).numpy(), minlength=4) / n
    assert (abs(share - pi) < 4 * np.sqrt(pi * (1 - pi) / n)).all()


@both_dtypes
@pytest.mark.parametrize("n,d", [(1, 1), (1, 4), (6, 3)])
def test_embedding(n: int, d: int, dtype: torch.dtype) -> None:
    features, shift = arrays((n, d), (n, d), seed=d)
    wanted = [slow.unit([a + b for a, b in zip(f, s, strict=True)]) for f, s in zip(features, shift, strict=True)]
    close(losses.embedding(tensor(features, dtype), tensor(shift, dtype)), wanted, dtype)


@both_dtypes
@pytest.mark.parametrize("n,k", [(1, 1), (1, 2), (6, 3), (9, 12)])
def test_entropies(n: int, k: int, dtype: torch.dtype) -> None:
    probabilities = [slow.softmax(row) for row in 2 * arrays((n, k), seed=n)[0]]
    log_assignment = tensor(np.log(probabilities), dtype)
    each, marginal = losses.entropy(log_assignment), losses.batch_entropy(log_assignment)
    close(each, [slow.entropy(row) for row in probabilities], dtype)
    close(marginal, slow.entropy([math.fsum(row[c] for row in probabilities) / n for c in range(k)]), dtype)
    slack = TOLERANCES[dtype]
    assert -slack <= each.min() <= each.max() <= math.log(k) + slack
    assert each.mean() - slack <= marginal <= math.log(k) + slack  # the entropy of a mean is no less than the mean


def test_entropies_of_uniform_and_certain_assignments() -> None:
    k = 5
    uniform = torch.full((k, k), -math.log(k), dtype=torch.float64)
    close(losses.entropy(uniform), [math.log(k)] * k)
    close(losses.batch_entropy(uniform), math.log(k))
    certain = (1e4 * torch.eye(k, dtype=torch.float64)).log_softmax(1)  # every sample sure, every cluster used
    close(losses.entropy(certain), [0.0] * k)
    close(losses.batch_entropy(certain), math.log(k))


@pytest.mark.parametrize("k", [2, 10])
def test_instance_loss_constants(k: int) -> None:
    log_likelihood = tensor([-1.0, -2.5, -4.0])
    certain, undecided = tensor([0.0] * 3), tensor([math.log(k)] * 3)
    close(losses.instance_loss(log_likelihood, certain, k), 2.5 - math.log(k))
    close(losses.instance_loss(log_likelihood, undecided, k), 2.5 - 2 * math.log(k))
    mixed = tensor([0.0, 0.1, 0.2])
    close(losses.instance_loss(log_likelihood, mixed, k), 2.5 - 0.1 - math.log(k))
    close(losses.instance_loss(log_likelihood, tensor(0.1), k), 2.5 - 0.1 - math.log(k))  # one entropy for the batch


def test_instance_loss_is_the_negative_elbo_but_for_a_constant() -> None:
    """Eq. 6 with a uniform prior has - KL(q || 1/K) = H(q) - log K; Eq. 8 prints + log K, 2 log K apart."""
    k = 4
    probabilities = [slow.softmax(row) for row in arrays((6, k))[0]]
    log_likelihood = -tensor(np.abs(arrays((6,), seed=1)[0]))
    divergence = [math.fsum(p * math.log(p * k) for p in row) for row in probabilities]
    elbo = float(log_likelihood.mean()) - float(np.mean(divergence))
    found = losses.instance_loss(log_likelihood, losses.entropy(tensor(np.log(probabilities))), k)
    close(found, -elbo - 2 * math.log(k))


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 1.0])
def test_total_loss(alpha: float) -> None:
    cluster, instance = tensor(2.0).requires_grad_(), tensor(-3.0).requires_grad_()
    total = losses.total_loss(cluster, instance, alpha)
    close(total, alpha * 2.0 - (1 - alpha) * 3.0)
    total.backward()
    close(cluster.grad, alpha)
    close(instance.grad, 1 - alpha)


@both_dtypes
@pytest.mark.parametrize("n,k,d,j,blocks", [(1, 2, 2, 3, 1), (6, 3, 4, 10, 2), (10, 5, 8, 4, 3)])
def test_the_whole_objective(n: int, k: int, d: int, j: int, blocks: int, dtype: torch.dtype) -> None:
    """Eqs. 3 to 9 in a row, from features, prototypes, noise and queues to one number."""
    f, key_f, mu, shift, key_shift, noise = arrays((n, d), (n, d), (k, d), (k, d), (k, d), (n, k), seed=n)
    q_rows, p_rows = units((j, d), (k * blocks, d), seed=k)
    pi, key_pi = slow.assignment(f, mu), slow.assignment(key_f, mu)
    stored = [(row % k, list(p_rows[row])) for row in range(k * blocks)]
    first = np.mean(slow.cluster_terms(slow.clusters(f, pi), slow.clusters(key_f, key_pi), stored, 0.9))
    second = 0.0
    for i in range(n):
        c, key_c = (slow.sample(row[i], noise[i], 0.8) for row in (pi, key_pi))
        e = slow.unit([f[i][column] + slow.dot(c, shift[:, column]) for column in range(d)])
        key_e = slow.unit([key_f[i][column] + slow.dot(key_c, key_shift[:, column]) for column in range(d)])
        second += (-slow.info_nce(e, key_e, list(q_rows), 0.9) - slow.entropy(pi[i]) - math.log(k)) / n

    t = partial(tensor, dtype=dtype)
    log_pi, key_log_pi = losses.assignment(t(f), t(mu)), losses.assignment(t(key_f), t(mu))
    r, key_r = (losses.cluster_representations(t(x), p.exp()) for x, p in ((f, log_pi), (key_f, key_log_pi)))
    cluster = losses.cluster_loss(r, key_r, t(p_rows), torch.ones(k * blocks, dtype=torch.bool), 0.9)
    c, key_c = (losses.gumbel_softmax(p, t(noise), 0.8) for p in (log_pi, key_log_pi))
    e, key_e = losses.embedding(t(f), c @ t(shift)), losses.embedding(t(key_f), key_c @ t(key_shift))
    likelihood = losses.info_nce(e, key_e, t(q_rows), torch.ones(j, dtype=torch.bool), 0.9)
    instance = losses.instance_loss(likelihood, losses.entropy(log_pi), k)
    close(losses.total_loss(cluster, instance, 0.3), 0.3 * first + 0.7 * second, dtype)


@both_dtypes
@pytest.mark.parametrize("n,k,d", [(1, 2, 1), (1, 4, 3), (8, 3, 4), (60, 30, 5)])
def test_dec_loss(n: int, k: int, d: int, dtype: torch.dtype) -> None:
    features, prototypes = arrays((n, d), (k, d), seed=n)
    wanted = slow.dec(features, prototypes)
    close(losses.dec_loss(tensor(features, dtype), tensor(prototypes, dtype)), wanted, dtype)
    assert wanted >= 0


def test_dec_loss_is_zero_where_all_prototypes_are_equally_far() -> None:
    prototypes = tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    close(losses.dec_loss(torch.zeros(3, 2, dtype=torch.float64), prototypes), 0.0)


def test_dec_loss_does_not_lose_small_distances_far_from_the_origin() -> None:
    random = np.random.default_rng(0)
    features = np.float32(1000 + random.normal(size=(60, 4)))
    prototypes = np.float32(features[:30] + 0.1 * random.normal(size=(30, 4)))
    found = losses.dec_loss(torch.tensor(features), torch.tensor(prototypes))
    close(found, slow.dec(features, prototypes), torch.float32)
