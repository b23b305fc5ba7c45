"""The command that reproduces the paper's tables and figures. torch is imported only when it computes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from twincluster.cli.terminal import Count
from twincluster.config import how_long
from twincluster.core import InputError, check_writable, closest

CONTENTS = {
    "table1": "the data sets; downloads those that are public",
    "table2": "TCC and 23 other systems, on one data set",
    "table3": "ablations of TCC",
    "table4": "TCC, CC and DCCM on Tiny ImageNet",
    "table5": "TCC, SwAV and DeepCluster-v2",
    "table6": "p-values, from the published accuracies; nothing is trained",
    "figure1": "two moons, by k-means, TCC and the default method; a minute",
    "figure3": "a map of TCC's features",
    "figure4": "TCC by alpha, lambda, L and batch",
    "figure5": "TCC and MiCE during training; DEC's loss",
    "figure6": "cluster sizes during training",
    "figure7": "the layers of the backbone; nothing is trained",
}
SETS = ("cifar10", "cifar100", "stl10", "imagenet10", "imagenet_dogs", "tiny_imagenet", "digits")
NO_SET = ("table1", "table6", "figure1")  # items that do not depend on a data set
ONE_RUN = ("figure3", "figure5", "figure6")  # items that show seed 0 only
FIGURES = ("figure1", "figure3", "figure4", "figure5", "figure6")  # need matplotlib


def reproduce(
    name: str | None = None,
    /,
    *,
    data: str | None = None,
    seeds: Count = 1,
    epochs: Count | None = None,
    minutes: float | None = None,
    out: Annotated[Path | None, Parameter(name=("--out", "-o"))] = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    data_root: Path | None = None,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Reproduce a table or figure of the paper, with the published numbers beside ours, or list them all.

    Example: twincluster reproduce table3 --data digits

    Parameters
    ----------
    name
        table1 to table6, figure1 or figure3 to figure7. Omit it to list them. Figure 2 is a drawing of the method.
    data
        cifar10, cifar100, stl10, imagenet10, imagenet_dogs, tiny_imagenet, or digits, on which everything runs without
        a GPU in about a minute per training. Separate several sets by commas. The default is the paper's data set.
    seeds
        Number of trainings of each kind, with seeds 0, 1, 2 and so on.
    epochs
        Passes over the data in each training. The default is the recipes': 1,000 for TCC.
    minutes
        Minutes of each training, instead of epochs. The learning-rate schedule is fitted to this time.
    out
        The folder for the result and the runs, with a subfolder for each of several sets. The default is
        runs/reproduce-DATA. Finished runs in it are reused, also for other tables and figures, and interrupted ones are
        resumed. The output of each training is in a .log file beside its run.
    settings
        Change one setting of every training, for example --set train.backbone=resnet18. May be repeated.
    device
        auto (the default) uses a GPU if there is one.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    dry_run
        Print the commands of the missing trainings instead of running them, for example for a batch queue. Afterwards,
        repeat the command without --dry-run to make the table.
    """
    if name is None:
        print("\n".join(f"{known:10}{about}" for known, about in CONTENTS.items()))
        print("\ntwincluster reproduce NAME makes one; add --data digits to try it on a small set")
        return
    if name == "figure2":
        raise InputError("figure2 is a drawing of the method: see docs/method.md instead")
    if name not in CONTENTS:
        hint = closest(name, CONTENTS) or ": `twincluster reproduce` lists them"
        raise InputError(f"there is no {name!r} to reproduce{hint}")
    if name in ONE_RUN and seeds > 1:
        raise InputError(f"{name} shows only the run with seed 0: omit --seeds")
    how_long(epochs, minutes)  # raises if both are given
    chosen = _chosen_sets(name, data)
    folders = {one: _folder(name, one, out, len(chosen)) for one in chosen}
    if not dry_run:
        for folder in folders.values():
            check_writable(folder, "choose another --out")
    if name in FIGURES:
        from twincluster.pages import check_installed

        check_installed(name)

    from twincluster.paper import ITEMS, Asked, carry_out, commands_left

    jobs = [
        (ITEMS[name].trainings(one), Asked(one, folder, seeds, epochs, minutes, device, settings or (), data_root))
        for one, folder in folders.items()
    ]
    if dry_run:
        for trainings, asked in jobs:
            for command in commands_left(trainings, asked):
                print(shlex.join(command))
        return
    trained = any(trainings for trainings, _ in jobs)
    outcomes = carry_out(jobs, lambda line: print(line, flush=True)) if trained else [{}] * len(jobs)
    for number, ((_, asked), of_job) in enumerate(zip(jobs, outcomes, strict=True)):
        print("\n" * bool(trained or number) + ITEMS[name].make(asked, of_job))


def _folder(name: str, data: str, out: Path | None, count: int) -> Path:
    """For the result and the runs of a set."""
    if out is not None:
        return out / data if count > 1 else out
    return Path("runs") / ("reproduce" if name in NO_SET else f"reproduce-{data}")


def _chosen_sets(name: str, data: str | None) -> list[str]:
    """Those with commas between them."""
    words = [word.strip() for word in data.split(",")] if data is not None else [None]
    chosen = [_chosen_set(name, word) for word in words]
    if len(set(chosen)) > 1 and name in NO_SET:
        raise InputError(f"{name} is not about one set: give one --data, or none")
    return list(dict.fromkeys(chosen))


def _chosen_set(name: str, data: str | None) -> str:
    """Return the chosen data set, by default the paper's; "" for all."""
    if data is None:
        return {"table1": "", "table4": "tiny_imagenet"}.get(name, "cifar10")
    if data not in SETS:
        raise InputError(f"--data is {data}{closest(data, SETS) or ': choose one of ' + ', '.join(SETS)}")
    return data
