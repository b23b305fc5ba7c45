"""One training of a table or a figure: the recipe it follows, what it changes there, and the command that does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from twincluster.config import Config, make_config, parse_overrides
from twincluster.options import configure, how_long
from twincluster.recipe import load_recipe, recipe_names


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    data: str
    out: Path
    seeds: int = 1
    epochs: int | None = None
    minutes: float | None = None
    device: str | None = None
    settings: Sequence[str] = ()
    root: Path | None = None


@dataclass(frozen=True)
class Training:
    name: str  # of its folder, which the seed follows
    recipe: str
    method: str = ""  # instead of the recipe's
    settings: tuple[str, ...] = ()  # as --set takes them

    def folder(self, asked: Asked, seed: int) -> Path:
        return asked.out / f"{self.name}-{seed}"

    def command(self, asked: Asked, seed: int) -> list[str]:
        """What one would type."""
        given = {
            "--recipe": self.recipe, "--method": self.method, "--epochs": asked.epochs, "--minutes": asked.minutes,
            "--device": asked.device, "--data-root": asked.root, "--seed": seed, "--out": self.folder(asked, seed),
        }  # fmt: skip
        words = [word for name, value in given.items() if value not in (None, "") for word in (name, str(value))]
        changes = [word for setting in (*self.settings, *asked.settings) for word in ("--set", setting)]
        return ["twincluster", "fit", asked.data, *words, *changes]

    def config(self, asked: Asked, seed: int) -> Config:
        """The settings that this command stands for."""
        changes: dict[str, Any] = {"method": self.method} if self.method else {}
        changes |= parse_overrides((*self.settings, *asked.settings))
        train: Mapping[str, Any] = {**how_long(asked.epochs, asked.minutes), "device": asked.device}
        return configure(self.recipe, changes, {"seed": seed, "train": train})


def by_paper(data: str, method: str = "tcc", name: str = "", settings: tuple[str, ...] = ()) -> Training:
    """With the paper's settings for this set: TCC, an ablation, or another method that gets them too."""
    recipe = paper_recipe(data)
    return Training(name or method, recipe, "" if method == "tcc" else method, settings)


def by_own_paper(data: str, method: str) -> Training:
    """A peer with the settings of its own recipe, which is for CIFAR-10, at the size and number of this set."""
    recipe = f"{method.replace('_', '-')}-cifar10"
    if data == "digits":  # which all but its optimiser is too large for
        optimiser = asdict(make_config(load_recipe(recipe).settings).optimiser)
        return Training(method, data, method, tuple(f"optimiser.{name}={value}" for name, value in optimiser.items()))
    paper = load_recipe(paper_recipe(data)).settings
    fitting = (f"n_clusters={paper['n_clusters']}", f"train.image_size={paper['train']['image_size']}")
    return Training(method, recipe, settings=() if data == "cifar10" else fitting)


def by_default(data: str) -> list[Training]:
    """What twincluster recommends for a set, where it has a recipe for it."""
    return [Training("anchored", data)] if data in recipe_names() else []


def paper_recipe(data: str) -> str:
    return f"paper-{data.replace('_', '-')}"
