"""TCC's step against a slow one, and what it does to networks and queues.

Shapes: N samples of a batch, K clusters, D features, J and L rows of the queues Q and P.
"""

import copy

import numpy as np
import pytest
import torch
from torch import Tensor

import reference_losses as slow
import reference_tcc
from reference_tcc import (
    KEYS,
    ROWS,
    SAMPLES,
    D,
    J,
    K,
    L,
    N,
    build,
    close,
    fresh,
    gradients,
    numbers,
    pictures,
    sides,
    slow_l1,
    slow_l2,
    step,
    three_views,
)

SWITCHES = [
    {},
    {"alpha": 0.2, "temperature": 0.3, "gumbel_temperature": 0.5},
    {"unit_norm": True, "assignment_temperature": 0.4},
    {"entropy": "batch"},
    {"prototypes": "simplex"},
    {"centred": True},
]


# -- the step --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SWITCHES, ids=str)
def test_step_equals_the_slow_reference(settings: dict[str, object]) -> None:
    method = build(**settings)
    outcome, (online, key) = step(method), sides(method)
    l1, l2, alpha = slow_l1(method, online, key), slow_l2(method, online, key), method.settings.alpha
    close(outcome.metrics["cluster_loss"], l1)
    close(outcome.metrics["instance_loss"], l2)
    close(outcome.loss, alpha * l1 + (1 - alpha) * l2)
    close(outcome.assignment, online.assignments)
    close(outcome.key_assignment, key.assignments)
    close(outcome.memory["clusters"], slow.clusters(key.features, key.assignments))
    close(outcome.memory["embedding"], key.embeddings())
    assert outcome.memory["clusters"].shape == (K, D)


def test_step_with_empty_queues_has_no_negatives() -> None:
    method = fresh()
    outcome, (online, _) = step(method), sides(method)
    close(outcome.metrics["cluster_loss"], 0.0)
    close(outcome.metrics["instance_loss"], -np.mean([slow.entropy(pi) for pi in online.assignments]) - np.log(K))


def test_step_on_rows() -> None:
    method = build(shape=ROWS)
    online, key = sides(method)
    close(step(method).loss, 0.5 * slow_l1(method, online, key) + 0.5 * slow_l2(method, online, key))


def test_recorded_numbers_equal_the_slow_reference_and_carry_no_gradient() -> None:
    method = build()
    outcome, (online, _) = step(method), sides(method)
    close(outcome.metrics["entropy"], np.mean([slow.entropy(pi) for pi in online.assignments]))
    close(outcome.metrics["dec_loss"], slow.dec(online.features, numbers(method.online.prototypes)))
    shifts = [online.shift(c) for c in online.samples()]
    ratio = np.linalg.norm(online.features, axis=1).mean() / np.linalg.norm(shifts, axis=1).mean()
    close(outcome.metrics["norm_ratio"], ratio, atol=1e-4)
    assert outcome.loss.requires_grad
    others = [outcome.assignment, outcome.key_assignment, *outcome.memory.values(), *outcome.metrics.values()]
    assert not any(tensor.requires_grad for tensor in others)


@pytest.mark.parametrize("name", ["cluster_loss", "instance_loss"])
def test_losses_move_with_their_own_view_only(name: str) -> None:
    """The first view feeds the online network, the second the momentum network; both matter to both losses."""
    method = build()
    first, second, other = three_views()
    whole = step(method, (first, second)).metrics[name]
    assert step(method, (first, other)).metrics[name] != whole
    assert step(method, (other, second)).metrics[name] != whole
    assert torch.equal(step(method, (first, other)).assignment, step(method, (first, second)).assignment)


# -- gradients -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SWITCHES, ids=str)
def test_gradient_reaches_every_online_weight_and_no_momentum_weight(settings: dict[str, object]) -> None:
    method = build(**settings)
    step(method).loss.backward()
    for name, weight in method.online.named_parameters():
        if settings == {"centred": True} and name == "head.bias":
            continue  # batch-norm takes it away
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 1e-8, name
    names = {name.split(".")[0] for name, _ in method.online.named_parameters()}
    assert names == {"backbone", "head", "assignment_shift", "prototypes"} - (
        {"prototypes"} if "prototypes" in settings else set()
    )
    assert all(weight.grad is None and not weight.requires_grad for weight in method.momentum.parameters())


def test_gradient_of_the_last_layers_equals_finite_differences() -> None:
    """Of the slow reference, in double precision: the keys must not have moved along."""
    method = build()
    found = gradients(method, step(method).loss)
    online, key = sides(method)
    alpha = method.settings.alpha

    def loss_with(change: float, weight: Tensor, place: tuple[int, int]) -> float:
        before = weight.data
        weight.data = weight.data.double()
        weight.data[place] += change
        moved = reference_tcc.Side(
            online.features,
            slow.assignment(online.features, numbers(method.online.prototypes)),
            online.noise,
            method.online,
        )
        value = alpha * slow_l1(method, moved, key) + (1 - alpha) * slow_l2(method, moved, key)
        weight.data = before
        return value

    weights = {
        "prototypes": method.online.prototypes,
        "assignment_shift.weight": method.online.assignment_shift.weight,
    }
    for name, weight in weights.items():
        for place in [(0, 0), (2, 3)]:
            numeric = (loss_with(1e-5, weight, place) - loss_with(-1e-5, weight, place)) / 2e-5
            close(found[name][place], numeric, atol=1e-5)


# -- memory ----------------------------------------------------------------------------------------------------------


def test_queues_receive_momentum_rows_in_the_next_slots() -> None:
    method = fresh()
    p, q = [[0.0] * D] * L, [[0.0] * D] * J
    for number in range(5):  # P wraps after 3 steps, Q after 2.5
        views = (pictures(2 * number), pictures(2 * number + 1))
        _, key = sides(method, views)
        outcome = method.losses(views, SAMPLES, KEYS)
        for k, row in enumerate(slow.clusters(key.features, key.assignments)):
            p[(number * K + k) % L] = row
        for i, row in enumerate(key.embeddings()):
            q[(number * N + i) % J] = row
        method.remember(outcome.memory)
        close(method.cluster_queue.rows, p)
        close(method.instance_queue.rows, q)
        assert int(method.cluster_queue.written) == (number + 1) * K
        assert int(method.instance_queue.written) == (number + 1) * N


def test_momentum_follows_every_trained_module() -> None:
    method = build(ema=0.9)
    optimiser = torch.optim.SGD(method.online.parameters(), lr=0.5)
    old = {name: weight.clone() for name, weight in method.momentum.named_parameters()}
    outcome = method.losses(three_views()[:2], SAMPLES, KEYS)
    outcome.loss.backward()
    optimiser.step()
    statistics = {name: buffer.clone() for name, buffer in method.momentum.named_buffers()}
    method.remember(outcome.memory)
    online = dict(method.online.named_parameters())
    assert {"prototypes", "head.weight", "assignment_shift.weight", "backbone.stem.0.weight"} <= set(online)
    for name, weight in method.momentum.named_parameters():
        torch.testing.assert_close(weight, 0.9 * old[name] + 0.1 * online[name])
        if weight.dim() > 1:
            assert not torch.equal(weight, old[name]), name
    assert all(torch.equal(buffer, statistics[name]) for name, buffer in method.momentum.named_buffers())


def test_momentum_starts_equal() -> None:
    method = fresh()
    momentum = method.momentum.state_dict()
    assert all(torch.equal(tensor, momentum[name]) for name, tensor in method.online.state_dict().items())


# -- the network as a user sees it -----------------------------------------------------------------------------------


def test_inference_is_the_online_network_without_noise() -> None:
    method = build().eval()
    images = pictures()
    log_assignment = method.online.log_assign(images)
    assert torch.equal(log_assignment, method.online.log_assign(images))
    wanted = slow.assignment(numbers(method.online.embed(images)), numbers(method.online.prototypes))
    close(log_assignment.exp(), wanted)
    torch.testing.assert_close(method.online.log_assign(images[:1]), log_assignment[:1], atol=1e-5, rtol=1e-4)


# -- compilation -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"unit_norm": True, "entropy": "batch", "shuffle_keys": True}], ids=str)
def test_step_compiles_as_one_graph(settings: dict[str, object]) -> None:
    """One graph also means that nothing waits for the host and that no shape depends on data."""
    method, views = build(shape=ROWS, **settings), three_views(ROWS)[:2]
    twin = copy.deepcopy(method)
    torch._dynamo.reset()
    compiled = torch.compile(method.losses, fullgraph=True, backend="aot_eager")
    for number in range(2):
        outcome, wanted = compiled(views, SAMPLES, KEYS + number), twin.losses(views, SAMPLES, KEYS + number)
        assert type(outcome) is type(wanted)
        torch.testing.assert_close(outcome.loss, wanted.loss)
        torch.testing.assert_close(outcome.metrics, wanted.metrics)
        outcome.loss.backward()
        wanted.loss.backward()
        method.remember(outcome.memory)
        twin.remember(wanted.memory)
    torch.testing.assert_close(method.state_dict(), twin.state_dict())
    for one, two in zip(method.online.parameters(), twin.online.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad, atol=1e-6, rtol=1e-4)
