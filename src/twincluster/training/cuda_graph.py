"""The step made ready for a GPU: captured as one graph, with the batch in as many parts as the memory asks for.

Steps are rehearsed first. They and the capture leave no trace: all state is put back to what it was before.
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

REHEARSALS = 3  # eager steps before a graph is captured: lazy buffers and autotuning must have happened
MOST_PARTS = 16  # of a batch: with more, what is not divided takes the memory
FEW, SIDE = 16, 32  # images, and their pixels, that kernels are tried on: how much they hold at once is not up to these

Step = Callable[[], object]


def captured(trainer: Trainer) -> Step:
    """The step as one CUDA graph; with several processes, whose messages are not captured, the step itself."""
    warnings.filterwarnings("ignore", "TensorFloat32")  # the losses are float32 on purpose
    cudnn, chosen = torch.backends.cudnn, torch.backends.cudnn.benchmark
    cudnn.benchmark = True  # kernels are picked once, while rehearsing
    alone = trainer.processes.count == 1
    if alone and trainer.parts == 1:
        _use_triton(trainer)
    step = within_memory(trainer, _graph if alone else rehearsed)
    cudnn.benchmark = chosen
    return step


def _use_triton(trainer: Trainer) -> None:
    """Our own kernels for residual networks, and for long runs the compiler's for all the rest."""
    residual = [network for network in trainer.method.modules() if isinstance(network, ResNet)]
    if not residual and not trainer.config.train.compile:
        return
    if problem := trouble_with_triton(residual, trainer.device, trainer.config.train.precision == "bf16"):
        trainer.reporter.warn(f"Triton, which compiles for the GPU, does not work: {problem}; steps take longer")
        return
    for network in residual:
        network.fused = True
    if trainer.config.train.compile:
        trainer.losses, trainer.view = torch.compile(trainer.losses), torch.compile(trainer.view)


def trouble_with_triton(networks: list[ResNet], device: torch.device, bf16: bool) -> str:
    """What it says where it is not installed, finds no C compiler, or does not know the GPU or finds it too small for
    the kernels that train these networks; else nothing."""
    try:
        from twincluster.nn import pixels, settle

        settle(_blank(16, device), BatchNorm2d(16).to(device))
        for network in networks:
            tried = copy.deepcopy(network).train().requires_grad_(True)
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                pixels(tried, _blank(next(tried.parameters()).shape[1], device)).sum().backward()
    except torch.cuda.OutOfMemoryError:
        raise
    except Exception as error:  # of its compiler, its driver, or the import
        return str(error).splitlines()[0] if str(error) else type(error).__name__
    return ""


def _blank(n_channels: int, device: torch.device) -> Tensor:
    images = torch.zeros(FEW, n_channels, SIDE, SIDE, device=device)
    return images.contiguous(memory_format=torch.channels_last)


def within_memory(trainer: Trainer, attempt: Callable[[Trainer], Step]) -> Step:
    """What `attempt` returns once the batch is in so many parts that the device has the memory for its steps."""
    before = {name: tensor.clone() for name, tensor in trainer.state().items()}
    while (step := _unless_out_of_memory(trainer, attempt)) is None:
        torch.cuda.empty_cache()
        trainer.divide(trainer.processes, 2 * trainer.parts)
        if trainer.parts > MOST_PARTS:
            size = trainer.feed.batch_size
            raise InputError(
                f"the device's memory does not hold a batch of {size}, not even in parts: lower it, for example "
                f"--set train.batch_size={max(2, size // 2)}"
            )
    trainer.divide(trainer.processes, trainer.processes.largest(trainer.parts))
    if trainer.parts > max(1, trainer.config.train.parts):
        held = f"the device's memory does not hold a batch of {trainer.feed.batch_size}"
        trainer.reporter.warn(f"{held}: it is now passed in {trainer.parts} parts")
    trainer.put_back(before)
    return step


def rehearsed(trainer: Trainer) -> Step:
    """Steps without a word to other processes, whose memory may run out at another point, or not at all."""
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
    """`step` captured after a rehearsal: whoever calls the result has the device repeat what it did."""
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
    """Returns to where nothing of a failed attempt is held any more."""
    full = torch.cuda.OutOfMemoryError
    try:
        return attempt(trainer)
    except RuntimeError as error:  # of which `full` is one; where it broke off a capture, ending that may fail as well
        if isinstance(error, full) or isinstance(error.__context__, full):
            return None
        raise
