"""The benchmarks of speed: the training step, what feeds it, and prediction; each module below is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from benchmarks.arguments import Device, MethodName, Recipe, Rounds, Settings, commands
from twincluster.cli.help import Count, CountOrNone
from twincluster.core import InputError, check_writable


@commands.command(name="train")
def bench_train(
    *,
    recipe: Recipe = "cifar10",
    method: MethodName = None,
    steps: Count | None = None,
    device: Device = None,
    kernels: CountOrNone = 0,
    settings: Settings = None,
) -> None:
    """Training speed of a recipe on made-up images, beside the least time it could take, and its memory.

    Example: twincluster bench train --recipe cifar10

    Parameters
    ----------
    steps
        Steps in each measured round. Left out: an epoch of 60,000 images on a GPU, 2 on a CPU.
    kernels
        Also print so many of the kernels that take longest, and what each kind of them takes.
    """
    from benchmarks.train import configure, measure, measure_kernels

    config = configure(recipe, method, device, settings or [])
    print(measure(config, steps).to_text())
    if kernels:
        print("\n" + measure_kernels(config).to_text(kernels))


@commands.command(name="peers")
def bench_peers(
    *,
    recipe: Recipe = "cifar10",
    method: MethodName = None,
    rounds: Rounds = 3,
    steps: Count | None = None,
    workers: Count | None = None,
    device: Device = None,
    settings: Settings = None,
) -> None:
    """Training speed beside the same losses in eager mode, and in a plain PyTorch loop with torchvision's loader.

    Example: twincluster bench peers --recipe cifar10

    Parameters
    ----------
    steps
        Steps of a turn. Left out: 20 on a GPU, 2 on a CPU.
    workers
        Processes of torchvision's loader. Left out: one per core, at most 16.
    """
    from benchmarks.peers import measure
    from benchmarks.train import configure

    print(measure(configure(recipe, method, device, settings or []), rounds, steps, workers).to_text())


@commands.command(name="growth")
def bench_growth(
    *,
    recipe: str = "paper-cifar10",
    device: Device = None,
    plot: Path | None = None,
    settings: Settings = None,
) -> None:
    """What longer queues, more clusters and more images cost.

    Example: twincluster bench growth --plot growth.svg

    Parameters
    ----------
    recipe
        Whose step is timed, with the method tcc. On a CPU a small network stands for its own.
    plot
        A file for the curves, whose name says the type: .svg, .png or .pdf.
    """
    if plot:
        if plot.suffix.lower() not in (".svg", ".png", ".pdf") or not plot.parent.is_dir() or plot.is_dir():
            raise InputError(f"--plot is {plot}: name a .svg, .png or .pdf file, in a folder that exists")
        check_writable(plot.parent)

        from twincluster.pages import check_installed

        check_installed("--plot")

    from benchmarks.growth import measure

    found = measure(recipe, device, settings or [])
    print(found.to_text())
    if plot:
        found.plot(plot)


@commands.command(name="feed")
def bench_feed(
    *,
    recipe: Recipe = "cifar10",
    method: MethodName = None,
    rounds: Rounds = 3,
    steps: Count | None = None,
    side: Count | None = None,
    device: Device = None,
    settings: Settings = None,
) -> None:
    """Training on images that stay in a file, beside training on images that lie on the device.

    Example: twincluster bench feed --recipe cifar10

    Parameters
    ----------
    steps
        Steps of an epoch. Left out: those of 60,000 images on a GPU, 4 on a CPU.
    side
        Width and height of the images in the file, in pixels. Left out: that of training.
    """
    from benchmarks.feed import measure
    from benchmarks.train import configure

    print(measure(configure(recipe, method, device, settings or []), rounds, steps, side).to_text())


@commands.command(name="store", usage="twincluster bench store [OPTIONS] [SOURCE]")
def bench_store(
    source: str | None = None,
    /,
    *,
    images: Count = 2000,
    side: Count = 144,
    rounds: Rounds = 3,
    start: CountOrNone = 100_000,
) -> None:
    """Files decoded into a store, beside what Pillow alone decodes, and the time to start on a store that is there.

    Example: twincluster bench store photos/ --images 10000

    Parameters
    ----------
    source
        A folder of JPEG files. Left out: made-up photographs of 500 x 375 pixels.
    images
        Files of it to decode.
    side
        Width and height of the decoded images, in pixels.
    start
        Files that a second run starts on, small and made up; 0 leaves this part out.
    """
    from benchmarks.store import measure_build, measure_start

    print(measure_build(source, images, side, rounds).to_text(), flush=True)
    if start:
        print("\n" + measure_start(start, rounds).to_text())


@commands.command(name="predict", usage="twincluster bench predict [OPTIONS] [SOURCE]")
def bench_predict(
    source: str | None = None,
    /,
    *,
    recipe: Recipe = "cifar10",
    method: MethodName = None,
    images: Count | None = None,
    files: CountOrNone = 10_000,
    rounds: Rounds = 3,
    device: Device = None,
    settings: Settings = None,
) -> None:
    """Prediction of arrays, beside the network alone; and of files on the CPU, with torch and with ONNX Runtime.

    Example: twincluster bench predict photos/ --set train.backbone=small

    Parameters
    ----------
    source
        A folder of JPEG files. Left out: made-up ones of the size of training.
    images
        Images in the array. Left out: 200,000 on a GPU, 1,024 on a CPU.
    files
        Files to predict; 0 leaves this part out.
    """
    from benchmarks.predict import measure_arrays, measure_files
    from benchmarks.train import configure
    from twincluster.data import open_source

    config = configure(recipe, method, device, settings or [])
    if source and files:
        open_source(source)  # a wrong path is told before anything is measured
    print(measure_arrays(config, images, rounds).to_text(), flush=True)
    if files:
        print("\n" + measure_files(config, source, files).to_text())


@commands.command(name="same")
def bench_same(
    *,
    recipe: Recipe = "cifar10",
    method: Annotated[list[str] | None, Parameter(negative=())] = None,
    steps: Count = 20,
    device: Device = None,
    settings: Settings = None,
) -> None:
    """Whether compiled, captured, streamed and bf16 steps compute what plain ones do, step by step.

    Exits with status 1 if one of them does not.

    Example: twincluster bench same --set train.backbone=small

    Parameters
    ----------
    method
        A clustering method; may be repeated. Left out: anchored and tcc.
    steps
        How many steps are compared, from one seed.
    """
    from benchmarks.same import measure
    from benchmarks.train import configure

    failed = False
    for number, name in enumerate(method or ["anchored", "tcc"]):
        found = measure(configure(recipe, name, device, settings or []), steps)
        print("\n" * bool(number) + found.to_text(), flush=True)
        failed = failed or bool(found.outside)
    if failed:
        raise SystemExit(1)
