"""What several benchmarks take on the command line, said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from twincluster.cli.help import whole

commands = App(
    name="bench",
    help="""Measure speed and memory on this machine.

    Example: twincluster bench startup""",
)

Settings = Annotated[
    list[str] | None,
    Parameter(
        name="--set",
        negative=(),
        help="Change one setting, as in --set train.backbone=small; `twincluster methods NAME` shows all that a method "
        "takes. May be repeated.",
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
    Literal["auto", "cpu", "cuda"] | None, Parameter(help="auto (the default) takes a GPU when there is one.")
]
Rounds = Annotated[int, whole(1), Parameter(help="How often each takes its turn; the table holds medians.")]
MadeUp = Annotated[int, whole(10), Parameter(help="How many images to make up.")]  # fewer tell nothing
Clusters = Annotated[int, whole(1), Parameter(help="How many clusters they are in.")]
Side = Annotated[int, whole(1), Parameter(help="Width and height of an image, in pixels.")]
DataRoot = Annotated[Path | None, Parameter(help="Where named data sets are kept; $TWINCLUSTER_DATA when left out.")]
