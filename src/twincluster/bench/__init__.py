"""`twincluster bench NAME`: what is fast, what is small, and how it compares, measured on the machine at hand.

Each benchmark is a module that returns its figures and writes them as a table; torch is imported only by those that run.
"""

from __future__ import annotations

from typing import Annotated, Literal

from cyclopts import App, Parameter

commands = App(name="bench", help="Measure speed and memory on this machine; without a name, list what can be measured.")


@commands.command
def augment(*, rounds: int = 5, batches: int = 4, batch_size: int = 512) -> None:
    """Augmented image pairs per second, beside a torchvision v2 DataLoader with two workers.

    Example: twincluster bench augment

    Parameters
    ----------
    rounds
        How often each side takes its turn; the table holds medians.
    batches
        Batches of images in an epoch.
    batch_size
        Images in a batch.
    """
    from twincluster.bench.augment import measure

    print(measure(rounds, batches, batch_size).to_text())


@commands.command
def train(
    *,
    recipe: str = "cifar10",
    method: str | None = None,
    steps: int | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
) -> None:
    """Training speed of a recipe on made-up images: throughput, arithmetic, start and memory.

    Example: twincluster bench train --recipe cifar10

    Parameters
    ----------
    recipe
        A recipe by name (`twincluster recipes` lists them) or a TOML file.
    method
        A clustering method instead of the recipe's; `twincluster methods` lists them.
    steps
        Steps in each of the measured rounds; an epoch of 60,000 images on a GPU, 2 on a CPU when left out.
    device
        auto (the default) takes a GPU when there is one.
    settings
        Change one setting, as in --set train.backbone=small. May be repeated.
    """
    from twincluster.bench.train import configure, measure

    print(measure(configure(recipe, method, device, settings or []), steps).to_text())


@commands.command
def memory(
    *,
    images: int = 100_000,
    epochs: int = 1,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
) -> None:
    """Peak resident memory of `fit` on images of 32 px on a CPU, and of everything it starts.

    Example: twincluster bench memory

    Parameters
    ----------
    images
        How many images to make up.
    epochs
        Passes over them.
    settings
        Change one setting, as in --set train.batch_size=256. May be repeated.
    """
    from twincluster.bench.memory import measure

    print(measure(images, epochs, settings or []).to_text())


@commands.command
def startup(*, runs: int = 9) -> None:
    """Time of `twincluster --help`, beside an interpreter that does nothing.

    Example: twincluster bench startup

    Parameters
    ----------
    runs
        How often each command runs; the table holds medians.
    """
    from twincluster.bench.startup import measure

    print(measure(runs).to_text())
