"""Losses of the methods that the paper compares with: pure functions of float32 tensors, each after its own paper.

Shapes: N samples of a batch, K clusters or prototypes, D features, J rows of a queue, n samples of the data.

Losses of reconstruction and adversarial losses follow at the end. Costs that their papers sum over the values of an
image are divided by the number of values: the minimum is the same, and one learning rate serves all image sizes.
Shapes: N batch, ... one image or row, D code.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

TINY = 1e-12  # smallest argument of a logarithm


def nt_xent(one: Tensor, two: Tensor, temperature: float) -> Tensor:
    """SimCLR's loss of N pairs of unit rows, a scalar: each of 2N rows finds its partner among all other rows.

    Chen et al. 2020, Eq. 1. With samples it is Eqs. 2 and 3 of Contrastive Clustering (Li et al. 2021), with the
    columns of two assignments (K,N) its Eqs. 5 and 6 without the entropy.
    """
    rows = torch.cat([one, two])
    logits = rows @ rows.T / temperature  # (2N,2N)
    logits = logits.masked_fill(torch.eye(len(rows), dtype=torch.bool, device=rows.device), -torch.inf)
    partner = torch.arange(len(rows), device=rows.device).roll(len(one))
    return F.cross_entropy(logits, partner)


def cluster_contrast(assignment: Tensor, other: Tensor, temperature: float) -> Tensor:
    """Contrastive Clustering, Eqs. 5 and 6: pairs of columns of the assignments (N,K) of two views, one per cluster."""
    return nt_xent(F.normalize(assignment.T, dim=1), F.normalize(other.T, dim=1), temperature)


def sinkhorn(scores: Tensor, epsilon: float, n_iter: int, valid: Tensor | None = None) -> Tensor:
    """SwAV's codes (Caron et al. 2020, Eqs. 3 to 5): log of a soft assignment (N,K) that uses all prototypes evenly.

    Rows sum to 1, and columns to about N / K. Rows that are not `valid` (N,) have no weight and no code.
    """
    weight = torch.ones(len(scores), dtype=torch.bool, device=scores.device) if valid is None else valid
    log_code = (scores / epsilon).masked_fill(~weight[:, None], -torch.inf)
    for _ in range(n_iter):
        log_code = log_code - torch.logsumexp(log_code, 0)
        total = torch.logsumexp(log_code, 1, keepdim=True)
        log_code = log_code - total.masked_fill(~weight[:, None], 0.0)
    return log_code


def code_loss(scores: Tensor, code: Tensor, temperature: float) -> Tensor:
    """SwAV, Eq. 2: the cross-entropy of a code (N,K) and another view's prediction of it, a scalar."""
    return -(code * F.log_softmax(scores / temperature, 1)).sum(1).mean()


def expert_likelihood(
    experts: Tensor, keys: Tensor, centres: Tensor, queue: Tensor, valid: Tensor, temperature: float
) -> Tensor:
    """MiCE (Tsai et al. 2021, Sec. 3.1 and 3.2): log p(y | x, z) by each of K experts, (N,K).

    Expert z compares f_z(x) + mu_z with the teacher's embedding of the same image and those in its queue. Experts and
    keys are (N,K,D), centres mu (K,D), the queue (J,K,D), all of unit norm.
    """
    seen = experts + centres  # (N,K,D)
    positive = (seen * keys).sum(2, keepdim=True) / temperature  # (N,K,1)
    negative = torch.einsum("nkd,jkd->nkj", seen, queue) / temperature
    negative = negative.masked_fill(~valid, -torch.inf)
    return positive.squeeze(2) - torch.logsumexp(torch.cat([positive, negative], 2), 2)


def mixture_loss(log_prior: Tensor, log_likelihood: Tensor) -> Tensor:
    """MiCE, Sec. 3.2: the negative evidence lower bound of a mixture, a scalar.

    With the exact posterior the bound equals the evidence, and so does its gradient.
    """
    return -torch.logsumexp(log_prior + log_likelihood, 1).mean()


def scatter_loss(clusters: Tensor, keys: Tensor, present: Tensor, temperature: float) -> Tensor:
    """ProPos (Huang et al. 2022), prototype scattering, a scalar: clusters (K,D) find their momentum twins.

    Negatives are the other clusters of the same network. Clusters that are not `present` (K,) do not count.
    """
    own = torch.eye(len(clusters), dtype=torch.bool, device=clusters.device)
    logits = torch.where(own, (clusters * keys).sum(1, keepdim=True), clusters @ clusters.T) / temperature
    logits = logits.masked_fill(~present & ~own, -torch.inf)
    loss = torch.logsumexp(logits, 1) - logits.diagonal()
    return torch.where(present, loss, 0.0).sum() / present.sum().clamp(min=1)


def instance_discrimination(features: Tensor, bank: Tensor, samples: Tensor, temperature: float) -> Tensor:
    """IDFD (Tao et al. 2021, Sec. 3.1), a scalar: each sample is a class of its own, with its row of the bank (n,D)."""
    return F.cross_entropy(features @ bank.T / temperature, samples)


def decorrelation(features: Tensor, temperature: float) -> Tensor:
    """IDFD, Sec. 3.2, a scalar: each of D features, N values at unit norm, should be most similar to itself."""
    rows = F.normalize(features.T, dim=1)
    own = torch.arange(len(rows), device=rows.device)
    return F.cross_entropy(rows @ rows.T / temperature, own)


def neighbour_loss(log_assignment: Tensor, log_neighbour: Tensor) -> Tensor:
    """SCAN (Van Gansbeke et al. 2020, Eq. 2, first term), a scalar: samples and their neighbours are in one cluster."""
    return -torch.logsumexp(log_assignment + log_neighbour, 1).mean()


def self_label_loss(log_assignment: Tensor, target: Tensor, threshold: float) -> Tensor:
    """SCAN, Sec. 2.3, a scalar: a strong view learns the cluster of a weak view's confident target (N,K).

    Clusters have equal weight, however many confident images of the batch they have.
    """
    confidence, label = target.max(1)
    sure = confidence > threshold
    counts = torch.zeros_like(target[0]).index_add_(0, label, sure.to(target.dtype))  # (K,)
    weight = torch.where(sure, 1 / counts[label].clamp(min=1), 0.0)
    loss = -log_assignment.gather(1, label[:, None]).squeeze(1)
    return (weight * loss).sum() / weight.sum().clamp(min=1e-6)


def paired_information(one: Tensor, two: Tensor, entropy_weight: float) -> Tensor:
    """IIC (Ji et al. 2019, Eqs. 1 to 3): mutual information of two assignments (...,N,K) of paired samples, (...).

    The joint distribution counts each pair both ways. The weight of both entropies is lambda of the authors' code.
    """
    joint = one.transpose(-1, -2) @ two / one.shape[-2]  # (...,K,K), P
    joint = (joint + joint.transpose(-1, -2)) / 2
    log_marginal = joint.sum(-1).clamp(min=TINY).log()  # the same for rows and columns
    independent = log_marginal[..., :, None] + log_marginal[..., None, :]
    return (joint * (joint.clamp(min=TINY).log() - entropy_weight * independent)).sum((-2, -1))


def partition_uncertainty(one: Tensor, two: Tensor) -> Tensor:
    """PICA (Huang et al. 2020, Sec. 3), a scalar: each cluster, a column of (N,K), should be most similar to itself.

    The cosine of two columns is used as a logit.
    """
    cosine = F.normalize(one.T, dim=1) @ F.normalize(two.T, dim=1).T  # (K,K)
    return F.cross_entropy(cosine, torch.arange(len(cosine), device=cosine.device))


def student_assignment(embedding: Tensor, centres: Tensor) -> Tensor:
    """DEC (Xie et al. 2016, Eq. 1): log q of rows (N,D) by a Student-t similarity to centres (K,D), (N,K)."""
    distance = (embedding[:, None] - centres).square().sum(2)  # (N,K)
    return F.log_softmax(-torch.log1p(distance), 1)  # one degree of freedom


def sharpened_target(log_assignment: Tensor) -> Tensor:
    """DEC, Eq. 3: p, the squares of assignments (N,K), divided by the size of each cluster and normalised."""
    return F.softmax(2 * log_assignment - torch.logsumexp(log_assignment, 0), 1)


def target_divergence(log_assignment: Tensor, target: Tensor) -> Tensor:
    """DEC, Eq. 2: KL(p || q), the mean over samples."""
    return (torch.xlogy(target, target) - target * log_assignment).sum(1).mean()


def pair_loss(similarity: Tensor, alike: Tensor, chosen: Tensor) -> Tensor:
    """DAC (Chang et al. 2017, Sec. 3), a scalar: binary cross-entropy of similarities (N,N) of selected pairs."""
    similarity = similarity.clamp(TINY, 1 - 1e-6)  # rounding may lift a cosine above 1
    loss = -alike * similarity.log() - (1 - alike) * torch.log1p(-similarity)
    return torch.where(chosen, loss, 0.0).sum() / chosen.sum().clamp(min=1)


def sure_label_loss(log_assignment: Tensor, target: Tensor, threshold: float) -> Tensor:
    """DCCM (Wu et al. 2019, Sec. 3), a scalar: the cluster of each confident target (N,K) is the label.

    As in the authors' code: binary cross-entropy of each cluster, the mean over all clusters and all samples.
    """
    confidence, label = target.max(1)
    log_others = (-torch.expm1(log_assignment)).clamp(min=TINY).log()
    own = F.one_hot(label, target.shape[1]).to(torch.bool)
    loss = -torch.where(own, log_assignment, log_others).mean(1)  # (N,)
    return torch.where(confidence >= threshold, loss, 0.0).mean()


def label_loss(log_assignment: Tensor, label: Tensor, chosen: Tensor) -> Tensor:
    """Cross-entropy of assignments (N,K) and labels (N,), a scalar: the mean over samples that are `chosen` (N,)."""
    loss = -log_assignment.gather(1, label[:, None]).squeeze(1)
    return torch.where(chosen, loss, 0.0).sum() / chosen.sum().clamp(min=1)


def discrimination_loss(true: Tensor, false: Tensor, valid: Tensor) -> Tensor:
    """DCCM, Sec. 3: the Jensen-Shannon bound of mutual information, from scores of true pairs and of false ones.

    Scores of missing pairs are not `valid`.
    """
    apart = torch.where(valid, F.softplus(false), 0.0).sum() / valid.sum().clamp(min=1)
    return F.softplus(-true).mean() + apart


def walk_loss(start: Tensor, via: Tensor, label: Tensor) -> Tensor:
    """ADC (Haeusser et al. 2018), a scalar: walks from rows (M,D) to the rows `via` (N,D) and back.

    The larger the product of two rows, the likelier the step. A walk should end at rows of the label (M,) at which it
    began, at each of them equally often.
    """
    match = start @ via.T  # (M,N)
    end = F.softmax(match, 1) @ F.softmax(match.T, 1)  # (M,M)
    same = (label[:, None] == label).to(end.dtype)
    return -(same / same.sum(1, keepdim=True) * (end + TINY).log()).sum(1).mean()


def visit_loss(start: Tensor, via: Tensor) -> Tensor:
    """ADC, a scalar: the first steps of these walks should visit each row of `via` equally often."""
    share = F.softmax(start @ via.T, 1).mean(0)  # (N,)
    return -(share + TINY).log().mean()


def length_loss(rows: Tensor, length: float) -> Tensor:
    """ADC, a scalar: squared differences of rows (N,D) to a length, summed as in the authors' code."""
    lengths: Tensor = torch.linalg.vector_norm(rows, dim=1)  # the gradient at a zero row is 0
    return (lengths - length).square().sum()


def most_confident_of_clusters(assignment: Tensor) -> Tensor:
    """CDC (Jia et al. 2025), (N,) bool: the most confident samples of each cluster.

    Of a cluster's N / K likeliest samples the share that equals their mean confidence is taken, the likeliest first.
    """
    count = max(1, len(assignment) // assignment.shape[1])
    likeliest = assignment.topk(count, dim=0).indices  # (count,K)
    taken = (assignment.amax(1)[likeliest].mean(0) * count).floor()  # (K,)
    rank = torch.arange(count, device=assignment.device)[:, None]
    return torch.zeros_like(assignment, dtype=torch.bool).scatter(0, likeliest, rank < taken).any(1)


def mini_cluster_means(features: Tensor, assignment: Tensor, starts: Tensor, n_iter: int) -> Tensor:
    """CDC, the target of calibration, (N,K): the mean assignment over similar samples.

    K-means on the features (N,D) groups similar samples; it starts from the rows `starts` (M,) and runs a given number
    of rounds.
    """
    centres = features[starts]  # (M,D)
    for _ in range(n_iter):
        member, size = _nearest(features, centres)
        centres = torch.where(size > 0, member.T @ features / size.clamp(min=1), centres)
    member, size = _nearest(features, centres)
    return member @ (member.T @ assignment / size.clamp(min=1))


def _nearest(features: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest centre of each row, one-hot (N,M), and the number of rows of each centre (M,1)."""
    member = F.one_hot(torch.cdist(features, centres).argmin(1), len(centres)).to(features.dtype)
    return member, member.sum(0)[:, None]


def gaussian_attention(place: Tensor, side: int, spread: float) -> Tensor:
    """GATCluster (Niu et al. 2020), (N,1,H,H): the height of a Gaussian at each place of square maps.

    `place` (N,3) has its centre in the first two columns and its width in the last one, all between 0 and 1.
    """
    grid = torch.linspace(0, 1, side, dtype=place.dtype, device=place.device) if side > 1 else place.new_full((1,), 0.5)
    down, along, width = place[:, :, None].unbind(1)  # (N,1) each
    distance = (grid - down).square()[:, :, None] + (grid - along).square()[:, None]  # (N,H,H)
    return torch.exp(-distance / (2 * spread * width[:, :, None] + 1e-5))[:, None]


def even_target(log_assignment: Tensor, log_share: Tensor, power: float) -> Tensor:
    """GATCluster, (N,K): powers of assignments, divided by the size of each cluster, (K,) as a logarithm.

    With a power of 1 clusters become equally likely; with 2 assignments become more confident, too, like those of DEC.
    """
    return F.softmax(power * log_assignment - log_share, 1)


def invariance_loss(assignment: Tensor, target: Tensor) -> Tensor:
    """GATCluster, a scalar: how little assignments (N,K) of augmented images agree with targets, by their product."""
    return -(assignment * target).sum(1).mean()


def attention_loss(log_assignment: Tensor, target: Tensor) -> Tensor:
    """GATCluster, a scalar: binary cross-entropy of each cluster between assignments (N,K) and those by attention."""
    log_others = (-torch.expm1(log_assignment)).clamp(min=TINY).log()
    return -(target * log_assignment + (1 - target) * log_others).mean()


def relation_loss(assignment: Tensor, alike: Tensor) -> Tensor:
    """GATCluster, a scalar: binary cross-entropy of the cosines of assignments (N,K), each pair (N,N) counted once.

    One minus a cosine is half the squared distance of unit rows, which does not vanish by rounding where rows are
    close.
    """
    unit = F.normalize(assignment, dim=1)
    similar = (unit @ unit.T).clamp(TINY, 1)
    apart = torch.cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
    loss = -alike * similar.log() - (1 - alike) * apart.clamp(min=1e-7).log()
    return loss.tril().sum() / (len(loss) * (len(loss) + 1) / 2)


def corner_distance(points: Tensor, corner: Tensor) -> Tensor:
    """MMDC (Shiran and Weinshall 2020), a scalar: the mean square between points (N,K) and their corners (N,)."""
    return (points - F.one_hot(corner, points.shape[1])).square().mean()


def assignment_divergence(log_assignment: Tensor, log_other: Tensor) -> Tensor:
    """DCCS (Zhao et al. 2020), a scalar: KL(q || other) of assignments (N,K), with a gradient for both."""
    return (log_assignment.exp() * (log_assignment - log_other)).sum(1).mean()


def triplet_loss(
    embedding: Tensor, same: Tensor, other: Tensor, valid: Tensor, margin: float, pair_weight: float
) -> Tensor:
    """JULE (Yang et al. 2016), a scalar: pairs of one group should be closer than pairs of two, by squared distances.

    `same` (N,N) tells which rows (N,D) are of one group; `other` (N,R) names rows of other groups where it is `valid`.
    """
    squares = embedding.square().sum(1)
    distance = (squares[:, None] + squares - 2 * embedding @ embedding.T).clamp(min=0)  # (N,N)
    excess = pair_weight * distance[:, :, None] - distance.gather(1, other)[:, None] + margin  # (N,N,R)
    counted = same.tril(-1).logical_or(same.triu(1))[:, :, None] & valid[:, None]  # no row is its own partner
    return torch.where(counted, excess.clamp(min=0), 0.0).sum() / counted.sum().clamp(min=1)


def squared_error(rebuilt: Tensor, images: Tensor) -> Tensor:
    """Return the loss of an autoencoder, a scalar: the mean over images and their values, both (N,...)."""
    return (rebuilt - images).square().mean()


def gaussian_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)) of codes (N,D), in nats, (N,): Kingma and Welling 2014, Appendix B."""
    return 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(1)


def variational_bound(rebuilt: Tensor, images: Tensor, mean: Tensor, log_variance: Tensor, noise: float) -> Tensor:
    """Return the negative of Eq. 10 of Kingma and Welling 2014, in nats per value and up to a constant, a scalar.

    An image is the decoder's output (N,...) with Gaussian noise of a known standard deviation; codes are (N,D).
    """
    divergence = gaussian_divergence(mean, log_variance).mean() / images[0].numel()
    return squared_error(rebuilt, images) / (2 * noise**2) + divergence


def sparse_cost(rebuilt: Tensor, images: Tensor, maps: Tensor, sparsity: float) -> Tensor:
    """The cost of Zeiler et al. 2010 with p = 1, per value and divided by its lambda, whose inverse is `sparsity`; a
    scalar.

    Half the squared error of the reconstruction from the maps (N,D), and the sum of their absolute values.
    """
    return squared_error(rebuilt, images) / 2 + sparsity * maps.abs().sum(1).mean() / images[0].numel()


def discrimination(real: Tensor, made: Tensor) -> Tensor:
    """Return the loss of the discriminator of a GAN, a scalar, from the logits (N,) that images are real.

    The negative of Eq. 1 of Goodfellow et al. 2014.
    """
    return F.softplus(-real).mean() + F.softplus(made).mean()


def deception(made: Tensor) -> Tensor:
    """The loss of the generator of a GAN, a scalar: -log D, which keeps a gradient where D is certain (Sec. 3)."""
    return F.softplus(-made).mean()


def critic_gap(prior: Tensor, made: Tensor) -> Tensor:
    """The loss of a critic, a scalar, from its scores (N,) of samples of a prior and of codes that should match it.

    Its negative is the Wasserstein distance of both if the critic is optimal (Arjovsky et al. 2017, Eq. 2).
    """
    return made.mean() - prior.mean()


def slope_penalty(slopes: Tensor) -> Tensor:
    """The gradient penalty of a critic, a scalar: how far its gradients (N,D) are from unit norm. Gulrajani et al.
    2017, Eq. 3."""
    lengths = (slopes.square().sum(1) + 1e-12).sqrt()  # the root has no finite gradient at 0
    return (lengths - 1).square().mean()


def concentrations(rows: Tensor, centres: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """PCL (Li et al. 2021, Eq. 12), phi (M,): the spread of rows (n,D) around their centres (M,D), given cluster sizes.

    As in the authors' code: values beyond the 10th and 90th percentile are clipped, clusters of one row count as the
    loosest cluster, and phi is scaled so that its mean is the temperature.
    """
    size = torch.zeros_like(centres[:, 0]).index_add_(0, labels, torch.ones_like(rows[:, 0]))  # (M,)
    distance = (rows - centres[labels]).norm(dim=1)
    mean = torch.zeros_like(size).index_add_(0, labels, distance) / size.clamp(min=1)
    phi = mean / (size + 10).log()
    phi = torch.where(size > 1, phi, torch.where(size > 1, phi, 0.0).max())
    phi = phi.clamp(*torch.quantile(phi, torch.tensor([0.1, 0.9], dtype=phi.dtype, device=phi.device)).tolist())
    scaled = torch.where(phi.mean() > 0, temperature * phi / phi.mean().clamp(min=TINY), temperature)
    return scaled.clamp(min=temperature / 100)  # phi would be 0 if all rows were equal


def prototype_contrast(query: Tensor, prototypes: Tensor, concentration: Tensor, label: Tensor) -> Tensor:
    """PCL, Eq. 11, a scalar: a query (N,D) finds the prototype (M,D) of its label; prototypes with a phi (M,) of 0 are
    hidden."""
    known = concentration > 0
    logits = query @ prototypes.T / torch.where(known, concentration, 1.0)
    logits = logits.masked_fill(~known & known.any(), -torch.inf)  # at least one must remain, or there is no gradient
    loss = torch.logsumexp(logits, 1) - logits.gather(1, label[:, None]).squeeze(1)
    return torch.where(known.any(), loss, 0.0).mean()


def mixture_responsibilities(code: Tensor, shares: Tensor, means: Tensor, log_variances: Tensor) -> Tensor:
    """VaDE (Jiang et al. 2017, Eq. 16): log p(k|z) of codes (N,D) under a mixture of Gaussians, (N,K)."""
    distance = (code[:, None] - means).square() / log_variances.exp()  # (N,K,D)
    log_density = -0.5 * (distance + log_variances).sum(2)  # up to a constant
    return F.log_softmax(F.log_softmax(shares, 0) + log_density, 1)


def mixture_divergence(
    mean: Tensor, log_variance: Tensor, log_q: Tensor, shares: Tensor, means: Tensor, log_variances: Tensor
) -> Tensor:
    """VaDE, Eq. 12 without the first term, (N,): KL(q(z,k|x) || p(z,k)) of posteriors (N,D) and assignments (N,K)."""
    q = log_q.exp()
    spread = (log_variance.exp()[:, None] + (mean[:, None] - means).square()) / log_variances.exp()  # (N,K,D)
    cross = 0.5 * (q[:, :, None] * (log_variances + spread)).sum((1, 2))
    clusters = (q * (log_q - F.log_softmax(shares, 0))).sum(1)
    return cross + clusters - 0.5 * (1 + log_variance).sum(1)


def prototype_labels(unit: Tensor, assignment: Tensor, ratio: float) -> Tensor:
    """SPICE (Niu et al. 2022, Sec. III-B), binary targets (N,K): the N / K rows (N,F) closest to each prototype.

    A prototype is the mean of a cluster's most confident rows, a `ratio` of N / K. A row may have several labels, or
    none.
    """
    share = max(1, len(unit) // assignment.shape[1])
    surest = assignment.topk(max(1, int(ratio * share)), dim=0).indices  # (R,K)
    centres = unit[surest].mean(0)  # (K,F)
    closest = (unit @ centres.T).topk(share, dim=0).indices  # (N/K,K)
    return torch.zeros_like(assignment).scatter(0, closest, 1.0)


def multiple_label_loss(log_assignment: Tensor, target: Tensor) -> Tensor:
    """SPICE, a scalar: the cross-entropy of each label in binary targets (N,K)."""
    return -(target * log_assignment).sum() / target.sum().clamp(min=1)


def set_similarity(query: Tensor, rows: Tensor, log_members: Tensor, valid: Tensor, temperature: float) -> Tensor:
    """SCL, our reading: log of the share of a query's (N,D) similarity to all rows (J,D) that belongs to each cluster,
    (N,K).

    `log_members` (J,K) are the assignments of the rows. Without valid rows all clusters are equal.
    """
    logits = (query @ rows.T / temperature).masked_fill(~valid, -1e4)  # (N,J); finite if none is valid
    log_set = torch.logsumexp(logits[:, :, None] + log_members, 1)
    return F.log_softmax(torch.where(valid.any(), log_set, 0.0), 1)


def hierarchical_information(by_head: Tensor) -> Tensor:
    """DHOG, our reading, a scalar: information of a head's assignments (H,N,K) about earlier heads, which get no
    gradient."""
    total = by_head.new_zeros(())
    for place in range(1, len(by_head)):
        before = by_head[:place].detach()
        total = total + paired_information(by_head[place].expand_as(before), before, 1.0).mean()
    return total


def transitive_relation(assignment: Tensor, threshold: float) -> Tensor:
    """DDC, our reading, (N,N) bool: pairs of assignments (N,K) whose cosine reaches a threshold, directly or through a
    third one."""
    unit = F.normalize(assignment, dim=1)
    near = (unit @ unit.T >= threshold).to(unit.dtype)
    return (near @ near > 0).fill_diagonal_(True)


def sharpened(assignment: Tensor, temperature: float) -> Tensor:
    """MixMatch's targets (Berthelot et al. 2019, Eq. 7) of assignments (N,K): powers of them that sum to 1."""
    powers = assignment.clamp(min=TINY) ** (1 / temperature)
    return powers / powers.sum(1, keepdim=True)


def mixed_losses(log_assignment: Tensor, target: Tensor, clean: Tensor) -> tuple[Tensor, Tensor]:
    """RUC (Park et al. 2021), two scalars: the cross-entropy of the mixed rows (N,K) that begin with a `clean` (N,)
    image, and the mean squared error of the others."""
    entropy = -(target * log_assignment).sum(1)
    error = (log_assignment.exp() - target).square().mean(1)
    n_clean, n_others = clean.sum().clamp(min=1), (~clean).sum().clamp(min=1)
    return torch.where(clean, entropy, 0.0).sum() / n_clean, torch.where(clean, 0.0, error).sum() / n_others


def smooth_label_loss(log_assignment: Tensor, label: Tensor, clean: Tensor, smoothing: float) -> Tensor:
    """RUC, a scalar: cross-entropy of the labels (N,) of `clean` (N,) rows, of which the other clusters get a share
    `smoothing`."""
    own = log_assignment.gather(1, label[:, None]).squeeze(1)
    others = (log_assignment.sum(1) - own) / (log_assignment.shape[1] - 1)
    loss = -(1 - smoothing) * own - smoothing * others
    return torch.where(clean, loss, 0.0).sum() / clean.sum().clamp(min=1)


def majority(labels: Tensor, nearest: Tensor, n_clusters: int) -> Tensor:
    """RUC, (n,): the most frequent label among each row and its `nearest` (n,k)."""
    votes = F.one_hot(labels, n_clusters)
    return votes.scatter_add(1, labels[nearest], torch.ones_like(nearest)).argmax(1)
