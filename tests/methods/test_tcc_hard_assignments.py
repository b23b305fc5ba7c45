"""Ablation (vi), hard assignments in r: what counts, what learns, and what happens to clusters without members."""

import numpy as np
import torch

import reference_losses as slow
from reference_tcc import (
    KEYS,
    D,
    K,
    L,
    Side,
    build,
    close,
    fresh,
    gradients,
    numbers,
    reading,
    sides,
    step,
    stored,
    three_views,
)
from twincluster.methods import Tcc, losses
from twincluster.methods.tcc import Reading


def hard(assignments: list[list[float]]) -> list[list[float]]:
    return [[float(k == int(np.argmax(row))) for k in range(K)] for row in assignments]


def test_hard_assignments_count_members_only() -> None:
    method = build("tcc-hard-assignments")
    one = reading([0, 0, 1, 2, 3, 3], seed=0)
    before = losses.cluster_representations(one.features, method.membership(one))
    for k, members in enumerate([[0, 1], [2], [3], [4, 5]]):
        close(before[k], slow.unit(numbers(one.features)[members].sum(0)))
    strangers = one.features.detach().clone()
    strangers[2:] = torch.randn(4, D)  # likely members of other clusters, unlikely ones of cluster 0
    after = losses.cluster_representations(strangers, method.membership(one))
    assert torch.equal(after[0], before[0])
    soft = build()
    moved = losses.cluster_representations(strangers, soft.membership(one))
    assert not torch.allclose(moved[0], losses.cluster_representations(one.features, soft.membership(one))[0])


def test_hard_assignments_give_prototypes_no_gradient_through_l1() -> None:
    method = build("tcc-hard-assignments")
    online, key = method.read(*three_views()[:2], KEYS)
    found = gradients(method, method.cluster_track(online, key)[0])
    assert found["prototypes"].count_nonzero() == 0
    assert found["head.weight"].abs().max() > 1e-4
    assert gradients(method, step(method).loss)["prototypes"].abs().max() > 1e-4


def test_hard_assignments_of_a_whole_step() -> None:
    method = build("tcc-hard-assignments")
    online, key = sides(method)
    wanted, keys = expected_hard_loss(method, online, key, stored(method))
    outcome = step(method)
    close(outcome.metrics["cluster_loss"], wanted)
    close(outcome.memory["clusters"], [keys.get(k, [0.0] * D) for k in range(K)])


def expected_hard_loss(
    method: Tcc, online: Side | Reading, key: Side | Reading, rows: list[tuple[int, list[float]]]
) -> tuple[float, dict[int, list[float]]]:
    """By dictionaries that simply lack the empty clusters."""
    found = []
    for one in (online, key):
        soft = one.assignments if isinstance(one, Side) else one.log_assignment.tolist()
        members = hard(soft)
        features = one.features if isinstance(one, Side) else numbers(one.features)
        present = [k for k in range(K) if any(row[k] for row in members)]
        found.append(
            {k: slow.unit(sum(f for f, row in zip(features, members, strict=True) if row[k])) for k in present}
        )
    clusters, keys = found
    terms = [
        -slow.info_nce(clusters[k], keys[k], [row for owner, row in rows if owner != k], method.settings.temperature)
        for k in clusters
        if k in keys
    ]
    return float(np.mean(terms)) if terms else 0.0, keys


def test_empty_clusters_leave_the_loss_and_p_stays_aligned() -> None:
    """Step by step against a list of (cluster, row): 3 never has a member, 2 comes late, 1 goes, P wraps."""
    method = fresh("tcc-hard-assignments")
    labels = [
        ([0, 0, 1, 1], [0, 1, 1, 0]),
        ([0, 0, 1, 1], [0, 0, 0, 0]),  # 1 is empty in the momentum network only
        ([2, 2, 1, 0], [2, 0, 1, 0]),
        ([2, 0, 0, 0], [1, 2, 2, 2]),  # 0 and 1 in one network each
        ([0, 0, 2, 2], [2, 2, 0, 0]),
        ([1, 1, 1, 1], [2, 2, 2, 2]),  # nothing in common: no loss at all
        ([0, 1, 2, 0], [0, 1, 2, 1]),
    ]
    blocks: list[list[tuple[int, list[float]]]] = []  # the newest L / K steps; an empty cluster leaves nothing
    for number, (mine, theirs) in enumerate(labels):
        online, key = reading(mine, 2 * number), reading(theirs, 2 * number + 1)
        key = key._replace(features=key.features.detach())
        loss, rows = method.cluster_track(online, key)
        wanted, keys = expected_hard_loss(method, online, key, [row for block in blocks for row in block])
        close(loss, wanted)
        (gradient,) = torch.autograd.grad(loss, online.features)
        assert gradient.isfinite().all()
        method.cluster_queue.push(rows)
        blocks = [*blocks, list(keys.items())][-L // K :]
        for slot, row in enumerate(numbers(method.cluster_queue.rows)):  # row l belongs to cluster l mod K, or to none
            assert not row.any() or any(
                np.allclose(row, kept, atol=1e-6) for block in blocks for k, kept in block if k == slot % K
            )
    assert int(method.cluster_queue.written) == K * len(labels)
