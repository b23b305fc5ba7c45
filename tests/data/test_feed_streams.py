"""The streams of a GPU, made up: whatever order they may run in, a batch is whole when a step reads it.

A made-up stream holds what it was told to do until it is made to go on. Some policies keep it back as long as the host
does not wait, others let it run as far ahead as the events allow; a missing wait then shows as a wrong batch.
"""

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from twincluster.data import batches as feed_module
from twincluster.data import read_ahead

POLICIES = [frozenset(some) for size in range(3) for some in itertools.combinations(("steps", "copies"), size)]
PIXELS = np.arange(60 * 4, dtype=np.float32).reshape(60, 4)
PARTS = np.array_split(np.random.default_rng(0).permutation(60), 12)  # of five rows
PARTS[-1] = PARTS[-1][:2]  # a last chunk is smaller


class Machine:
    """Two streams, the one that takes steps and another; those named in `ahead` run as soon as they may."""

    def __init__(self, ahead: frozenset[str], waits: bool = True) -> None:
        self.ahead, self.waits, self.lock = ahead, waits, threading.RLock()
        self.streams = {"steps": Stream(self), "copies": Stream(self)}
        self.current = "steps"
        self.freed: list[Tensor] = []  # memory that work already in a stream may still use
        self.awake: set[int] = set()  # threads that have said which GPU they are for

    def pump(self, names: frozenset[str]) -> bool:
        with self.lock:
            moved = [self.streams[name].advance() for name in sorted(names) for _ in range(1000)]
            return any(moved)

    def until(self, reached: Callable[[], bool]) -> None:
        """The host waits: everything goes on, in single steps."""
        while not reached():
            with self.lock:
                assert any(stream.advance() for stream in self.streams.values()) or reached(), "all wait for each other"


class Stream:
    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.todo: deque[tuple[Callable[[], bool], Callable[[], object]]] = deque()

    def put(self, work: Callable[[], object], ready: Callable[[], bool] = lambda: True) -> None:
        with self.machine.lock:
            self.todo.append((ready, work))
        while self.machine.pump(self.machine.ahead):
            pass

    def advance(self) -> bool:
        if not self.todo or not self.todo[0][0]():
            return False
        self.todo.popleft()[1]()
        return True

    def wait_event(self, event: "Event") -> None:
        wanted = event.recorded
        if self.machine.waits:
            self.put(lambda: None, lambda: event.reached >= wanted)

    def wait_stream(self, other: "Stream") -> None:
        event = Event(self.machine)
        event.record(other)
        self.wait_event(event)


class Event:
    def __init__(self, machine: Machine) -> None:
        self.machine, self.recorded, self.reached = machine, 0, 0

    def record(self, stream: Stream) -> None:
        self.recorded += 1
        number = self.recorded
        stream.put(lambda: setattr(self, "reached", number))

    def synchronize(self) -> None:
        assert threading.get_ident() in self.machine.awake, "this thread waits for another GPU's work"
        wanted = self.recorded
        if self.machine.waits:
            self.machine.until(lambda: self.reached >= wanted)


class OnGpu:
    """Memory of the device: it is written when the stream gets there."""

    def __init__(self, machine: Machine, content: Tensor) -> None:
        self.machine, self.content = machine, content

    def __getitem__(self, rows: slice) -> "OnGpu":
        return OnGpu(self.machine, self.content[rows])

    def copy_(self, source: Tensor, non_blocking: bool) -> "OnGpu":
        assert non_blocking
        self.machine.streams[self.machine.current].put(lambda: self.content.copy_(source))
        return self


class Torch:
    """torch as feed.py sees it, with a made-up GPU."""

    def __init__(self, machine: Machine) -> None:
        self.machine, self.cuda = machine, self

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def empty(self, shape: tuple[int, ...], *, dtype: torch.dtype, pin_memory: bool) -> Tensor:
        assert pin_memory
        return torch.full(shape, -1, dtype=dtype)

    def empty_like(self, like: Tensor, *, device: torch.device) -> OnGpu:
        assert device.type == "cuda"
        return OnGpu(self.machine, self.machine.freed.pop() if self.machine.freed else torch.full_like(like, -2))

    def Event(self, blocking: bool) -> Event:  # noqa: N802
        return Event(self.machine)

    def Stream(self) -> Stream:  # noqa: N802
        return self.machine.streams["copies"]

    def current_stream(self) -> Stream:
        return self.machine.streams["steps"]

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        assert stream is self.machine.streams["copies"]
        self.machine.current = "copies"
        yield
        self.machine.current = "steps"

    def current_device(self) -> int:
        return 3

    def set_device(self, index: int) -> None:
        assert index == 3
        assert threading.current_thread() is not threading.main_thread()
        self.machine.awake.add(threading.get_ident())


def seen_by_steps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What steps find in the batches they are given, each looking twice while it is under way."""
    monkeypatch.setattr(feed_module, "torch", Torch(machine))
    seen: list[Tensor] = []
    for batch in read_ahead(PIXELS, PARTS, torch.device("cuda")):
        for _ in range(2):
            machine.streams["steps"].put(lambda batch=batch: seen.append(batch.content.clone()))
    machine.until(lambda: not any(stream.todo for stream in machine.streams.values()))
    return seen


def wrong(seen: list[Tensor]) -> int:
    wanted = [torch.from_numpy(PIXELS[part]) for part in PARTS for _ in range(2)]
    return sum(not torch.equal(found, right) for found, right in zip(seen, wanted, strict=True))


@pytest.mark.parametrize("ahead", POLICIES, ids=lambda names: "+".join(sorted(names)) or "none")
def test_batches_are_whole_in_whatever_order_streams_run(
    ahead: frozenset[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrong(seen_by_steps(Machine(ahead), monkeypatch)) == 0


@pytest.mark.parametrize("ahead", [frozenset({"copies"}), frozenset({"steps"}), frozenset()], ids=str)
def test_without_waits_they_would_not_be(ahead: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Else these tests would show nothing."""
    assert wrong(seen_by_steps(Machine(ahead, waits=False), monkeypatch)) > 0


@pytest.mark.parametrize("waits", [True, False])
def test_memory_that_earlier_steps_still_use_is_left_alone(waits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An allocator gives freed memory away at once; what was asked of it before has not been done yet."""
    machine, before, found = Machine(frozenset({"copies"}), waits), torch.full((5, 4), 7.0), []
    machine.freed.append(before)
    machine.streams["steps"].put(lambda: found.append(before.clone()))
    seen_by_steps(machine, monkeypatch)
    assert torch.equal(found[0], torch.full((5, 4), 7.0)) == waits


def test_the_host_is_never_more_than_a_few_batches_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory is bounded: a reader waits for the copy of what its buffer held."""
    machine = Machine(frozenset())
    monkeypatch.setattr(feed_module, "torch", Torch(machine))
    done: list[int] = []
    for number, _ in enumerate(read_ahead(PIXELS, PARTS, torch.device("cuda"))):
        machine.streams["steps"].put(lambda number=number: done.append(number))
        assert number - len(done) <= feed_module.READ_AHEAD + 2
