"""Prepare the step for a GPU: capture it as one CUDA graph, and divide batches that exceed the memory.

A few steps run before the capture. Afterwards all state is restored, so that they have no effect.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from twincluster.core import InputError
from twincluster.nn import BatchNorm2d, ResNet

if TYPE_CHECKING:
    from twincluster.training.trainer import Trainer

REHEARSALS = 3  # eager steps before the capture, for lazy buffers and autotuning
MOST_PARTS = 16  # of a batch; beyond that, the undivided tensors fill the memory
FEW, SIDE = 16, 32  # images and pixels to test kernels with; the tile sizes do not depend on them

Step = Callable[[], object]


def captured(trainer: Trainer) -> Step:
    """Return the step as one CUDA graph, or uncaptured with several processes, whose messages cannot be captured."""
    warnings.filterwarnings("ignore", "TensorFloat32")  # the losses are float32 on purpose
    cudnn, chosen = torch.backends.cudnn, torch.backends.cudnn.benchmark
    cudnn.benchmark = True  # kernels are chosen once, during the rehearsal
    alone = trainer.processes.count == 1
    if alone and trainer.parts == 1:
        _use_triton(trainer)
    step = within_memory(trainer, _graph if alone else rehearsed)
    cudnn.benchmark = chosen
    return step


def _use_triton(trainer: Trainer) -> None:
    """Use our own kernels for residual networks and, for long runs, torch.compile for the rest."""
    residual = [network for network in trainer.method.modules() if isinstance(network, ResNet)]
    if not residual and not trainer.config.train.compile:
        return
    if problem := trouble_with_triton(residual, trainer.device, trainer.config.train.precision == "bf16"):
        trainer.reporter.warn(f"the GPU compiler Triton does not work ({problem}): steps take longer")
        return
    for network in residual:
        network.fused = True
    if trainer.config.train.compile:
        trainer.losses, trainer.view = torch.compile(trainer.losses), torch.compile(trainer.view)


def trouble_with_triton(networks: list[ResNet], device: torch.device, bf16: bool) -> str:
    """Return why Triton cannot train these networks, "" if it can.

    It may be missing, find no C compiler, not support the GPU, or find its shared memory too small.
    """
    try:
        from twincluster.nn import pixels, settle

        settle(_blank(16, device), BatchNorm2d(16).to(device))
        for network in networks:
            tried = copy.deepcopy(network).train().requires_grad_(True)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                pixels(tried, _blank(next(tried.parameters()).shape[1], device)).sum().backward()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # from its compiler, its driver or the import
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def _blank(n_channels: int, device: torch.device) -> Tensor:
    images = torch.zeros(FEW, n_channels, SIDE, SIDE, device=device)
    return images.contiguous(memory_format=torch.channels_last)


def within_memory(trainer: Trainer, attempt: Callable[[Trainer], Step]) -> Step:
    """Return the result of `attempt`, with the batch in as many parts as the device memory needs."""
    before = {name: tensor.clone() for name, tensor in trainer.state().items()}
    while (step := _unless_out_of_memory(trainer, attempt)) is None:
        torch.cuda.empty_cache()
        trainer.divide(trainer.processes, 2 * trainer.parts)
        if trainer.parts > MOST_PARTS:
            size = trainer.feed.batch_size
            raise InputError(
                f"a batch of {size} does not fit in the GPU memory, not even in {MOST_PARTS} parts: lower it, for "
                f"example --set train.batch_size={max(2, size // 2)}"
            )
    trainer.divide(trainer.processes, trainer.processes.maximum(trainer.parts))
    if trainer.parts > max(1, trainer.config.train.parts):
        problem = f"a batch of {trainer.feed.batch_size} does not fit in the GPU memory"
        trainer.reporter.warn(f"{problem}: it is processed in {trainer.parts} parts")
    trainer.put_back(before)
    return step


def rehearsed(trainer: Trainer) -> Step:
    """Run a few steps and return the step. Sends nothing to other processes, which may run out of memory elsewhere."""
    together = trainer.processes
    trainer.divide(replace(together, silent=True), trainer.parts)
    try:
        for _ in range(REHEARSALS):
            next(trainer.feed.epoch(trainer.epoch))
            trainer.step()
    finally:
        trainer.divide(together, trainer.parts)
    return trainer.step


def _graph(trainer: Trainer) -> Step:
    return graph(trainer.step, lambda: rehearsed(trainer))


def graph(step: Step, rehearse: Callable[[], object]) -> Step:
    """Capture `step` after a rehearsal. Return a function that replays it."""
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        rehearse()
    torch.cuda.current_stream().wait_stream(stream)
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        step()
    return recorded.replay


def _unless_out_of_memory(trainer: Trainer, attempt: Callable[[Trainer], Step]) -> Step | None:
    """Return the result of `attempt`, None if it ran out of memory; by then its tensors are freed."""
    full = torch.cuda.OutOfMemoryError
    try:
        return attempt(trainer)
    except RuntimeError as error:  # includes `full`; if it interrupts a capture, ending the capture may fail too
        if isinstance(error, full) or isinstance(error.__context__, full):
            return None
        raise
