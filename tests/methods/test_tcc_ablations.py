"""Each ablation takes a step, and differs from the full model exactly where it should.

All start from the same weights, queues and views, so a number that an ablation does not touch equals the full model's.
Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P.
"""

import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

import reference_losses as slow
from reference_tcc import (
    KEYS,
    ROWS,
    SAMPLES,
    D,
    K,
    L,
    N,
    Side,
    build,
    fresh,
    gradients,
    n_views,
    numbers,
    pictures,
    sides,
    slow_l1,
    slow_l2,
    step,
    stored,
    three_views,
)
from twincluster import draws, losses
from twincluster.methods import METHODS
from twincluster.methods.base import Batch
from twincluster.methods.tcc import KEY_GUMBEL, ONLINE_GUMBEL, Reading, Tcc
from twincluster.methods.tcc_ablations import ABLATIONS

SAME_CLUSTER_TRACK = [
    "tcc-without-l1",
    "tcc-without-l2",
    "tcc-ten-samples",
    "tcc-assignment-embedding",
    "tcc-deterministic",
]
SAME_INSTANCE_TRACK = [
    "tcc-without-l1",
    "tcc-without-p",
    "tcc-without-image-augmentation",
    "tcc-hard-assignments",
    "tcc-without-subsetting",
    "tcc-stochastic-clusters",
]


def close(found: Tensor, wanted: object, atol: float = 3e-5) -> None:
    np.testing.assert_allclose(np.asarray(found.detach()), np.asarray(wanted), rtol=0, atol=atol)


# -- all of them -----------------------------------------------------------------------------------------------------


def test_names_and_descriptions() -> None:
    """`twincluster methods` prints the first line of each docstring; each class stands on Tcc alone."""
    assert all(METHODS[name] is method for name, method in ABLATIONS.items())
    for name, method in ABLATIONS.items():
        assert method.__bases__ == (Tcc,), name
        assert method.__doc__, name
        assert "\n" not in method.__doc__, name
    assert len({method.__doc__ for method in ABLATIONS.values()}) == len(ABLATIONS) == 10


@pytest.mark.parametrize("name", ABLATIONS)
def test_takes_steps(name: str) -> None:
    method = fresh(name)
    before = copy.deepcopy(method.online.state_dict())
    optimiser = torch.optim.Adam(method.online.parameters(), lr=1e-2)
    for number in range(3):
        views = tuple(pictures(10 * number + view) for view in range(n_views(method)))
        outcome = method.losses(views, SAMPLES, KEYS + number)
        optimiser.zero_grad()
        outcome.loss.backward()
        optimiser.step()
        method.remember(outcome.memory)
        assert outcome.loss.isfinite()
        assert all(value.isfinite() and not value.requires_grad for value in outcome.metrics.values())
        assert outcome.assignment.shape == outcome.key_assignment.shape == (N, K)
    assert all(tensor.isfinite().all() for tensor in method.state_dict().values())
    still = {name for name, weight in method.online.named_parameters() if torch.equal(weight, before[name])}
    assert still == ({"assignment_shift.weight", "assignment_shift.bias"} if name == "tcc-without-l2" else set())


@pytest.mark.parametrize("name", ABLATIONS)
def test_compiles_as_one_graph(name: str) -> None:
    """One graph also means that nothing waits for the host and that no shape depends on data."""
    method, views = build(name, shape=ROWS), three_views(ROWS)
    wanted = step(method)
    torch._dynamo.reset()
    backend = "aot_eager" if name == "tcc-hard-assignments" else "eager"
    found = torch.compile(method.losses, fullgraph=True, backend=backend)(views[: n_views(method)], SAMPLES, KEYS)
    torch.testing.assert_close(found.loss, wanted.loss)
    torch.testing.assert_close(found.memory, wanted.memory)
    found.loss.backward()


@pytest.mark.parametrize("name", SAME_CLUSTER_TRACK)
def test_leaves_the_cluster_track_alone(name: str) -> None:
    full, ablation = step(build()), step(build(name))
    torch.testing.assert_close(ablation.metrics["cluster_loss"], full.metrics["cluster_loss"])
    torch.testing.assert_close(ablation.memory["clusters"], full.memory["clusters"])


@pytest.mark.parametrize("name", SAME_INSTANCE_TRACK)
def test_leaves_the_instance_track_alone(name: str) -> None:
    full, ablation = step(build()), step(build(name))
    torch.testing.assert_close(ablation.metrics["instance_loss"], full.metrics["instance_loss"])
    torch.testing.assert_close(ablation.memory["embedding"], full.memory["embedding"])


@pytest.mark.parametrize("name", [name for name in ABLATIONS if name != "tcc-without-l1"])
def test_changes_a_track(name: str) -> None:
    """Of the two tracks, exactly one gives another number; without L1 both do what they did, and one is ignored."""
    full, ablation = step(build()), step(build(name))
    cluster, instance = (
        not torch.allclose(ablation.metrics[track], full.metrics[track], atol=1e-4)
        for track in ("cluster_loss", "instance_loss")
    )
    assert (cluster, instance) == (name not in SAME_CLUSTER_TRACK, name not in SAME_INSTANCE_TRACK)


# -- (i) and (ii) ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_without_l1_descends_l2(alpha: float) -> None:
    method, full = build("tcc-without-l1", alpha=alpha), build(alpha=alpha)
    outcome = step(method)
    close(outcome.loss, slow_l2(full, *sides(full)))
    online, key = full.read(*three_views()[:2], KEYS)
    wanted = gradients(full, full.instance_track(online, key)[0])
    torch.testing.assert_close(gradients(method, outcome.loss), wanted, atol=1e-7, rtol=1e-5)
    assert wanted["prototypes"].abs().max() > 1e-4


@pytest.mark.parametrize("alpha", [0.5, 0.1])
def test_without_l2_descends_l1_and_uses_neither_q_nor_nn(alpha: float) -> None:
    method, full = build("tcc-without-l2", alpha=alpha), build(alpha=alpha)
    outcome = step(method)
    close(outcome.loss, slow_l1(full, *sides(full)))
    online, key = full.read(*three_views()[:2], KEYS)
    found, wanted = gradients(method, outcome.loss), gradients(full, full.cluster_track(online, key)[0])
    torch.testing.assert_close(found, wanted, atol=1e-7, rtol=1e-5)
    assert found["assignment_shift.weight"].count_nonzero() == found["assignment_shift.bias"].count_nonzero() == 0
    assert found["prototypes"].abs().max() > 1e-5
    queue = copy.deepcopy(method.instance_queue.state_dict())
    method.remember(outcome.memory)
    torch.testing.assert_close(method.instance_queue.state_dict(), queue, atol=0, rtol=0)


# -- (iii) -----------------------------------------------------------------------------------------------------------


def test_ten_samples_average_log_p_and_enqueue_the_mean() -> None:
    method = build("tcc-ten-samples")
    outcome, single = step(method), sides(build())
    terms, keys = [], []
    for number in range(10):
        online, key = (
            replace(one, noise=numbers(draws.gumbel(KEYS, stream, 10 * K))[:, number * K : (number + 1) * K])
            for one, stream in zip(single, (ONLINE_GUMBEL, KEY_GUMBEL), strict=True)
        )
        terms.append(slow_l2(method, online, key))  # the entropy and log K are the same in each
        keys.append(key.embeddings())
    assert len(set(terms)) == 10
    close(outcome.metrics["instance_loss"], np.mean(terms))
    mean = np.mean(keys, 0)
    assert np.linalg.norm(mean, axis=1).min() < 0.98  # so that the norm would show
    close(outcome.memory["embedding"], [slow.unit(row) for row in mean])


def test_the_first_of_ten_samples_is_the_only_one_of_the_full_model() -> None:
    log_assignment = torch.randn(N, K).log_softmax(1)
    ten = build("tcc-ten-samples").sample(log_assignment, KEYS, ONLINE_GUMBEL)
    torch.testing.assert_close(ten[::10], build().sample(log_assignment, KEYS, ONLINE_GUMBEL))
    assert ten.shape == (10 * N, K)


# -- (iv) ------------------------------------------------------------------------------------------------------------


def test_without_p_contrasts_with_the_other_clusters_of_the_batch() -> None:
    method = build("tcc-without-p")
    outcome, (online, key) = step(method), sides(method)
    clusters, keys = (slow.clusters(one.features, one.assignments) for one in (online, key))
    terms = slow.cluster_terms(clusters, keys, list(enumerate(keys)), method.settings.temperature)
    close(outcome.metrics["cluster_loss"], np.mean(terms))
    queue = copy.deepcopy(method.cluster_queue.state_dict())
    method.remember(outcome.memory)
    torch.testing.assert_close(method.cluster_queue.state_dict(), queue, atol=0, rtol=0)


# -- (v) -------------------------------------------------------------------------------------------------------------


def test_without_image_augmentation_represents_clusters_by_plain_images() -> None:
    method = build("tcc-without-image-augmentation")
    first, second, plain = three_views()
    outcome = method.losses((first, second, plain), SAMPLES, KEYS)
    online, key = sides(method, (plain, plain))
    close(outcome.metrics["cluster_loss"], slow_l1(method, online, key))
    close(outcome.memory["clusters"], slow.clusters(key.features, key.assignments))
    other = method.losses((second, first, plain), SAMPLES, KEYS)
    torch.testing.assert_close(other.metrics["cluster_loss"], outcome.metrics["cluster_loss"])
    torch.testing.assert_close(other.memory["clusters"], outcome.memory["clusters"])
    close(outcome.assignment, sides(method, (first, second))[0].assignments)


def test_without_image_augmentation_asks_for_plain_images() -> None:
    batch = Batch(SAMPLES, KEYS, view=lambda i: torch.full((N,), float(i)), plain=lambda: torch.full((N,), 9.0))
    assert [float(view[0]) for view in build("tcc-without-image-augmentation").views(batch)] == [0.0, 1.0, 9.0]
    assert [float(view[0]) for view in build().views(batch)] == [0.0, 1.0]


# -- (vi) ------------------------------------------------------------------------------------------------------------


def hard(assignments: list[list[float]]) -> list[list[float]]:
    return [[float(k == int(np.argmax(row))) for k in range(K)] for row in assignments]


def reading(labels: list[int], seed: int) -> Reading:
    """Samples with random features whose most likely clusters are `labels`."""
    random = torch.Generator().manual_seed(seed)
    logits = torch.rand(len(labels), K, generator=random)
    logits[torch.arange(len(labels)), torch.tensor(labels)] += 1.5
    features = torch.randn(len(labels), D, generator=random)
    return Reading(features.requires_grad_(), logits.log_softmax(1), logits.softmax(1))


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


# -- (vii) -----------------------------------------------------------------------------------------------------------


def batches(count: int = 4, size: int = 8) -> Iterator[Batch]:
    for number in range(count):
        samples = torch.arange(size) + number * size
        yield Batch(
            samples,
            draws.sample_keys(0, torch.tensor(0), samples),
            view=lambda i, number=number: pictures(100 * number + i, n=size),
            plain=lambda: pytest.fail("this ablation keeps the augmentation of images"),
        )


def optimiser_of(method: Tcc) -> torch.optim.Optimizer:
    weights = [weight for weight in method.parameters() if weight.requires_grad]
    for weight in weights:
        weight.grad = torch.ones_like(weight)  # what the last step of the epoch left behind
    return torch.optim.SGD(weights, lr=0.1, momentum=0.9, nesterov=True)


def test_whole_set_step_equals_one_big_backward() -> None:
    """Each batch crosses batch-norm by itself, in training mode; then all features meet in one graph."""
    method = build("tcc-without-subsetting")
    twin = copy.deepcopy(method)
    optimiser, twin_optimiser = optimiser_of(method), optimiser_of(twin)
    with torch.random.fork_rng():
        for one in (optimiser, twin_optimiser):
            one.step()  # momentum of an earlier step, which must live on
    noted = method.after_epoch(0, batches(), optimiser)

    features = torch.cat([twin.online.embed(batch.view(0)) for batch in batches()])
    clusters = losses.cluster_representations(features, twin.online.assign_features(features).exp())
    with torch.no_grad():
        key_features = torch.cat([twin.momentum.embed(batch.view(1)) for batch in batches()])
        key_clusters = losses.cluster_representations(key_features, twin.momentum.assign_features(key_features).exp())
    queue = twin.cluster_queue
    loss = losses.cluster_loss(clusters, key_clusters, queue.rows, queue.valid(), twin.settings.temperature)
    twin_optimiser.zero_grad()
    loss.backward()
    for (name, weight), other in zip(method.online.named_parameters(), twin.online.parameters(), strict=True):
        wanted = torch.zeros_like(other) if other.grad is None else other.grad
        torch.testing.assert_close(weight.grad, wanted, atol=1e-6, rtol=1e-4, msg=name)
        other.grad = wanted
    assert method.online.head.weight.grad.abs().max() > 1e-4
    assert method.online.prototypes.grad.abs().max() > 1e-5

    twin_optimiser.step()
    twin.remember({"clusters": key_clusters, "embedding": key_clusters[:0]})
    assert noted == {"cluster_loss": pytest.approx(loss.item(), abs=1e-5)}
    for (name, tensor), other in zip(method.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(tensor, other, atol=1e-6, rtol=1e-4, msg=name)
    torch.testing.assert_close(method.cluster_queue.state_dict(), twin.cluster_queue.state_dict())
    torch.testing.assert_close(method.instance_queue.state_dict(), twin.instance_queue.state_dict(), atol=0, rtol=0)


def test_whole_set_step_does_not_depend_on_the_cut_when_batch_norm_does_not() -> None:
    method = build("tcc-without-subsetting").eval()
    twin = copy.deepcopy(method)
    together = Batch(
        SAMPLES, KEYS, lambda i: torch.cat([batch.view(i) for batch in batches()]), plain=lambda: torch.empty(0)
    )
    found = method.after_epoch(0, batches(), optimiser_of(method))
    wanted = twin.after_epoch(0, iter([together]), optimiser_of(twin))
    assert found == {"cluster_loss": pytest.approx(wanted["cluster_loss"], abs=1e-5)}
    for (name, weight), other in zip(method.online.named_parameters(), twin.online.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, other.grad, atol=1e-6, rtol=1e-3, msg=name)


def test_whole_set_step_holds_one_graph_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    method = build("tcc-without-subsetting")
    alive: list[weakref.ref[Tensor]] = []
    embed = method.online.embed

    def watched(images: Tensor) -> Tensor:
        assert not any(reference() is not None for reference in alive), "an earlier batch is still held"
        features = embed(images)
        if features.requires_grad:
            alive.append(weakref.ref(features))
        return features

    monkeypatch.setattr(method.online, "embed", watched)
    method.after_epoch(0, batches(), optimiser_of(method))
    assert len(alive) == 4


def test_whole_set_step_keeps_the_tensors_of_a_captured_step() -> None:
    method = build("tcc-without-subsetting")
    optimiser = optimiser_of(method)
    optimiser.step()
    weights = [weight for weight in method.parameters() if weight.requires_grad]
    before = [(weight.data_ptr(), weight.grad.data_ptr()) for weight in weights]
    momenta = [optimiser.state[weight]["momentum_buffer"].data_ptr() for weight in weights]
    method.after_epoch(0, batches(), optimiser)
    assert [(weight.data_ptr(), weight.grad.data_ptr()) for weight in weights] == before
    assert [optimiser.state[weight]["momentum_buffer"].data_ptr() for weight in weights] == momenta


def test_without_subsetting_descends_l2_within_the_epoch() -> None:
    method = build("tcc-without-subsetting", alpha=0.7)
    outcome = step(method)
    close(outcome.loss, slow_l2(method, *sides(method)))
    queue = copy.deepcopy(method.cluster_queue.state_dict())
    method.remember(outcome.memory)
    torch.testing.assert_close(method.cluster_queue.state_dict(), queue, atol=0, rtol=0)


# -- Section 3.4 -----------------------------------------------------------------------------------------------------


def test_assignment_embedding_forgets_the_features() -> None:
    method = build("tcc-assignment-embedding")
    one = reading([0, 1, 2, 3], seed=0)
    found = method.embedding(method.online, one)
    side = Side(numbers(one.features), [], np.empty(0), method.online)
    close(found, [slow.unit(side.shift(row)) for row in one.sample.tolist()])
    assert torch.equal(method.embedding(method.online, one._replace(features=torch.randn(4, D))), found)
    full = build()
    other = full.embedding(full.online, one._replace(features=torch.randn(4, D)))
    assert not torch.allclose(other, full.embedding(full.online, one))


def test_deterministic_knows_no_noise() -> None:
    method = build("tcc-deterministic")
    one, two = step(method), step(method, keys=KEYS + 1)
    torch.testing.assert_close(one.loss, two.loss, atol=0, rtol=0)
    silent = [replace(side, noise=np.zeros((N, K))) for side in sides(method)]
    close(one.metrics["instance_loss"], slow_l2(method, silent[0], silent[1]))
    log_assignment = torch.randn(N, K).log_softmax(1)
    at_one = build("tcc-deterministic", gumbel_temperature=1.0).sample(log_assignment, KEYS, ONLINE_GUMBEL)
    torch.testing.assert_close(at_one, log_assignment.exp())


def test_stochastic_clusters_weigh_by_the_sample() -> None:
    method = build("tcc-stochastic-clusters")
    outcome, (online, key) = step(method), sides(method)
    online.assignments, key.assignments = online.samples(), key.samples()
    close(outcome.metrics["cluster_loss"], slow_l1(method, online, key))
    close(outcome.memory["clusters"], slow.clusters(key.features, key.assignments))
    assert step(method, keys=KEYS + 1).metrics["cluster_loss"] != outcome.metrics["cluster_loss"]
