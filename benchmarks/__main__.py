"""`python -m benchmarks NAME`: measure speed, memory and quality on this machine; without a name, list the benchmarks.

A benchmark is a module that returns its figures and writes them as a table. Its command here imports it when it runs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from cyclopts.validators import Number

import twincluster
from twincluster.cli import Count, CountOrNone, PlainHelp, Seed, status_of, whole
from twincluster.core import InputError, check_writable
from twincluster.parallel import refuse_several

PROGRAM = "python -m benchmarks"

commands = App(
    name=PROGRAM,
    help="""Measure speed, memory and quality on this machine.

    Example: python -m benchmarks startup""",
    help_format="plaintext",
    help_formatter=PlainHelp(),
    version=twincluster.__version__,
    suppress_keyboard_interrupt=False,
)

Settings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative=(),
        help="Change one setting, for example --set train.backbone=small. `twincluster methods NAME` lists the "
        "settings of a method. May be repeated.",
    ),
]
Recipe = Annotated[str, Parameter(help="A recipe by name (`twincluster recipes` lists them) or a TOML file.")]
MethodName = Annotated[
    str | None,
    Parameter(
        help="A clustering method instead of the recipe's; `twincluster methods` lists them, `twincluster methods "
        "NAME` shows one with its settings."
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None, Parameter(help="auto (the default) uses a GPU if there is one.")
]
Rounds = Annotated[int, whole(1), Parameter(help="How often each takes its turn; the table holds medians.")]
MadeUp = Annotated[int, whole(10), Parameter(help="How many images to make up.")]  # fewer tell nothing
Clusters = Annotated[int, whole(1), Parameter(help="How many clusters they are in.")]
Side = Annotated[int, whole(1), Parameter(help="Width and height of an image, in pixels.")]
DataRoot = Annotated[Path | None, Parameter(help="Folder of named data sets. The default is $TWINCLUSTER_DATA.")]


def main(words: list[str] | None = None) -> int:
    """Run a benchmark and return the exit status, as `twincluster` does."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch loads
    return status_of(lambda: _run(sys.argv[1:] if words is None else words), PROGRAM)


def _run(words: list[str]) -> None:
    if words:
        refuse_several(words[0])
    commands(words, exit_on_error=False, print_error=False, result_action="return_value")


@commands.command(name="augment")
def run_augment(*, rounds: Rounds = 5, batches: Count = 4, batch_size: Count = 512, side: Count = 32) -> None:
    """Augmented image pairs per second, beside torchvision's loader.

    Example: python -m benchmarks augment

    Parameters
    ----------
    batches
        Batches of images in an epoch.
    batch_size
        Images in a batch.
    side
        Width and height of an image and of its views, in pixels.
    """
    from benchmarks.augment import measure

    print(measure(rounds, batches, batch_size, side).to_text())


@commands.command(name="methods")
def run_methods(
    *,
    data: str,
    minutes: Annotated[float, Parameter(validator=Number(gt=0))] = 1.0,
    seeds: Count = 1,
    methods: str | None = None,
    backbone: str | None = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    features: Path | None = None,
    labels: str | None = None,
    device: Device = None,
    settings: Settings = None,
    data_root: DataRoot = None,
) -> None:
    """Clustering methods beside each other, each trained for the same time with the same network.

    Example: python -m benchmarks methods --data digits --methods anchored,tcc,moco,k-means

    Parameters
    ----------
    data
        What `fit` takes as SOURCE, with labels: a named set, or see --labels. They are scored against, nothing else.
    minutes
        Minutes of training for each method and seed.
    seeds
        How often each runs, with the seeds 0, 1, 2 and so on.
    methods
        Names with commas between them: those that `twincluster methods` lists (with a NAME it shows one and its
        settings), package.module:Class, and the classic k-means, ward, average, spectral,
        nmf, gmm, birch, mean-shift, affinity, dbscan, hdbscan and optics. Default: all but the
        ablations of tcc.
    backbone
        One network for all: small, resnet18, resnet34 or resnet50. The default depends on the data.
    out
        A folder for methods.md, methods.csv, methods-seeds.csv, methods.png and the runs; runs/methods-NAME when left
        out. What is there already is not run again, and stays in the table.
    features
        A run whose features the classic systems cluster too, besides pixels.
    labels
        As for `fit`: `folders`, or a file (.csv or .parquet with path,label, or .npy).
    """
    if out and out.is_file():
        raise InputError(f"--out is {out}, a file: name a folder, new or of an earlier `python -m benchmarks methods`")
    check_writable(out or Path("runs"), "choose another --out")

    from benchmarks.methods import Options, measure

    names = [name.strip() for name in methods.split(",") if name.strip()] if methods else []
    options = Options(data, minutes, seeds, names, backbone, out, features, labels, device, settings or (), data_root)
    table = measure(options, say=lambda line: print(line, flush=True))
    print("\n" + table.to_markdown())
    if failed := table.failed():
        print("\n" + failed)


@commands.command(name="memory")
def run_memory(*, images: MadeUp = 100_000, epochs: Count = 1, settings: Settings = None) -> None:
    """Peak resident memory of `fit` on 100,000 images of 32 px.

    Example: python -m benchmarks memory

    Parameters
    ----------
    epochs
        Passes over them.
    """
    from benchmarks.memory import measure

    print(measure(images, epochs, settings or []).to_text())


@commands.command(name="scale")
def run_scale(
    *,
    rows: Annotated[str, Parameter(help="How many, with commas between them.")] = "10000,100000,1000000",
    columns: Count = 128,
    clusters: Clusters = 50,
    epochs: Count | None = None,
) -> None:
    """Memory, time and ARI of `fit` on more and more rows of numbers, and how they grow.

    Example: python -m benchmarks scale --rows 10000,100000 --epochs 1

    Parameters
    ----------
    columns
        Numbers in a row.
    epochs
        Passes over the rows. Default: those of `fit`.
    """
    from benchmarks.scale import measure

    try:
        counts = [int(count) for count in rows.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 20 * clusters:
        raise InputError(f"--rows is {rows}: name numbers of at least {20 * clusters}, with commas between them")
    print(measure(counts, columns, clusters, epochs, say=lambda line: print(line, flush=True)).to_text())


@commands.command(name="startup")
def run_startup(*, runs: Count = 9) -> None:
    """Time of `twincluster --help`, beside an idle interpreter.

    Example: python -m benchmarks startup

    Parameters
    ----------
    runs
        How often each command runs; the table holds medians.
    """
    from benchmarks.startup import measure

    print(measure(runs).to_text())


@commands.command(name="walk")
def run_walk() -> None:
    """The source files that fit, a training step, a correction and predict run through, in order.

    Example: python -m benchmarks walk
    """
    from benchmarks.walk import measure

    print(measure().to_text())


@commands.command(name="longtail", usage=f"{PROGRAM} longtail [OPTIONS] [SOURCE]")
def run_longtail(
    source: str = "cifar10",
    /,
    *,
    ratio: Annotated[float, Parameter(validator=Number(gte=1))] = 100.0,
    images: Count = 3000,
    seed: Seed = 0,
    balance: Annotated[list[float] | None, Parameter(negative=())] = None,
    settings: Settings = None,
    data_root: DataRoot = None,
) -> None:
    """Clusters of a long-tailed subset at several balances, with the recipe `pretrained`.

    Example: python -m benchmarks longtail cifar10 --ratio 100

    Parameters
    ----------
    source
        A named set.
    ratio
        Size of the largest class divided by that of the smallest; sizes between fall exponentially. 1: all alike.
    images
        Images in the subset, about.
    seed
        Decides which classes are large, which images are taken, and every draw in training.
    balance
        A value of anchored.balance; may be repeated. Default: -1, 0 and 1.
    """
    from benchmarks.longtail import measure

    balances = balance if balance is not None else [-1.0, 0.0, 1.0]
    print(measure(source, ratio, images, seed, balances, settings or [], data_root).to_text())


@commands.command(name="encoded", usage=f"{PROGRAM} encoded [OPTIONS] [SOURCE]")
def run_encoded(source: str | None = None, /, *, images: MadeUp = 5_000, settings: Settings = None) -> None:
    """Where the time of `fit --backbone pretrained` goes on a CPU, with nothing in the cache.

    Example: python -m benchmarks encoded photos/

    Parameters
    ----------
    source
        Any source of `fit`. Default: images of noise.
    """
    from benchmarks.encoded import measure

    print(measure(source, images, settings or []).to_text())


@commands.command(name="report")
def run_report(*, images: MadeUp = 60_000, clusters: Clusters = 10, side: Side = 32) -> None:
    """Size of a report, time to write it, and the load event of its page in Chromium.

    Example: python -m benchmarks report --clusters 1000
    """
    from benchmarks.report import measure

    print(measure(images, clusters, side).to_text())


@commands.command(name="explorer")
def run_explorer(*, images: MadeUp = 100_000, clusters: Clusters = 10, side: Side = 32) -> None:
    """Load event of the explorer, pictures after a jump, frames, time to select, and the server's memory.

    Example: python -m benchmarks explorer
    """
    from benchmarks.explorer import measure

    print(measure(images, clusters, side).to_text())


@commands.command(name="train")
def run_train(
    *,
    recipe: Recipe = "cifar10",
    method: MethodName = None,
    steps: Count | None = None,
    device: Device = None,
    kernels: CountOrNone = 0,
    settings: Settings = None,
) -> None:
    """Training speed of a recipe on made-up images, beside the least time it could take, and its memory.

    Example: python -m benchmarks train --recipe cifar10

    Parameters
    ----------
    steps
        Steps in each measured round. Default: an epoch of 60,000 images on a GPU, 2 on a CPU.
    kernels
        Also print so many of the kernels that take longest, and what each kind of them takes.
    """
    from benchmarks.train import configure, measure, measure_kernels

    config = configure(recipe, method, device, settings or [])
    print(measure(config, steps).to_text())
    if kernels:
        print("\n" + measure_kernels(config).to_text(kernels))


@commands.command(name="peers")
def run_peers(
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

    Example: python -m benchmarks peers --recipe cifar10

    Parameters
    ----------
    steps
        Steps of a turn. Default: 20 on a GPU, 2 on a CPU.
    workers
        Processes of torchvision's loader. Default: one per core, at most 16.
    """
    from benchmarks.peers import measure
    from benchmarks.train import configure

    print(measure(configure(recipe, method, device, settings or []), rounds, steps, workers).to_text())


@commands.command(name="growth")
def run_growth(
    *,
    recipe: str = "paper-cifar10",
    device: Device = None,
    plot: Path | None = None,
    settings: Settings = None,
) -> None:
    """What longer queues, more clusters and more images cost.

    Example: python -m benchmarks growth --plot growth.svg

    Parameters
    ----------
    recipe
        Whose step is timed, with the method tcc. On a CPU a small network stands for its own.
    plot
        A file for the curves, whose name says the type: .svg, .png or .pdf.
    """
    if plot:
        _check_plot(plot)

    from benchmarks.growth import measure

    found = measure(recipe, device, settings or [])
    print(found.to_text())
    if plot:
        found.plot(plot)


def _check_plot(plot: Path) -> None:
    if plot.suffix.lower() not in (".svg", ".png", ".pdf") or not plot.parent.is_dir() or plot.is_dir():
        raise InputError(f"--plot is {plot}: name a .svg, .png or .pdf file, in a folder that exists")
    check_writable(plot.parent)

    from twincluster.pages import check_installed

    check_installed("--plot")


@commands.command(name="feed")
def run_feed(
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

    Example: python -m benchmarks feed --recipe cifar10

    Parameters
    ----------
    steps
        Steps of an epoch. Default: those of 60,000 images on a GPU, 4 on a CPU.
    side
        Width and height of the images in the file, in pixels. Default: that of training.
    """
    from benchmarks.feed import measure
    from benchmarks.train import configure

    print(measure(configure(recipe, method, device, settings or []), rounds, steps, side).to_text())


@commands.command(name="teach", usage=f"{PROGRAM} teach [OPTIONS] [SOURCE...]")
def run_teach(
    *sources: str,
    clusters: CountOrNone = 0,
    answers: Annotated[str, Parameter(help="How many, with commas between them.")] = "10,20,40,80,160,320",
    seeds: Count = 3,
    recipe: Recipe = "pretrained",
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    plot: Path | None = None,
    scale: Annotated[bool, Parameter(negative=())] = False,
    settings: Settings = None,
    data_root: DataRoot = None,
) -> None:
    """Accuracy against answers, with a simulated person who names the true class of each image asked about.

    Example: python -m benchmarks teach photos/ digits --plot teach.svg

    Parameters
    ----------
    sources
        Sets with labels, or folders of class folders; digits when left out.
    clusters
        How many clusters the runs have; 0: as many as there are classes.
    seeds
        How often each set is clustered and taught, with the seeds 0, 1, 2 and so on.
    out
        A folder for the runs, which are used again next time; a temporary one when left out.
    plot
        A file for the curves, whose name says the type: .svg, .png or .pdf.
    scale
        Instead, time a lesson on 20,000 and 200,000 made-up rows.
    """
    from benchmarks.teach import measure, measure_scale, scale_text

    if scale:
        print(scale_text(measure_scale([20_000, 200_000], [10, 50])))
        return
    try:
        counts = [int(count) for count in answers.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise InputError(f"--answers is {answers}: name numbers above 0, with commas between them")
    if plot:
        _check_plot(plot)
    found = measure(
        sources or ("digits",), clusters, counts, seeds, recipe=recipe, settings=settings or (), runs=out,
        root=data_root, say=lambda line: print(line, flush=True),
    )  # fmt: skip
    print("\n" + found.to_text())
    if plot:
        found.plot(plot)


@commands.command(name="choose", usage=f"{PROGRAM} choose [OPTIONS] [SOURCE...]")
def run_choose(
    *sources: str,
    made_up: bool = True,
    data_root: DataRoot = None,
) -> None:
    """Whether the right number of clusters is chosen, on made-up sets and on classes of image sets.

    Example: python -m benchmarks choose digits photos/

    Parameters
    ----------
    sources
        Sets with labels, or folders of class folders. Images become features of the bundled encoder.
    made_up
        Also choose on made-up sets.
    """
    from benchmarks.choose import measure, to_text

    answers = measure(sources, made=made_up, root=data_root, say=lambda line: print(line, flush=True))
    if not answers:
        raise InputError("there is no set to choose on: name some, or leave out --no-made-up")
    print("\n" + to_text(answers))


@commands.command(name="cleanup")
def run_cleanup(
    photos: Path, /, *, seeds: Count = 2, no_encoder: Annotated[bool, Parameter(negative=())] = False
) -> None:
    """How many planted copies, dark and blurred images and screenshots problems.csv names, and at which precision.

    Example: python -m benchmarks cleanup imagenette/val

    Parameters
    ----------
    photos
        A folder of photographs with a folder for each of ten kinds.
    seeds
        How many folders to make of each strength.
    no_encoder
        Compare pixels alone, as in runs that are trained from scratch.
    """
    from benchmarks.cleanup import measure, table

    print(table({
        f"{'hard' if hard else 'usual'}, seed {seed}": measure(photos, seed, hard, not no_encoder)
        for hard in (False, True) for seed in range(seeds)
    }))  # fmt: skip


@commands.command(name="store", usage=f"{PROGRAM} store [OPTIONS] [SOURCE]")
def run_store(
    source: str | None = None,
    /,
    *,
    images: Count = 2000,
    side: Count = 144,
    rounds: Rounds = 3,
    start: CountOrNone = 100_000,
) -> None:
    """Files decoded into a store, beside what Pillow alone decodes, and the time to start on a store that is there.

    Example: python -m benchmarks store photos/ --images 10000

    Parameters
    ----------
    source
        A folder of JPEG files. Default: made-up photographs of 500 x 375 pixels.
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


@commands.command(name="predict", usage=f"{PROGRAM} predict [OPTIONS] [SOURCE]")
def run_predict(
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

    Example: python -m benchmarks predict photos/ --set train.backbone=small

    Parameters
    ----------
    source
        A folder of JPEG files. Default: made-up ones of the size of training.
    images
        Images in the array. Default: 200,000 on a GPU, 1,024 on a CPU.
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
def run_same(
    *,
    recipe: Recipe = "cifar10",
    method: Annotated[list[str] | None, Parameter(negative=())] = None,
    steps: Count = 20,
    device: Device = None,
    settings: Settings = None,
) -> None:
    """Whether compiled, captured, streamed and bf16 steps compute what plain ones do, step by step.

    Exits with status 1 if one of them does not.

    Example: python -m benchmarks same --set train.backbone=small

    Parameters
    ----------
    method
        A clustering method; may be repeated. Default: anchored and tcc.
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


if __name__ == "__main__":
    sys.exit(main())
