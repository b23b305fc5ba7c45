"""Find copies: images that show the same, though resized, recompressed, cropped a little, a moment later, or blurred.

Candidates are pairs with close thumbnails, or close features of an encoder where there are any. All pairs are compared
by blocked matrix products. A pair counts as copies if fine structure agrees, too, once the two are shifted and zoomed
onto each other: photographs of one scene type have close features, but edges elsewhere.

Shapes: n images, p pairs, D features.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ALIKE, AGREED, ROUGHLY = 0.75, 0.68, 0.6  # least cosine of features, agreement and likeness of thumbnails of a copy
CLOSE, SAME = 0.97, 0.985  # likeness of thumbnails with little agreement of features; with little fine structure
SEEN = 0.95, 0.7  # likeness and agreement that are enough without features; or ...
SEEN_FINE = 0.85, 0.85  # ... these
EQUAL = 0.995  # least correlation of thumbnails of images that resemble each other anyway: drawings, tiny images
BLURRED_ALIKE = 0.97  # likeness of a blurred copy with its original, blurred as much
WIDTHS = (0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2)  # of blurs that are tried, in pixels of a coloured thumbnail
FEW_PER_IMAGE = 8  # candidates per image by features: more of them, and the least cosine rises
MOST_PER_IMAGE = 32  # in one block of the product
ROWS, COLUMNS = 1024, 16384  # of a block
PRINCIPAL = 128  # directions in which features of large sets are compared first
LARGE, POOL = 10_000, 5_000  # images of a large set, and those among which neighbours of odd ones are sought
SAMPLE = 2048  # images whose pairs set the least cosine
AT_ONCE = 4096  # pairs to align at once
SCALES = (1.0, 0.96, 0.92, 0.88)
SHIFT, MARGIN = 4, 6  # pixels of 32


@dataclass(frozen=True)
class Copies:
    pairs: np.ndarray  # (p,2) int64, the smaller position first
    alike: np.ndarray  # (p,) how much they agree, up to 1

    @classmethod
    def none(cls) -> Copies:
        return cls(np.empty((0, 2), np.int64), np.empty(0))


@torch.no_grad()
def find_copies(
    grey: np.ndarray,
    coloured: np.ndarray,
    blurred: np.ndarray,
    detailed: np.ndarray,
    features: np.ndarray | None,
    fresh: np.ndarray | None = None,
) -> Copies:
    """Return the pairs of copies among images with thumbnails, grey (n,32,32) and coloured (n,16,16,3).

    `blurred` (n,) images are compared with the others, blurred. Images that are not `detailed` (n,) have to be nearly
    equal. `features` (n,D) are those of an encoder. With `fresh` (n,), only pairs with such an image are compared.
    """
    if len(grey) < 2:
        return Copies.none()
    small, unit = torch.from_numpy(grey).float(), None if features is None else _unit(features)
    rough = _rough(small)
    pairs = _candidates(rough, unit, None if fresh is None else torch.from_numpy(fresh))
    strict = ~torch.from_numpy(detailed)[pairs].all(1)
    colours = torch.from_numpy(coloured).permute(0, 3, 1, 2).float()
    likeness = _products(rough, pairs)
    equal = torch.minimum(_products(_centred(small[:, None]), pairs), _products(_centred(colours), pairs))
    pairs, likeness, equal, strict = (part[~strict | (equal > EQUAL)] for part in (pairs, likeness, equal, strict))
    fine = torch.where(strict, equal, _agreement(_structure(small), pairs))
    cosine = None if unit is None else _products(unit, pairs)
    accepted = strict | _accepted(likeness, fine, cosine)
    found, agreed = pairs[accepted].numpy(), fine[accepted].clamp(max=1).numpy()
    more, how = _blurred_copies(colours, np.flatnonzero(blurred), detailed)
    if fresh is not None:
        how, more = how[fresh[more].any(1)], more[fresh[more].any(1)]
    together, alike = np.concatenate([found, more]), np.concatenate([agreed, how])
    order = np.lexsort((-alike, together[:, 1], together[:, 0]))
    together, first = np.unique(together[order], axis=0, return_index=True)
    return Copies(together.reshape(-1, 2), alike[order][first])


def groups_of(copies: Copies, rank: np.ndarray, spoilt: np.ndarray) -> list[tuple[int, int, float]]:
    """Return (image, best image of its group, likeness), each image once at most.

    `rank` (n,): the lowest is the best image. Groups are not chained: each member is a copy of the best image itself.
    Images that are `spoilt` (n,) come last, and may be copies of any image.
    """
    around: dict[int, list[tuple[int, float]]] = {}
    for (one, other), alike in zip(copies.pairs.tolist(), copies.alike.tolist(), strict=True):
        around.setdefault(one, []).append((other, alike))
        around.setdefault(other, []).append((one, alike))

    def order(image: int) -> tuple[bool, int, int]:
        return bool(spoilt[image]), int(rank[image]), image

    members, taken = [], set[int]()
    for best in sorted(around, key=order):
        if best in taken:
            continue
        free = [(image, alike) for image, alike in around[best] if image not in taken]
        if not free and spoilt[best]:
            other, alike = min(around[best], key=lambda partner: order(partner[0]))
            members.append((best, other, alike))
        members += [(image, best, alike) for image, alike in free]
        taken |= {best, *(image for image, _ in free)}
    return members


def odd_ones(features: np.ndarray, *, neighbour: int = 5, beyond: float = 4.0, most: float = 0.01) -> np.ndarray:
    """Return how far each image (n,) is from its nearest ones, in deviations from the usual; 0 for usual ones.

    The distance is that of the fifth neighbour. At most one in a hundred images is odd.
    """
    from twincluster.clustering.neighbours import CHUNK

    if len(features) < 10 * neighbour:
        return np.zeros(len(features))
    unit = _principal(_unit(features)) if len(features) > POOL else _unit(features)
    pool = unit[:: -(-len(unit) // POOL)]
    distance = torch.cat(
        [1 - (part @ pool.T).topk(neighbour + 1, dim=1).values[:, -1] for part in torch.split(unit, CHUNK)]
    )
    middle = distance.median()
    deviations = (distance - middle) / (1.4826 * (distance - middle).abs().median()).clamp(min=1e-6)
    bound = max(beyond, float(deviations.sort().values[-1 - int(most * len(unit))]))
    return torch.where(deviations > bound, deviations, 0).double().numpy()


def _unit(features: np.ndarray) -> Tensor:
    return F.normalize(torch.nan_to_num(torch.from_numpy(np.ascontiguousarray(features)).float()), dim=1)


def _rough(small: Tensor) -> Tensor:
    """Return blurred thumbnails without their mean brightness and contrast, (n,256)."""
    half = F.avg_pool2d(small[:, None], 2)
    soft = F.avg_pool2d(F.pad(half, (1,) * 4, mode="replicate"), 3, 1).flatten(1)
    return F.normalize(soft - soft.mean(1, keepdim=True), dim=1)


def _principal(unit: Tensor) -> Tensor:
    """Return unit rows in their main directions, where cosines are nearly the same."""
    if unit.shape[1] <= PRINCIPAL:
        return unit
    sample = unit[:: -(-len(unit) // (4 * SAMPLE))]
    _, vectors = torch.linalg.eigh(sample.T @ sample)
    principal: Tensor = F.normalize(unit @ vectors[:, -PRINCIPAL:], dim=1)
    return principal


def _candidates(rough: Tensor, unit: Tensor | None, fresh: Tensor | None) -> Tensor:
    """Return the pairs (p,2) that are worth a closer look."""
    found = []
    for rows, least in ((rough, SEEN_FINE[0] if unit is None else SEEN[0]), (unit, ALIKE)):
        if rows is not None:
            rows = _principal(rows) if len(rows) > LARGE else rows
            found.append(_close_pairs(rows, max(least, _rare_cosine(rows)), fresh))
    pairs: Tensor = torch.unique(torch.cat(found), dim=0)
    return pairs


def _rare_cosine(unit: Tensor) -> float:
    """Return the cosine that so few pairs exceed that all of them can be looked at."""
    if len(unit) <= SAMPLE:
        return -1.0
    sample = unit[:: -(-len(unit) // SAMPLE)]
    cosines = (sample @ sample.T)[torch.ones(len(sample), len(sample)).triu(1).bool()].sort().values
    share = min(0.5, FEW_PER_IMAGE / len(unit))
    return min(SAME, float(cosines[int((1 - share) * (len(cosines) - 1))]))


def _close_pairs(unit: Tensor, least: float, fresh: Tensor | None) -> Tensor:
    """Return all pairs (p,2) of unit rows with that cosine; of blocks that have very many, the closest."""
    found = [torch.empty((0, 2), dtype=torch.int64)]
    rows = torch.arange(len(unit)) if fresh is None else fresh.nonzero()[:, 0]
    for some in torch.split(rows, ROWS):
        for left in range(int(some[0]) if fresh is None else 0, len(unit), COLUMNS):
            cosine = (unit[some] @ unit[left : left + COLUMNS].T).flatten()
            close = (cosine >= least).nonzero()[:, 0]
            if len(close) > (most := MOST_PER_IMAGE * ROWS):
                close = close[cosine[close].topk(most).indices]
            width = min(COLUMNS, len(unit) - left)
            one, other = some[close // width], close % width + left
            found.append(torch.stack([torch.minimum(one, other), torch.maximum(one, other)], 1)[one != other])
    pairs: Tensor = torch.unique(torch.cat(found), dim=0)
    return pairs


def _products(unit: Tensor, pairs: Tensor) -> Tensor:
    """Return the cosine of each pair, (p,)."""
    parts = [(unit[some[:, 0]] * unit[some[:, 1]]).sum(1) for some in torch.split(pairs, AT_ONCE)]
    return torch.cat([torch.empty(0), *parts])


def _structure(small: Tensor) -> Tensor:
    """Return thumbnails without slow changes of brightness and with even contrast, so that edges count everywhere."""

    def around(images: Tensor) -> Tensor:
        return F.avg_pool2d(F.pad(images[:, None], (4,) * 4, mode="replicate"), 9, 1)[:, 0]

    parts = []
    for some in torch.split(small, AT_ONCE):
        fine = some - around(some)
        parts.append(fine / (around(fine * fine).sqrt() + 4))
    return torch.cat(parts)


def _agreement(structure: Tensor, pairs: Tensor) -> Tensor:
    """Return how well each pair agrees, (p,), in the best of the shifts and zooms of one onto the other."""
    best = torch.full((len(pairs),), -1.0)
    for scale in SCALES:
        open_ = ((best < SEEN_FINE[1]) & ((scale == 1) | (best > 0.1))).nonzero()[:, 0]
        for some in torch.split(open_, AT_ONCE):
            one, other = structure[pairs[some, 0]], structure[pairs[some, 1]]
            agreed = torch.maximum(_overlaid(one, other, scale), _overlaid(other, one, scale))
            best[some] = torch.maximum(best[some], agreed)
    return best


def _overlaid(one: Tensor, other: Tensor, scale: float) -> Tensor:
    """Return the correlation (p,) of the centre of `other` with `one`, enlarged, at the best of small shifts."""
    size = one.shape[-1]
    if scale != 1:
        line = torch.linspace(-scale, scale, size)
        grid = torch.stack(torch.meshgrid(line, line, indexing="ij")[::-1], -1).expand(len(one), -1, -1, -1)
        one = F.grid_sample(one[:, None], grid, padding_mode="border", align_corners=True)[:, 0]
    centre = F.pad(other[:, MARGIN // 2 : -(MARGIN // 2), MARGIN // 2 : -(MARGIN // 2)], (MARGIN // 2,) * 4)
    padded = (size + 2 * SHIFT,) * 2
    moved = torch.fft.irfft2(torch.fft.rfft2(one, padded) * torch.fft.rfft2(centre, padded).conj(), padded)
    moved = torch.cat([moved[:, -SHIFT:], moved[:, : SHIFT + 1]], 1)
    moved = torch.cat([moved[:, :, -SHIFT:], moved[:, :, : SHIFT + 1]], 2)
    length = one.flatten(1).norm(dim=1) * (1 - MARGIN / size) * centre.flatten(1).norm(dim=1)
    correlation: Tensor = moved.flatten(1).amax(1) / length.clamp(min=1e-3)
    return correlation


def _accepted(likeness: Tensor, fine: Tensor, cosine: Tensor | None) -> Tensor:
    """Return which pairs (p,) are copies."""
    same = (likeness > SAME) & (fine > 0.5)
    if cosine is None:
        return same | ((likeness > SEEN[0]) & (fine > SEEN[1])) | ((likeness > SEEN_FINE[0]) & (fine > SEEN_FINE[1]))
    return same | ((fine > AGREED) & (likeness > ROUGHLY) & ((cosine > ALIKE) | (likeness > CLOSE)))


def _blurred_copies(images: Tensor, blurred: np.ndarray, detailed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return pairs (p,2) of blurred images and those that they are like when these are blurred, too.

    `images` are (n,3,16,16), `blurred` are positions.
    """
    rows, best = torch.from_numpy(blurred), torch.full((len(blurred), len(images)), -1.0)
    if not len(blurred):
        return np.empty((0, 2), np.int64), np.empty(0)
    for width in WIDTHS:
        for start, stop in pairwise([*range(0, len(images), COLUMNS), len(images)]):
            softened = _centred(_softened(images[start:stop], width))
            best[:, start:stop] = torch.maximum(best[:, start:stop], _centred(images[rows]) @ softened.T)
    best[:, ~torch.from_numpy(detailed)] = -1
    best[torch.arange(len(rows)), rows] = -1
    at, like = (best > BLURRED_ALIKE).nonzero().T
    pairs = torch.stack([rows[at], like], 1)
    return pairs.sort(1).values.numpy(), best[at, like].double().numpy()


def _centred(images: Tensor) -> Tensor:
    return F.normalize((images - images.mean((2, 3), keepdim=True)).flatten(1), dim=1)


def _softened(images: Tensor, width: float) -> Tensor:
    """Blur images (n,c,s,s) with a Gaussian of that standard deviation."""
    reach = int(3 * width + 1)
    kernel = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    kernel, count = kernel / kernel.sum(), images.shape[1]
    images = F.pad(images, (reach,) * 4, mode="replicate")
    images = F.conv2d(images, kernel.view(1, 1, 1, -1).repeat(count, 1, 1, 1), groups=count)
    return F.conv2d(images, kernel.view(1, 1, -1, 1).repeat(count, 1, 1, 1), groups=count)
