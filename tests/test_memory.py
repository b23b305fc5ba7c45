"""Queues against a plain list, momentum copies against the formula, under whatever sequence hypothesis thinks of."""

import copy
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from twincluster.nn import Queue, ema_update, momentum_copy

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


def numbered(start: int, count: int, n_features: int) -> Tensor:
    """Rows that say which push they came from: row i is i + 1 in the first feature and something else in the others."""
    rows = torch.arange(start + 1, start + count + 1, dtype=torch.float32)[:, None]
    return rows + torch.arange(n_features) / 16


class ListQueue:
    """The same ring as a list of slots, one row at a time."""

    def __init__(self, size: int) -> None:
        self.slots: list[list[float] | None] = [None] * size
        self.position = 0

    def push(self, rows: list[list[float]]) -> None:
        for row in rows:
            self.slots[self.position] = row
            self.position = (self.position + 1) % len(self.slots)


@st.composite
def pushes(draw: st.DrawFn) -> tuple[int, int, list[int]]:
    """Size, number of features, and the lengths of pushes, from nothing to the whole queue, enough of them to wrap."""
    size = draw(st.integers(1, 24))
    return size, draw(st.integers(1, 3)), draw(st.lists(st.integers(0, size), max_size=12))


@QUICK
@given(pushes())
def test_queue_is_the_list(case: tuple[int, int, list[int]]) -> None:
    size, n_features, lengths = case
    queue, model, total = Queue(size, n_features), ListQueue(size), 0
    rows_at, written_at = queue.rows.data_ptr(), queue.written.data_ptr()
    for length in lengths:
        rows = numbered(total, length, n_features)
        total += length
        queue.push(rows)
        model.push(rows.tolist())
        assert queue.valid().tolist() == [slot is not None for slot in model.slots]
        assert queue.rows[queue.valid()].tolist() == [slot for slot in model.slots if slot is not None]
        assert queue.written.item() == total
    kept = sorted(queue.rows[queue.valid()][:, 0].tolist())
    assert kept == list(range(max(0, total - size) + 1, total + 1))  # the newest rows, each once
    # in place, as a captured graph needs it
    assert (queue.rows.data_ptr(), queue.written.data_ptr()) == (rows_at, written_at)


@QUICK
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 20))
def test_whole_blocks_keep_their_place(n_clusters: int, blocks: int, n_pushes: int) -> None:
    """When P advances by blocks of K, row l holds cluster l mod K for ever."""
    queue = Queue(n_clusters * blocks, 1)
    for _ in range(n_pushes):
        queue.push(torch.arange(n_clusters, dtype=torch.float32)[:, None])
    slots = torch.arange(n_clusters * blocks)[queue.valid()]
    assert torch.equal(queue.rows[queue.valid()].squeeze(1), (slots % n_clusters).float())


@pytest.mark.parametrize("size", [1, 4])
def test_too_long_a_push_raises_and_changes_nothing(size: int) -> None:
    queue = Queue(size, 2)
    queue.push(numbered(0, 1, 2))
    before = copy.deepcopy(queue.state_dict())
    with pytest.raises(ValueError, match=f"{size + 1} rows do not fit into a queue of {size}"):
        queue.push(numbered(1, size + 1, 2))
    for name, value in queue.state_dict().items():
        assert torch.equal(value, before[name])


def test_pushed_rows_are_copies_without_gradient() -> None:
    queue, rows = Queue(3, 2), numbered(0, 2, 2).requires_grad_()
    queue.push(rows * 2)
    assert not queue.rows.requires_grad
    with torch.no_grad():
        rows.zero_()
    assert queue.rows[0, 0] == 2
    assert list(queue.parameters()) == []  # nothing for an optimiser to find


def test_queue_survives_a_checkpoint_with_its_position(tmp_path: Path) -> None:
    queue = Queue(5, 2)
    queue.push(numbered(0, 4, 2))
    queue.push(numbered(4, 3, 2))
    save_file(queue.state_dict(), tmp_path / "queue.safetensors")
    restored = Queue(5, 2)
    restored.load_state_dict(load_file(tmp_path / "queue.safetensors"))
    for each in (queue, restored):
        each.push(numbered(7, 2, 2))
    assert torch.equal(restored.rows, queue.rows)
    assert torch.equal(restored.written, queue.written)
    assert restored.rows[:, 0].tolist() == [6, 7, 8, 9, 5]


def network(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2, bias=False))


def test_momentum_copy_equals_the_start_and_gets_no_gradient() -> None:
    online = network(0)
    momentum = momentum_copy(online)
    images = torch.randn(5, 3)
    assert torch.equal(momentum(images), online(images))
    assert not any(parameter.requires_grad for parameter in momentum.parameters())
    assert all(parameter.requires_grad for parameter in online.parameters())
    (online(images) * momentum(images)).sum().backward()
    assert all(parameter.grad is None for parameter in momentum.parameters())
    assert all(parameter.grad is not None for parameter in online.parameters())
    with torch.no_grad():
        next(online.parameters()).add_(1)
    assert not torch.equal(next(momentum.parameters()), next(online.parameters()))  # storage of its own


@QUICK
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.booleans())
def test_ema_is_the_running_mean_of_the_formula(keeps: list[float], as_tensor: bool) -> None:
    momentum, online = momentum_copy(network(0)), network(1)
    model = [parameter.double().tolist() for parameter in momentum.parameters()]
    for step, keep in enumerate(keeps):
        with torch.no_grad():
            for parameter in online.parameters():
                parameter.add_(0.1 * step)
        ema_update(momentum, online, torch.tensor(keep) if as_tensor else keep)
        model = [blend(old, new.tolist(), keep) for old, new in zip(model, online.parameters(), strict=True)]
    for found, wanted in zip(momentum.parameters(), model, strict=True):
        torch.testing.assert_close(found.double(), torch.tensor(wanted, dtype=torch.float64), rtol=0, atol=1e-5)
        assert not found.requires_grad


def blend(old: list | float, new: list | float, keep: float) -> list | float:
    """keep * old + (1 - keep) * new through nested lists, one number at a time."""
    if isinstance(old, list):
        return [blend(one, two, keep) for one, two in zip(old, new, strict=True)]
    return keep * old + (1 - keep) * new


@pytest.mark.parametrize("keep", [0.99, torch.tensor(0.99)], ids=["float", "tensor"])
def test_ema_moves_parameters_alone(keep: float | Tensor) -> None:
    online = network(0)
    momentum = momentum_copy(online)
    online(torch.randn(8, 3) + 5)  # moves the online network's batch-norm statistics
    with torch.no_grad():
        for parameter in online.parameters():
            parameter.add_(1)
    online_before, buffers_before = copy.deepcopy(online.state_dict()), copy.deepcopy(dict(momentum.named_buffers()))
    parameters_before = [parameter.clone() for parameter in momentum.parameters()]
    storage = [parameter.data_ptr() for parameter in momentum.parameters()]
    ema_update(momentum, online, keep)
    for name, value in momentum.named_buffers():
        assert torch.equal(value, buffers_before[name])
    for name, value in online.state_dict().items():
        assert torch.equal(value, online_before[name])
    for before, after in zip(parameters_before, momentum.parameters(), strict=True):
        torch.testing.assert_close(after - before, torch.full_like(before, 0.01))
    assert [parameter.data_ptr() for parameter in momentum.parameters()] == storage


def test_ema_extremes() -> None:
    momentum, online = momentum_copy(network(0)), network(1)
    before = [parameter.clone() for parameter in momentum.parameters()]
    ema_update(momentum, online, 1.0)
    assert all(torch.equal(one, two) for one, two in zip(before, momentum.parameters(), strict=True))
    ema_update(momentum, online, 0.0)
    for found, wanted in zip(momentum.parameters(), online.parameters(), strict=True):
        torch.testing.assert_close(found.data, wanted.data)


def test_ema_of_networks_that_do_not_match_raises() -> None:
    with pytest.raises(RuntimeError):
        ema_update(momentum_copy(network(0)), nn.Linear(3, 4), 0.9)
