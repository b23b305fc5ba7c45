"""Where the time of a training step goes on its device, kernel by kernel: the profiler looks at a few steps."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch.profiler import ProfilerActivity, profile

from twincluster.training import Reporter

FIRST, PROFILED = 3, 5  # steps before the profiler looks, and at which it looks
KINDS = {  # by what the name of a kernel holds, the first that fits
    "fused": ("triton",),
    "convolution": ("conv", "xmma", "cutlass", "sm90", "sm80", "implicit", "wgrad", "dgrad", "fprop", "mkldnn"),
    "matrix product": ("gemm", "cublas", "addmm", "::mm"),
    "optimiser": ("multi_tensor", "adam", "sgd", "foreach", "lerp"),
    "batch-norm": ("batch_norm", "bn_", "_settle_", "_sum_kernel", "_activate_", "_slope_", "_pull_back_"),
    "copies": ("copy", "memcpy", "memset", "fill", "cat"),
}


@dataclass(frozen=True)
class Kernels:
    seconds: dict[str, float]  # of each in a step, by name

    def to_text(self, most: int) -> str:
        total = sum(self.seconds.values())
        kinds: dict[str, float] = defaultdict(float)
        for name, seconds in self.seconds.items():
            kinds[kind_of(name)] += seconds
        lines = [f"kernels of a step: {1000 * total:.2f} ms, mean of {PROFILED} steps"]
        lines += [_line(name, seconds, total) for name, seconds in _longest(kinds)]
        lines += ["", f"the longest {most}"]
        return "\n".join(lines + [_line(name, seconds, total) for name, seconds in _longest(self.seconds)[:most]])


class KernelWatch(Reporter):
    """Profiles the steps of a run from the FIRST on. With a graph on CUDA it sees the kernels that the graph runs."""

    def __init__(self, device: str) -> None:
        self.cuda, self.taken = device == "cuda", 0
        self.profiler = profile(activities=[ProfilerActivity.CUDA if self.cuda else ProfilerActivity.CPU])

    def step(self, progress: float, remaining: float | None) -> None:
        self.taken += 1
        if self.taken in (FIRST, FIRST + PROFILED) and self.cuda:
            torch.cuda.synchronize()
        if self.taken == FIRST:
            self.profiler.start()
        elif self.taken == FIRST + PROFILED:
            self.profiler.stop()

    def found(self) -> Kernels:
        events = self.profiler.key_averages()
        times = {
            event.key: (event.self_device_time_total if self.cuda else event.self_cpu_time_total) / 1e6 / PROFILED
            for event in events
        }
        return Kernels({name: seconds for name, seconds in times.items() if seconds > 0})


def kind_of(name: str) -> str:
    low = name.lower()
    return next((kind for kind, parts in KINDS.items() if any(part in low for part in parts)), "other")


def _longest(seconds: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(seconds.items(), key=lambda item: -item[1])


def _line(name: str, seconds: float, total: float) -> str:
    return f"{1000 * seconds:9.3f} ms {seconds / total:6.1%}  {name[:100]}"
