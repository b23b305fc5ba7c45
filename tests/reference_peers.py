"""What the peers optimise once more, slowly: loops over plain Python numbers, written from their papers.

Shapes: N samples of a batch, K clusters or prototypes, D features, J rows of a queue, n samples of the data.
"""

import itertools
import math

import numpy as np

from reference_losses import Array, dot, entropy, softmax, unit


def nt_xent(one: Array, two: Array, temperature: float) -> float:
    rows, n, terms = [*one, *two], len(one), []
    for i in range(2 * n):
        partner = (i + n) % (2 * n)
        powers = {j: math.exp(dot(rows[i], rows[j]) / temperature) for j in range(2 * n) if j != i}
        terms.append(-math.log(powers[partner] / math.fsum(powers.values())))
    return math.fsum(terms) / (2 * n)


def columns(assignment: Array) -> list[list[float]]:
    return [unit([float(row[k]) for row in assignment]) for k in range(len(assignment[0]))]


def sinkhorn(scores: Array, epsilon: float, n_iter: int) -> Array:
    """Diag(u) exp(scores / epsilon) Diag(v), in turns; samples add up to 1 each."""
    code = np.exp(np.asarray(scores) / epsilon)
    for _ in range(n_iter):
        for k in range(code.shape[1]):
            code[:, k] /= code[:, k].sum() * code.shape[1]
        for i in range(len(code)):
            code[i] /= code[i].sum() * len(code)
    return code * len(code)


def cross_entropy(target: Array, logits: Array) -> float:
    terms = []
    for wanted, said in zip(target, logits, strict=True):
        terms.append(-math.fsum(float(t) * math.log(p) for t, p in zip(wanted, softmax(said), strict=True)))
    return math.fsum(terms) / len(terms)


def expert_likelihood(
    experts: Array, keys: Array, centres: Array, queue: Array, temperature: float
) -> list[list[float]]:
    result = []
    for i, by_expert in enumerate(experts):
        row = []
        for k, f in enumerate(by_expert):
            seen = [float(a) + float(b) for a, b in zip(f, centres[k], strict=True)]
            own = math.exp(dot(seen, keys[i][k]) / temperature)
            others = [math.exp(dot(seen, stored[k]) / temperature) for stored in queue]
            row.append(math.log(own / (own + math.fsum(others))))
        result.append(row)
    return result


def negative_elbo(log_prior: Array, log_likelihood: Array) -> float:
    """E_q[log p(y|x,z)] - KL(q || p(z|x)) with q the posterior, as printed and not as the evidence it equals."""
    terms = []
    for prior, likelihood in zip(log_prior, log_likelihood, strict=True):
        q = softmax([float(a) + float(b) for a, b in zip(prior, likelihood, strict=True)])
        expected = math.fsum(p * float(value) for p, value in zip(q, likelihood, strict=True))
        divergence = math.fsum(p * (math.log(p) - float(value)) for p, value in zip(q, prior, strict=True))
        terms.append(divergence - expected)
    return math.fsum(terms) / len(terms)


def scatter(clusters: Array, keys: Array, present: list[bool], temperature: float) -> float:
    here = [k for k, yes in enumerate(present) if yes]
    terms = []
    for k in here:
        own = math.exp(dot(clusters[k], keys[k]) / temperature)
        others = [math.exp(dot(clusters[k], clusters[j]) / temperature) for j in here if j != k]
        terms.append(-math.log(own / (own + math.fsum(others))))
    return math.fsum(terms) / max(1, len(terms))


def instance_discrimination(features: Array, bank: Array, samples: list[int], temperature: float) -> float:
    terms = []
    for f, sample in zip(features, samples, strict=True):
        terms.append(-math.log(softmax([dot(row, f) / temperature for row in bank])[sample]))
    return math.fsum(terms) / len(terms)


def decorrelation(features: Array, temperature: float) -> float:
    rows = [unit([float(f[d]) for f in features]) for d in range(len(features[0]))]
    terms = [-math.log(softmax([dot(row, other) / temperature for other in rows])[d]) for d, row in enumerate(rows)]
    return math.fsum(terms) / len(terms)


def neighbours(assignment: Array, neighbour: Array) -> float:
    return -math.fsum(math.log(dot(p, q)) for p, q in zip(assignment, neighbour, strict=True)) / len(assignment)


def self_labels(assignment: Array, target: Array, threshold: float) -> float:
    """The mean over clusters of the mean over those that are sure to be in them."""
    terms: dict[int, list[float]] = {}
    for p, wanted in zip(assignment, target, strict=True):
        label = int(np.argmax(wanted))
        if wanted[label] > threshold:
            terms.setdefault(label, []).append(-math.log(float(p[label])))
    means = [math.fsum(of_one) / len(of_one) for of_one in terms.values()]
    return math.fsum(means) / max(1, len(means))


def marginal_entropy(assignment: Array) -> float:
    return entropy([float(np.mean([row[k] for row in assignment])) for k in range(len(assignment[0]))])


def paired_information(one: Array, two: Array, entropy_weight: float) -> float:
    """With the joint distribution of all pairs, each counted both ways."""
    n, k = np.shape(one)
    joint = [[0.0] * k for _ in range(k)]
    for p, q in [*zip(one, two, strict=True), *zip(two, one, strict=True)]:
        for a in range(k):
            for b in range(k):
                joint[a][b] += float(p[a]) * float(q[b]) / (2 * n)
    share = [math.fsum(row) for row in joint]
    terms = []
    for a in range(k):
        for b in range(k):
            apart = entropy_weight * (math.log(share[a]) + math.log(share[b]))
            terms.append(joint[a][b] * (math.log(joint[a][b]) - apart))
    return math.fsum(terms)


def partition_uncertainty(one: Array, two: Array) -> float:
    first, second = columns(one), columns(two)
    terms = [-math.log(softmax([dot(column, other) for other in second])[k]) for k, column in enumerate(first)]
    return math.fsum(terms) / len(terms)


def student(embedding: Array, centres: Array) -> list[list[float]]:
    result = []
    for z in embedding:
        gaps = [[float(a) - float(b) for a, b in zip(z, mu, strict=True)] for mu in centres]
        similarities = [1 / (1 + dot(gap, gap)) for gap in gaps]
        result.append([value / math.fsum(similarities) for value in similarities])
    return result


def sharpened(assignment: Array) -> list[list[float]]:
    frequency = [math.fsum(float(row[k]) for row in assignment) for k in range(len(assignment[0]))]
    result = []
    for row in assignment:
        squares = [float(q) ** 2 / f for q, f in zip(row, frequency, strict=True)]
        result.append([value / math.fsum(squares) for value in squares])
    return result


def divergence(target: Array, assignment: Array) -> float:
    terms = []
    for wanted, said in zip(target, assignment, strict=True):
        pairs = zip(wanted, said, strict=True)
        terms.append(math.fsum(float(p) * math.log(float(p) / float(q)) for p, q in pairs if p > 0))
    return math.fsum(terms) / len(terms)


def cosines(assignment: Array) -> list[list[float]]:
    rows = [unit(row) for row in assignment]
    return [[dot(row, other) for other in rows] for row in rows]


def pairs_by_threshold(learned: Array, known: Array, upper: float, lower: float) -> float:
    """Of two assignments (N,K): what one knows of a pair, the other learns; pairs in between teach nothing."""
    similarity, labels, terms = cosines(learned), cosines(known), []
    for i in range(len(learned)):
        for j in range(len(learned)):
            if i != j and labels[i][j] >= upper:
                terms.append(-math.log(similarity[i][j]))
            elif i == j:
                terms.append(0.0)
            elif labels[i][j] < lower:
                terms.append(-math.log(1 - similarity[i][j]))
    return math.fsum(terms) / len(terms)


def sure_labels(assignment: Array, target: Array, threshold: float) -> float:
    """DCCM: each cluster by itself, of all samples, those without a label counted as 0."""
    terms = [0.0]
    for p, wanted in zip(assignment, target, strict=True):
        if max(wanted) >= threshold:
            label = int(np.argmax(wanted))
            terms += [-math.log(float(x if k == label else 1 - x)) / len(p) for k, x in enumerate(p)]
    return math.fsum(terms) / len(assignment)


def discrimination(true: Array, false: Array, valid: list[bool]) -> float:
    joint = [math.log(1 + math.exp(-float(score))) for score in true]
    apart = [math.log(1 + math.exp(float(score))) for score, yes in zip(false, valid, strict=True) if yes]
    return math.fsum(joint) / len(joint) + math.fsum(apart) / max(1, len(apart))


def steps(start: Array, via: Array) -> list[list[float]]:
    return [softmax([dot(row, other) for other in via]) for row in start]


def walks(start: Array, via: Array, label: list[int]) -> float:
    """ADC: from each row over all others and back to each row, which should be one of the same label."""
    there, back, terms = steps(start, via), steps(via, start), []
    for i in range(len(start)):
        targets = [j for j in range(len(start)) if label[j] == label[i]]
        for j in targets:
            end = math.fsum(there[i][b] * back[b][j] for b in range(len(via)))
            terms.append(-math.log(end) / len(targets))
    return math.fsum(terms) / len(start)


def visits(start: Array, via: Array) -> float:
    there = steps(start, via)
    shares = [math.fsum(row[b] for row in there) / len(start) for b in range(len(via))]
    return -math.fsum(math.log(share) for share in shares) / len(via)


def lengths(rows: Array, wanted: float) -> float:
    return math.fsum((math.sqrt(dot(row, row)) - wanted) ** 2 for row in rows)


def surest(assignment: Array) -> list[bool]:
    """CDC: of each cluster's N / K likeliest samples a share that is their mean confidence."""
    n_samples, n_clusters = len(assignment), len(assignment[0])
    count, chosen = max(1, n_samples // n_clusters), [False] * n_samples
    for k in range(n_clusters):
        likeliest = sorted(range(n_samples), key=lambda i: -float(assignment[i][k]))[:count]
        confidence = math.fsum(max(map(float, assignment[i])) for i in likeliest) / count
        for i in likeliest[: int(confidence * count)]:
            chosen[i] = True
    return chosen


def mini_clusters(features: Array, assignment: Array, starts: list[int], rounds: int) -> list[list[float]]:
    """CDC: each assignment becomes the mean over its cluster of k-means on the features."""
    centres = [list(map(float, features[start])) for start in starts]
    for last in [False] * rounds + [True]:
        groups: list[list[int]] = [[] for _ in centres]
        for i, row in enumerate(features):
            gaps = [math.fsum((float(a) - b) ** 2 for a, b in zip(row, centre, strict=True)) for centre in centres]
            groups[gaps.index(min(gaps))].append(i)
        if not last:
            centres = [mean_row(features[group]) if group else old for group, old in zip(groups, centres, strict=True)]
    result: list[list[float]] = [[] for _ in features]
    for group in groups:
        for i in group:
            result[i] = mean_row(assignment[group])
    return result


def gaussian(place: Array, side: int, spread: float) -> list[list[list[float]]]:
    """GATCluster: the height of each Gaussian at the places of a map, whose corners are at 0 and 1."""
    grid = [i / (side - 1) for i in range(side)] if side > 1 else [0.5]
    result = []
    for down, along, width in place:
        variance = spread * float(width)
        gaps = [[(y - float(down)) ** 2 + (x - float(along)) ** 2 for x in grid] for y in grid]
        result.append([[math.exp(-gap / (2 * variance + 1e-5)) for gap in row] for row in gaps])
    return result


def even(assignment: Array, share: list[float], power: float) -> list[list[float]]:
    result = []
    for row in assignment:
        values = [float(q) ** power / size for q, size in zip(row, share, strict=True)]
        result.append([value / math.fsum(values) for value in values])
    return result


def invariance(assignment: Array, target: Array) -> float:
    return -math.fsum(dot(p, t) for p, t in zip(assignment, target, strict=True)) / len(assignment)


def attention(assignment: Array, target: Array) -> float:
    terms = []
    for p, wanted in zip(np.ravel(assignment), np.ravel(target), strict=True):
        terms.append(-float(wanted) * math.log(float(p)) - (1 - float(wanted)) * math.log(1 - float(p)))
    return math.fsum(terms) / len(terms)


def relation(assignment: Array, alike: Array) -> float:
    """Of each pair once, an image with itself among them, of which there is nothing to learn."""
    similarity, terms = cosines(assignment), []
    for i in range(len(assignment)):
        terms.append(0.0)
        for j in range(i):
            right = similarity[i][j] if alike[i][j] else 1 - similarity[i][j]
            terms.append(-math.log(right))
    return math.fsum(terms) / len(terms)


def corner_distance(points: Array, corner: list[int]) -> float:
    """MMDC: the mean over all coordinates of all points."""
    terms = [
        (float(x) - float(k == own)) ** 2 for row, own in zip(points, corner, strict=True) for k, x in enumerate(row)
    ]
    return math.fsum(terms) / len(terms)


def exchanges(points: Array, corner: list[int]) -> float:
    """MMDC: the least sum of distances that any order of these corners has."""
    corners = np.eye(len(points[0]))
    return min(
        math.fsum(math.dist(row, corners[own]) for row, own in zip(points, order, strict=True))
        for order in itertools.permutations(corner)
    )


def triplets(rows: Array, chosen: list[tuple[int, int, int]], margin: float, pair_weight: float) -> float:
    terms = []
    for anchor, partner, other in chosen:
        near, far = (math.dist(rows[anchor], rows[j]) ** 2 for j in (partner, other))
        terms.append(max(0.0, pair_weight * near - far + margin))
    return math.fsum(terms) / max(1, len(terms))


def mean_row(rows: Array) -> list[float]:
    return [math.fsum(map(float, column)) / len(rows) for column in zip(*rows, strict=True)]
