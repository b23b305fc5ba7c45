"""What PCL, VaDE, SPICE, RUC and our readings of SCL and DHOG compute, slowly: loops over plain numbers."""

import math

import numpy as np

from reference_losses import Array, dot, softmax
from reference_peers import paired_information


def concentrations(rows: Array, centres: Array, labels: list[int], temperature: float) -> list[float]:
    phi = []
    for number, centre in enumerate(centres):
        distances = [math.dist(row, centre) for row, label in zip(rows, labels, strict=True) if label == number]
        phi.append(np.mean(distances) / math.log(len(distances) + 10) if len(distances) > 1 else None)
    loosest = max(value for value in phi if value is not None)
    filled = np.array([loosest if value is None else value for value in phi])
    drawn = filled.clip(np.percentile(filled, 10), np.percentile(filled, 90))
    return list(temperature * drawn / drawn.mean())


def prototype_contrast(query: Array, prototypes: Array, phi: list[float], label: list[int]) -> float:
    terms = []
    for row, own in zip(query, label, strict=True):
        shares = softmax([dot(row, prototype) / value for prototype, value in zip(prototypes, phi, strict=True)])
        terms.append(-math.log(shares[own]))
    return math.fsum(terms) / len(terms)


def responsibilities(code: Array, shares: Array, means: Array, log_variances: Array) -> list[list[float]]:
    result = []
    for z in code:
        logits = []
        for share, mean, log_variance in zip(shares, means, log_variances, strict=True):
            densities = [
                -0.5 * (math.log(2 * math.pi) + w + (x - mu) ** 2 / math.exp(w))
                for x, mu, w in zip(z, mean, log_variance, strict=True)
            ]
            logits.append(float(share) + math.fsum(densities))
        result.append(softmax(logits))
    return result


def mixture_divergence(
    mean: Array, log_variance: Array, q: list[list[float]], shares: Array, means: Array, log_variances: Array
) -> list[float]:
    prior, result = softmax(list(shares)), []
    for m, v, gamma in zip(mean, log_variance, q, strict=True):
        total = -0.5 * math.fsum(1 + value for value in v)
        for share, weight, mu, w in zip(prior, gamma, means, log_variances, strict=True):
            terms = [
                w[j] + math.exp(v[j]) / math.exp(w[j]) + (m[j] - mu[j]) ** 2 / math.exp(w[j]) for j in range(len(m))
            ]
            total += 0.5 * weight * math.fsum(terms) + weight * math.log(weight / share)
        result.append(total)
    return result


def prototype_labels(rows: Array, assignment: Array, ratio: float) -> list[list[float]]:
    n, k = assignment.shape
    share = n // k
    target = [[0.0] * k for _ in range(n)]
    for cluster in range(k):
        surest = sorted(range(n), key=lambda i: -assignment[i][cluster])[: int(ratio * share)]
        centre = [math.fsum(rows[i][d] for i in surest) / len(surest) for d in range(rows.shape[1])]
        for i in sorted(range(n), key=lambda i: -dot(rows[i], centre))[:share]:
            target[i][cluster] = 1.0
    return target


def set_similarity(query: Array, rows: Array, members: Array, temperature: float) -> list[list[float]]:
    result = []
    for row in query:
        weights = [math.exp(dot(row, other) / temperature) for other in rows]
        sums = [math.fsum(w * m[k] for w, m in zip(weights, members, strict=True)) for k in range(members.shape[1])]
        result.append([value / math.fsum(sums) for value in sums])
    return result


def hierarchical_information(by_head: Array) -> float:
    total = 0.0
    for i in range(1, len(by_head)):
        total += math.fsum(paired_information(by_head[i], by_head[j], 1.0) for j in range(i)) / i
    return total


def sharpened(assignment: Array, temperature: float) -> list[list[float]]:
    powers = [[value ** (1 / temperature) for value in row] for row in assignment]
    return [[value / math.fsum(row) for value in row] for row in powers]


def mixed_losses(assignment: Array, target: Array, clean: list[bool]) -> tuple[float, float]:
    entropies, errors = [], []
    for q, t, is_clean in zip(assignment, target, clean, strict=True):
        if is_clean:
            entropies.append(-math.fsum(b * math.log(a) for a, b in zip(q, t, strict=True)))
        else:
            errors.append(math.fsum((a - b) ** 2 for a, b in zip(q, t, strict=True)) / len(q))
    return math.fsum(entropies) / max(1, len(entropies)), math.fsum(errors) / max(1, len(errors))


def smooth_label_loss(assignment: Array, label: list[int], clean: list[bool], smoothing: float) -> float:
    terms = []
    for q, own, is_clean in zip(assignment, label, clean, strict=True):
        weights = [1 - smoothing if k == own else smoothing / (len(q) - 1) for k in range(len(q))]
        if is_clean:
            terms.append(-math.fsum(weight * math.log(value) for weight, value in zip(weights, q, strict=True)))
    return math.fsum(terms) / max(1, len(terms))
