"""`twincluster bench NAME`: what is fast, what is small, and how it compares, measured on the machine at hand.

Each benchmark is a module that returns its figures and writes them as a table; only the one that runs imports torch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from benchmarks import speed  # noqa: F401  it registers its commands
from benchmarks.arguments import Clusters, DataRoot, Device, MadeUp, Rounds, Settings, Side, commands
from twincluster.cli.help import Count, Seed
from twincluster.core import InputError, check_writable

__all__ = ["commands"]


@commands.command(name="augment")
def bench_augment(*, rounds: Rounds = 5, batches: Count = 4, batch_size: Count = 512, side: Count = 32) -> None:
    """Augmented image pairs per second, beside torchvision's loader.

    Example: twincluster bench augment

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
def bench_methods(
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

    Example: twincluster bench methods --data digits --methods anchored,tcc,moco,k-means

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
        settings), package.module:Class, and the classic k-means, ward, spectral and nmf. Left out: all but the
        ablations of tcc.
    backbone
        One network for all: small, resnet18, resnet34 or resnet50. Left out, it follows from the data.
    out
        A folder for methods.md, methods.csv, methods-seeds.csv, methods.png and the runs; runs/methods-NAME when left
        out. What is there already is not run again, and stays in the table.
    features
        A run whose features the classic systems cluster too, besides pixels.
    labels
        As for `fit`: `folders`, or a file (.csv or .parquet with path,label, or .npy).
    """
    if out and out.is_file():
        raise InputError(f"--out is {out}, a file: name a folder, new or of an earlier `twincluster bench methods`")
    check_writable(out or Path("runs"), "choose another --out")

    from benchmarks.methods import Asked, measure

    names = [name.strip() for name in methods.split(",") if name.strip()] if methods else []
    asked = Asked(data, minutes, seeds, names, backbone, out, features, labels, device, settings or (), data_root)
    table = measure(asked, say=lambda line: print(line, flush=True))
    print("\n" + table.to_markdown())
    if failed := table.failed():
        print("\n" + failed)


@commands.command(name="memory")
def bench_memory(*, images: MadeUp = 100_000, epochs: Count = 1, settings: Settings = None) -> None:
    """Peak resident memory of `fit` on 100,000 images of 32 px.

    Example: twincluster bench memory

    Parameters
    ----------
    epochs
        Passes over them.
    """
    from benchmarks.memory import measure

    print(measure(images, epochs, settings or []).to_text())


@commands.command(name="startup")
def bench_startup(*, runs: Count = 9) -> None:
    """Time of `twincluster --help`, beside an idle interpreter.

    Example: twincluster bench startup

    Parameters
    ----------
    runs
        How often each command runs; the table holds medians.
    """
    from benchmarks.startup import measure

    print(measure(runs).to_text())


@commands.command(name="longtail", usage="twincluster bench longtail [OPTIONS] [SOURCE]")
def bench_longtail(
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

    Example: twincluster bench longtail cifar10 --ratio 100

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
        A value of anchored.balance; may be repeated. Left out: -1, 0 and 1.
    """
    from benchmarks.longtail import measure

    balances = balance if balance is not None else [-1.0, 0.0, 1.0]
    print(measure(source, ratio, images, seed, balances, settings or [], data_root).to_text())


@commands.command(name="encoded", usage="twincluster bench encoded [OPTIONS] [SOURCE]")
def bench_encoded(source: str | None = None, /, *, images: MadeUp = 5_000, settings: Settings = None) -> None:
    """Where the time of `fit --backbone pretrained` goes on a CPU, with nothing in the cache.

    Example: twincluster bench encoded photos/

    Parameters
    ----------
    source
        What `fit` takes; images of noise when left out.
    """
    from benchmarks.encoded import measure

    print(measure(source, images, settings or []).to_text())


@commands.command(name="report")
def bench_report(*, images: MadeUp = 60_000, clusters: Clusters = 10, side: Side = 32) -> None:
    """Size of a report, time to write it, and the load event of its page in Chromium.

    Example: twincluster bench report --clusters 1000
    """
    from benchmarks.report import measure

    print(measure(images, clusters, side).to_text())


@commands.command(name="explorer")
def bench_explorer(*, images: MadeUp = 100_000, clusters: Clusters = 10, side: Side = 32) -> None:
    """Load event of the explorer, pictures after a jump, frames, time to select, and the server's memory.

    Example: twincluster bench explorer
    """
    from benchmarks.explorer import measure

    print(measure(images, clusters, side).to_text())
