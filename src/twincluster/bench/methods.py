"""Methods under one wall-clock budget: the same data, network, batch and image size for each, and one table.

A method brings its own settings and optimiser from its recipe, and its augmentation where that recipe is for the very
data; everything else is shared. Each (method, seed) runs in a process of its own (one_method.py), whose result is kept.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.bench.memory import terminable
from twincluster.bench.methods_table import Row, Table
from twincluster.bench.one_method import Job, Result
from twincluster.bench.train import title_of
from twincluster.classic import CLASSICS, TITLES
from twincluster.config import Config, flatten, make_config, parse_overrides
from twincluster.derive import resolve
from twincluster.errors import InputError, closest
from twincluster.images.sources import NAMED, Listing, location_of, open_source
from twincluster.images.store import Images
from twincluster.methods import METHODS, import_method
from twincluster.methods.tcc_ablations import ABLATIONS
from twincluster.opening import open_for, with_image_size
from twincluster.recipe import Recipe, load_recipe, recipe_names
from twincluster.results import Run

OWN = ("own", "tcc", "anchored", "optimiser")  # what a method takes from its recipe


@dataclass(frozen=True)
class Asked:
    """What the command line says."""

    data: str
    minutes: float = 1.0
    seeds: int = 1
    methods: Sequence[str] = ()  # of METHODS and CLASSICS, or package.module:Class; none: all but the ablations
    backbone: str | None = None
    out: Path | None = None
    features: Path | None = None  # a run, whose features the classics cluster besides pixels
    labels: str | None = None
    device: str | None = None
    settings: Sequence[str] = ()
    root: Path | None = None


def measure(asked: Asked, say: Callable[[str], None] = lambda line: None) -> Table:
    """Run what is not in the folder yet, one after another; tables there grow with every result."""
    names = _known(asked.methods) or [*(name for name in METHODS if name not in ABLATIONS), *CLASSICS]
    listing = open_source(asked.data, labels=asked.labels, root=asked.root)
    if listing.labels is None or not (listing.labels >= 0).any():
        raise InputError(f"{listing.name} has no labels to score against: give --labels, or name a data set")
    shared, images = _shared(asked, listing)
    title = _title(shared, images, asked)
    jobs = _jobs(asked, names, shared, listing, images)
    out = asked.out or Path("runs") / f"methods-{Path(listing.name).stem}"
    cells = {(name, job.config["seed"]): out / "results" / _file_name(name, job) for name, job in jobs}
    kept = {cell: _kept(cells[cell], job) for cell, (_, job) in zip(cells, jobs, strict=True)}  # refused before work
    (out / "results").mkdir(parents=True, exist_ok=True)
    rows = {name: Row(name, {}, {}) for name, _ in jobs}
    for number, (name, job) in enumerate(jobs, start=1):
        seed = job.config["seed"]
        file, known = cells[name, seed], kept[name, seed]
        found = known or apart(job, file, out / "trained" / file.stem)
        if isinstance(found, str):
            rows[name].failures[seed] = found
        else:
            rows[name].results[seed] = found
        table = Table(title, tuple(row for row in rows.values() if row.results or row.failures))
        table.write(out)
        say(f"{number} of {len(jobs)}: {_told(name, seed, found)}{' (kept)' if known else ''}")
    if importlib.util.find_spec("matplotlib"):
        table.plot(out / "methods.png")
    return table


def apart(job: Job, file: Path, folder: Path) -> Result | str:
    """The result of a job in a process of its own, or why there is none."""
    file.unlink(missing_ok=True)
    status = in_process(job, file, folder)
    if not file.is_file():
        why = f"signal {-status}" if status < 0 else f"status {status}"
        return f"the process ended with {why}, perhaps for want of memory: see {file.with_suffix('.log').name}"
    content = json.loads(file.read_text(encoding="utf-8"))
    return Result(**content["result"]) if content["result"] else str(content["failure"])


def in_process(job: Job, file: Path, folder: Path) -> int:
    """The exit status; what the process says goes into a .log beside its result."""
    command = [sys.executable, "-m", "twincluster.bench.one_method", str(file), str(folder)]
    with (
        terminable(),
        file.with_suffix(".log").open("w", encoding="utf-8") as said,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said, stderr=said, text=True) as process,
    ):
        try:
            process.communicate(json.dumps(asdict(job)))
        except KeyboardInterrupt:
            process.wait()  # an interrupt reaches the child as well, which saves its run first
            raise
        except BaseException:
            process.kill()
            raise
    return process.returncode


def configured(method: str, seed: int, shared: Config, listing: Listing, overrides: dict[str, Any]) -> Config:
    """A method's settings: its recipe's own, in the sizes that all share."""
    recipe = recipe_of(method, listing)
    settings = recipe.settings if recipe else {}
    config = make_config({"method": method, **{name: settings[name] for name in OWN if name in settings}})
    if recipe and _is_for(recipe, listing):
        augment = make_config({"augment": settings.get("augment", {})}).augment
    else:
        augment = shared.augment
        config = replace(config, tcc=replace(config.tcc, cluster_queue=0))  # follows from the number of clusters
    if recipe is None:
        config = replace(config, optimiser=shared.optimiser)
    config = replace(config, seed=seed, n_clusters=shared.n_clusters, train=shared.train, augment=augment)
    return make_config(overrides, config)


def recipe_of(method: str, listing: Listing) -> Recipe | None:
    """The recipe for this method and data, else that of its paper for CIFAR-10; None where there is neither."""
    family = method.partition("-")[0]  # ablations of tcc are trained as tcc is
    recipes = [load_recipe(name) for name in recipe_names()]
    matching = [found for found in recipes if found.settings.get("method") == family and _is_for(found, listing)]
    if matching:
        return matching[0]
    usual = {"anchored": "rows" if listing.is_rows else "default", "tcc": "paper-cifar10"}
    name = usual.get(family, f"{family.replace('_', '-')}-cifar10")
    return next((found for found in recipes if found.name == name), None)


def _is_for(recipe: Recipe, listing: Listing) -> bool:
    """Whether the data of a recipe, "CIFAR-100, train and test merged", begins with the name of this set."""
    names = (re.sub("[^a-z0-9]", "", name.lower()) for name in (re.split("[,(]", recipe.data)[0], listing.name))
    return listing.name in NAMED and len(set(names)) == 1


def _known(names: Sequence[str]) -> list[str]:
    for name in names:
        if ":" in name:
            import_method(name)  # who names code here wants it to run
        elif name not in METHODS and name not in CLASSICS:
            every = [*METHODS, *CLASSICS]
            hint = closest(name, every) or f": choose from {', '.join(every)}, or give package.module:Class"
            raise InputError(f"there is no method {name!r}{hint}")
    return list(dict.fromkeys(names))


def _shared(asked: Asked, listing: Listing) -> tuple[Config, Images]:
    """Sizes, device, length and augmentation for all, after the default method's recipe for this data."""
    overrides = parse_overrides(asked.settings)
    if "method" in overrides:
        raise InputError("--set method: name the methods with --methods")
    recipe = recipe_of("anchored", listing)
    assert recipe is not None, "the default method has recipes"
    n_classes = len(np.unique(listing.labels[listing.labels >= 0])) if listing.labels is not None else 0
    given = {"backbone": asked.backbone, "device": asked.device}
    train: dict[str, Any] = {"minutes": float(asked.minutes), "epochs": 0}  # the clock decides, whatever a recipe has
    train |= {name: value for name, value in given.items() if value}
    config = make_config({"n_clusters": n_classes, "train": train}, make_config(recipe.settings))
    overrides.pop("own", None)  # which only some of the methods know
    config = with_image_size(make_config(overrides, config), listing)
    images = open_for(config, listing)
    return resolve(config, images), images


def _jobs(
    asked: Asked, names: Sequence[str], shared: Config, listing: Listing, images: Images
) -> list[tuple[str, Job]]:
    """With the names that their rows have."""
    source = location_of(asked.data) or asked.data
    root = str(asked.root.absolute()) if asked.root else None
    common = Job({}, source, asked.labels, root, images.fingerprint, title_of(replace(shared, method="")))
    overrides, jobs = parse_overrides(asked.settings), []
    for name in names:
        for seed in range(asked.seeds):
            if name in CLASSICS:
                config = {"n_clusters": shared.n_clusters, "seed": seed, "train": _seen(shared)}
                row = f"{TITLES[name]} on {'rows' if images.is_rows else 'pixels'}"
                jobs.append((row, replace(common, config=config, classic=name)))
            else:
                config = configured(name, seed, shared, listing, overrides).to_dict()
                jobs.append((name, replace(common, config=config)))
    if asked.features:
        jobs += [(f"{row.partition(' on ')[0]} on features of {asked.features.resolve().name}",
                  replace(job, run=str(asked.features.resolve()), model=_digest(asked.features)))
                 for row, job in jobs if job.classic]  # fmt: skip
    return jobs


def _seen(config: Config) -> dict[str, Any]:
    """What decides which pixels there are, and where a network runs."""
    return {"image_size": config.train.image_size, "frame": config.train.frame, "device": config.train.device}


def _digest(run: Path) -> str:
    Run.open(run)  # refuses what is no run
    if not (model := run / "model.safetensors").is_file():
        raise InputError(f"{run} has no model yet: continue the run with `twincluster fit ... --resume`")
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _file_name(name: str, job: Job) -> str:
    return f"{name.replace(' ', '-').replace(':', '.')}-{job.config['seed']}.json"


def _kept(file: Path, job: Job) -> Result | None:
    """What was found before; None where nothing was, or where it failed, which is tried again."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        then, now = (flatten(each) for each in (content["job"], json.loads(json.dumps(asdict(job)))))
        found = Result(**content["result"]) if content["result"] else None
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read as a result: delete it, and it will be measured again") from error
    moved = ("source", "root")  # the data is known by its fingerprint
    changed = [name for name in {**then, **now} if then.get(name) != now.get(name) and name not in moved]
    if found and changed:
        what = ", ".join(name.removeprefix("config.") for name in changed)
        raise InputError(f"{file} was measured with another {what}: choose another --out, or delete that file")
    return found


def _title(shared: Config, images: Images, asked: Asked) -> str:
    network = title_of(replace(shared, method="")).removeprefix(", ")
    seeds = "seed 0" if asked.seeds == 1 else f"seeds 0 to {asked.seeds - 1}: mean (lowest to highest)"
    budget = f"{asked.minutes:g} minute{'s' * (asked.minutes != 1)} of training each"
    kind = "rows" if images.is_rows else "images"
    return (
        f"{images.listing.name}, {len(images.usable):,} {kind}, {shared.n_clusters} clusters; {network}; "
        f"{budget}, {seeds}"
    )


def _told(name: str, seed: int, found: Result | str) -> str:
    if isinstance(found, str):
        return f"{name}, seed {seed}, failed: {found}"
    return f"{name}, seed {seed}, ACC {found.acc:.3f}  NMI {found.nmi:.3f}  ARI {found.ari:.3f}"
