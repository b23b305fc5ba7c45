"""Training in several processes started by torchrun: their ranks, and the exchange of tensors between them.

Every process holds the whole state and computes every loss on the whole batch. Only the backbone is divided: each
process encodes some rows, and all receive the features of all rows. Shapes: N batch, D features.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from twincluster.core import InputError, ProcessEnded
from twincluster.parallel.launch import several

PATIENCE = timedelta(minutes=30)  # timeout for other processes while training
LONG_PATIENCE = timedelta(days=7)  # timeout while one process decodes a million images for the others
SMALL = 2**20  # elements; smaller tensors are sent together
AGREEMENT = 1e-4  # largest relative difference of weights between kinds of processors
DRIFTED = "the processes have different weights, which is a bug: continue with --resume, and please report it"
LOST = ("connection", "peer", "timed out", "timeout", "broken pipe")  # words of torch's errors about lost processes

T = TypeVar("T")


@dataclass(frozen=True)
class Processes:
    """All processes of a run, seen from one of them. All processes call each method at the same point."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0  # among those of this machine
    silent: bool = False  # a rehearsal: nothing is sent, blank tensors replace those of other processes

    @property
    def first(self) -> bool:
        """True in the first process, which writes files and prints, and whose clock decides."""
        return self.rank == 0

    def own(self, rows: Tensor) -> Tensor:
        """Return this process's share of N rows."""
        return rows if self.count == 1 else rows[_rows_of(self.rank, self.count, len(rows))]

    def gather(self, own: Tensor, n: int) -> Tensor:
        """Return (N,D) from the rows of all processes.

        All processes compute the same loss from the result, and their gradients are averaged. The gradient of the own
        rows is multiplied by the number of processes, so that the average is the gradient of that one loss.
        """
        return own if self.count == 1 else _Gather.apply(own, self, n)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum the `tensor` of all processes in place; the result is the same bit for bit everywhere."""
        if self.count > 1 and not self.silent:
            _collective(dist.all_reduce, tensor)
        return tensor

    def average_gradients(self, optimiser: torch.optim.Optimizer) -> None:
        weights = [weight for group in optimiser.param_groups for weight in group["params"]]
        for together in _by_kind([weight.grad for weight in weights if weight.grad is not None], at_most=None):
            flat = torch.cat([gradient.flatten() for gradient in together])
            _spread(self.all_reduce(flat).div_(self.count), together)

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Copy the tensors of the first process to all others."""
        if self.count == 1 or self.silent:
            return
        for together in _by_kind(tensors, at_most=SMALL):
            flat = torch.cat([tensor.flatten() for tensor in together])
            _collective(dist.broadcast, flat, 0)
            _spread(flat, together)

    def broadcast_value(self, value: Any) -> Any:
        """Return the first process's value, as JSON, in all processes."""
        if self.count == 1 or self.silent:
            return value
        content = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8) if self.first else None
        length = torch.tensor(0 if content is None else len(content))
        _collective(dist.broadcast, length, 0)
        content = torch.zeros(int(length), dtype=torch.uint8) if content is None else content
        _collective(dist.broadcast, content, 0)
        return json.loads(bytes(content.tolist()))

    def maximum(self, number: int) -> int:
        """Return the largest number of all processes."""
        numbers = torch.zeros(self.count, dtype=torch.int64)
        numbers[self.rank] = number
        return int(self.all_reduce(numbers).max())

    def refuse_others(self, known_by: str) -> None:
        """Raise InputError if the processes have different data or settings, described by `known_by`."""
        if other := self.maximum(self.rank if self.broadcast_value(known_by) != known_by else 0):
            raise InputError(
                f"process {other} has other data or settings than process 0: start all machines with the same source "
                "and options"
            )

    def check(self, weights: Sequence[Tensor]) -> None:
        """Raise InputError if the weights differ between processes."""
        if self.count == 1:
            return
        lengths = torch.stack([weight.detach().double().norm() for weight in weights]).cpu()
        theirs = lengths.new_zeros(self.count, len(lengths))
        theirs[self.rank] = lengths
        self.all_reduce(theirs)
        if not torch.allclose(theirs, theirs[0].expand_as(theirs), rtol=AGREEMENT, equal_nan=True):
            raise InputError(DRIFTED)

    def in_turn(self, work: Callable[[], T]) -> T:
        """Run work that may write to a shared disk: in the first process, then in one per other machine, then in the
        rest.

        Later processes find the files of the earlier ones.
        """
        turn = 0 if self.first else 1 if self.local_rank == 0 else 2
        for now in range(3 if self.count > 1 else 1):
            if now == turn:
                result = work()
            if self.count > 1:
                _collective(dist.barrier, _met.patient)
        return result


ALONE = Processes()


def join(device: str) -> Processes:
    """Return the processes that torchrun started, or this one alone. The first call waits for all of them."""
    if not several():
        return ALONE
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    local_rank = int(os.environ.get("LOCAL_RANK", rank))
    if not dist.is_initialized():
        on_gpu = device == "cuda" or (device == "auto" and torch.cuda.is_available())
        if on_gpu:
            _take_gpu(local_rank)
        _meet(rank, count, "cpu:gloo,cuda:nccl" if on_gpu else "gloo")
    return Processes(rank, count, local_rank)


def have_met() -> bool:
    return _met.store is not None


def is_reporter() -> bool:
    """Return True in exactly one process: the one that reports why the run ends."""
    assert _met.store is not None, "ask have_met first"
    try:
        return int(_met.store.add("twincluster/said", 1)) == 1
    except RuntimeError:  # the store ended with its process
        return True


def ended_here() -> list[int]:
    """Return the ranks of processes on this machine that no longer exist."""
    return [rank for rank, pid in _met.pids.items() if not _exists(pid)]


@dataclass
class _Met:
    """State since all processes are connected."""

    store: Any = None
    patient: Any = None  # a group with a long timeout
    pids: dict[int, int] = field(default_factory=dict)  # of the processes on this machine, by rank


_met = _Met()


def _meet(rank: int, count: int, backend: str) -> None:
    _met.store, _, _ = next(rendezvous("env://", timeout=PATIENCE))
    # prefixed, because torchrun's agent uses the same store
    dist.init_process_group(
        backend, store=PrefixStore("twincluster", _met.store), rank=rank, world_size=count, timeout=PATIENCE
    )
    _met.patient = dist.new_group(backend="gloo", timeout=LONG_PATIENCE)
    _met.store.set(f"twincluster/{rank}", f"{socket.gethostname()} {os.getpid()}")
    for other in range(count):
        machine, pid = _met.store.get(f"twincluster/{other}").decode().split()
        if machine == socket.gethostname():
            _met.pids[other] = int(pid)


def _take_gpu(local_rank: int) -> None:
    if local_rank >= torch.cuda.device_count():
        raise InputError(
            f"there is no GPU for process {local_rank + 1} of this machine, which has {torch.cuda.device_count()}: "
            f"torchrun --nproc-per-node {torch.cuda.device_count()}, or --device cpu"
        )
    torch.cuda.set_device(local_rank)


def _collective(speak: Callable[..., object], *arguments: object) -> None:
    """Call a collective operation. Raise ProcessEnded if another process no longer answers."""
    try:
        speak(*arguments)
    except RuntimeError as error:  # gloo has no error class for lost connections
        if isinstance(error, dist.DistError) or any(word in str(error).lower() for word in LOST):
            raise ProcessEnded("another process does not answer") from error
        raise


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, processes: Processes, n: int) -> Tensor:
        ctx.processes = processes
        most = -(-n // processes.count)  # blocks have equal size; the last may be padded
        block = own.new_zeros(most, *own.shape[1:])
        block[: len(own)] = own
        blocks = [torch.zeros_like(block) for _ in range(processes.count)]
        if not processes.silent:
            _collective(dist.all_gather, blocks, block)
        taken = [_rows_of(rank, processes.count, n) for rank in range(processes.count)]
        return torch.cat([rows[: its.stop - its.start] for rows, its in zip(blocks, taken, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return ctx.processes.own(gradients[0]) * ctx.processes.count, None, None


def _rows_of(rank: int, count: int, n: int) -> slice:
    return slice(rank * n // count, (rank + 1) * n // count)


def _by_kind(tensors: Iterable[Tensor], at_most: int | None) -> Iterable[list[Tensor]]:
    """Group tensors of one type and device, which can be sent as one; those larger than `at_most` stay alone."""
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        alone = at_most is not None and tensor.numel() > at_most
        groups.setdefault(id(tensor) if alone else (tensor.dtype, tensor.device), []).append(tensor)
    return groups.values()


@torch.no_grad()
def _spread(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    parts = torch.split(flat, [tensor.numel() for tensor in tensors])
    for tensor, part in zip(tensors, parts, strict=True):
        tensor.copy_(part.view(tensor.shape))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it exists and belongs to another user
        pass
    return True
