"""Equations 1 to 9 of "You Never Cluster Alone", each a pure function of float32 tensors.

Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P. Q holds negatives of the
instance track, P of the cluster track. Functions take the logarithms of assignments.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def info_nce(query: Tensor, key: Tensor, negatives: Tensor, allowed: Tensor, temperature: float) -> Tensor:
    """Return Eq. 1: the log-likelihood of each query's own key among its negatives, (N,).

    `allowed` masks the negatives that count: (J,) for all queries alike, or (N,J).
    """
    positive = (query * key).sum(1, keepdim=True) / temperature  # (N,1)
    negative = (query @ negatives.T / temperature).masked_fill(~allowed, -torch.inf)  # (N,J)
    return positive.squeeze(1) - torch.logsumexp(torch.cat([positive, negative], 1), 1)


def assignment(features: Tensor, prototypes: Tensor, temperature: float = 1.0) -> Tensor:
    """Return Eq. 3: log pi, the log-probability of each cluster, (N,K)."""
    return F.log_softmax(features @ prototypes.T / temperature, 1)


def cluster_representations(features: Tensor, weights: Tensor) -> Tensor:
    """Return Eq. 4, a deep set in the form of Eq. 2: unit-norm r_k = sum_i pi_i(k) f(x_i), (K,D)."""
    return F.normalize(weights.T @ features, dim=1)


def cluster_loss(
    clusters: Tensor, keys: Tensor, queue: Tensor, valid: Tensor, temperature: float, present: Tensor | None = None
) -> Tensor:
    """Return Eq. 5: L1, the mean over clusters of -log p(k | r_k), with rows of the same cluster in P masked.

    differs from the paper: clusters count from 0. Row l of P belongs to cluster l mod K because P advances by whole
    blocks of K; the paper counts from 1, which would never mask cluster K. `present` (K,) selects the clusters in the
    mean.
    """
    n_clusters = len(clusters)
    row_cluster = torch.arange(len(queue), device=queue.device) % n_clusters  # (L,)
    other = row_cluster[None, :] != torch.arange(n_clusters, device=queue.device)[:, None]  # (K,L)
    loss = -info_nce(clusters, keys, queue, other & valid, temperature)
    return loss.mean() if present is None else (loss * present).sum() / present.sum().clamp(min=1)


def gumbel_softmax(log_assignment: Tensor, gumbel: Tensor, temperature: float) -> Tensor:
    """Return c, the relaxed sample of pi at temperature lambda (Sec. 3.2), (N,K)."""
    return F.softmax((log_assignment + gumbel) / temperature, 1)


def embedding(features: Tensor, shift: Tensor) -> Tensor:
    """Return Eq. 7, first line: e = f + NN(c) at unit norm, (N,D)."""
    return F.normalize(features + shift, dim=1)


def entropy(log_assignment: Tensor) -> Tensor:
    """Return H(q) of each sample, (N,)."""
    return -(log_assignment.exp() * log_assignment).sum(1)


def batch_entropy(log_assignment: Tensor) -> Tensor:
    """Return H of the batch's mean assignment, a scalar. It is largest when clusters are used evenly."""
    # in logarithms, because the gradient of x log x is not finite where a cluster's share underflows to 0
    log_mean = torch.logsumexp(log_assignment, 0) - math.log(len(log_assignment))  # (K,)
    return -(log_mean.exp() * log_mean).sum()


def instance_loss(log_likelihood: Tensor, entropy: Tensor, n_clusters: int) -> Tensor:
    """Return Eq. 8: L2 = E[-log p(i | x, c) - H(q)] - log K, the negative ELBO of Eq. 6 under a uniform prior.

    As printed; the KL term of Eq. 6 would give + log K (a constant, so the gradient is the same).
    """
    return -log_likelihood.mean() - entropy.mean() - math.log(n_clusters)


def total_loss(cluster: Tensor, instance: Tensor, alpha: float) -> Tensor:
    """Return Eq. 9: L = alpha L1 + (1 - alpha) L2."""
    return alpha * cluster + (1 - alpha) * instance


def dec_loss(features: Tensor, prototypes: Tensor) -> Tensor:
    """Return the DEC loss of Fig. 5c, KL(p || q) of Student-t similarities to the prototypes.

    Recorded, never optimised.
    """
    # the product form |a|^2 - 2ab + |b|^2 loses small distances in float32
    distance = torch.cdist(features, prototypes, compute_mode="donot_use_mm_for_euclid_dist")  # (N,K)
    similarity = 1 / (1 + distance.square())  # one degree of freedom
    q = similarity / similarity.sum(1, keepdim=True)
    target = q.square() / q.sum(0)
    target = target / target.sum(1, keepdim=True)
    return (torch.xlogy(target, target) - torch.xlogy(target, q)).sum(1).mean()
