"""Each ablation takes a step, and differs from the full model exactly where it should.

All start from the same weights, queues and views, so a number that an ablation does not touch equals the full model's.
Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P.
"""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import reference_losses as slow
import reference_peers as slow_peers
from reference_tcc import (
    KEYS,
    ROWS,
    SAMPLES,
    D,
    K,
    N,
    Side,
    build,
    close,
    fresh,
    gradients,
    n_views,
    numbers,
    pictures,
    reading,
    sides,
    slow_l1,
    slow_l2,
    step,
    three_views,
)
from twincluster.methods import METHODS, Batch, Tcc
from twincluster.methods.peers import peer_losses
from twincluster.methods.tcc import KEY_GUMBEL, ONLINE_GUMBEL, Reading
from twincluster.nn import draws

ABLATIONS = {name: METHODS[name] for name in METHODS if name.startswith("tcc-") and name != "tcc-repaired"}
SAME_CLUSTER_TRACK = [
    "tcc-without-l1",
    "tcc-without-l2",
    "tcc-ten-samples",
    "tcc-assignment-embedding",
    "tcc-deterministic",
    "tcc-as-cc",
]
SAME_INSTANCE_TRACK = [
    "tcc-without-l1",
    "tcc-without-p",
    "tcc-without-image-augmentation",
    "tcc-hard-assignments",
    "tcc-without-subsetting",
    "tcc-stochastic-clusters",
]


# -- all of them -----------------------------------------------------------------------------------------------------


def test_names_and_descriptions() -> None:
    """`twincluster methods` prints the first line of each docstring; each class stands on Tcc alone, but for one."""
    both = {"tcc-as-cc": (ABLATIONS["tcc-assignment-embedding"], ABLATIONS["tcc-deterministic"])}
    for name, method in ABLATIONS.items():
        assert method.__bases__ == both.get(name, (Tcc,)), name
        assert method.__doc__, name
        assert "\n" not in method.__doc__, name
    assert len({method.__doc__ for method in ABLATIONS.values()}) == len(ABLATIONS) == 11


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


def test_the_whole_reduction_has_the_instance_loss_of_cc() -> None:
    """Each of 2N rows e = NN(c) in turn is the query, and all but its partner are the negatives, here in Q.

    CC contrasts these rows in one matrix; its g_I is NN and its h is c. The difference is log K, a constant.
    """
    method = build("tcc-as-cc", instance_queue=2 * N - 2, temperature=0.5)
    method.momentum.load_state_dict(method.online.state_dict())  # CC has one network
    views = [reading(torch.randint(K, (N,)).tolist(), seed) for seed in (0, 1)]
    views = [
        view._replace(sample=method.sample(view.log_assignment, KEYS, stream)) for stream, view in enumerate(views)
    ]
    one, two = (method.embedding(method.online, view) for view in views)
    terms = []
    for query, key in (views, views[::-1]):
        for i in range(N):
            others = torch.arange(N) != i
            method.instance_queue.push(torch.cat([one[others], two[others]]).detach())
            alone = [Reading(*(part[i : i + 1] for part in view)) for view in (query, key)]
            terms.append(method.instance_track(*alone)[0])
    found = torch.stack(terms).mean() + math.log(K)
    torch.testing.assert_close(found, peer_losses.nt_xent(one, two, 0.5), atol=1e-6, rtol=1e-6)
    assert found.item() == pytest.approx(slow_peers.nt_xent(numbers(one), numbers(two), 0.5), abs=1e-6)
    again = method.sample(views[0].log_assignment, KEYS + 1, 0)
    assert torch.equal(again, views[0].sample)  # no noise
    torch.testing.assert_close(method.embedding(method.online, views[0]._replace(features=torch.randn(N, D))), one)


def test_stochastic_clusters_weigh_by_the_sample() -> None:
    method = build("tcc-stochastic-clusters")
    outcome, (online, key) = step(method), sides(method)
    online.assignments, key.assignments = online.samples(), key.samples()
    close(outcome.metrics["cluster_loss"], slow_l1(method, online, key))
    close(outcome.memory["clusters"], slow.clusters(key.features, key.assignments))
    assert step(method, keys=KEYS + 1).metrics["cluster_loss"] != outcome.metrics["cluster_loss"]
