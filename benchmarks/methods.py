"""Methods under one wall-clock budget: the same data, network, batch and image size for each, and one table.

A method brings its own settings and optimiser from its recipe, and its augmentation where that recipe is for the very
data; everything else is shared. Each (method, seed) runs in a process of its own (one_method.py). Results stay in the
folder: a result is used again for the same job only, and those of other methods stay in the table while their shared
settings are the same.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import environment, python_path
from benchmarks.methods_table import Row, Table
from benchmarks.one_method import Failure, Found, Job, Result, checkpoint_of, code_of, read, write
from benchmarks.train import title_of
from twincluster.clustering import CLASSICS, TITLES
from twincluster.config import Config, flatten, load_recipe, make_config, parse_overrides, recipe_names
from twincluster.config.options import Recipe
from twincluster.core import InputError, check_writable, closest, explained, run_child
from twincluster.data import Images, Listing, location_of, open_source
from twincluster.data.named import NAMED
from twincluster.methods import METHODS, READINGS, REFINERS, import_method
from twincluster.model import open_for
from twincluster.resolve import check_method, resolve, with_image_size
from twincluster.runs import Run

OWN = ("own", "tcc", "anchored", "optimiser")  # what a method takes from its recipe
ABLATIONS = {name for name in METHODS if name.startswith("tcc-") and name != "tcc-repaired"}
MOVED = ("source", "root")  # the data is known by its fingerprint


@dataclass(frozen=True)
class Options:
    """The options of the command."""

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


def measure(options: Options, say: Callable[[str], None] = lambda line: None) -> Table:
    """Run what is not in the folder yet, one after another; tables there grow with every result."""
    usual = [name for name in METHODS if name not in {*ABLATIONS, *READINGS, *REFINERS}]
    names = _checked_names(options.methods) or [*usual, *CLASSICS]
    listing = open_source(options.data, labels=options.labels, root=options.root)
    if listing.labels is None or not (listing.labels >= 0).any():
        raise InputError(f"{listing.name} has no labels to score against: give --labels, or name a data set")
    out = options.out or Path("runs") / f"methods-{Path(listing.name).stem}"
    check_writable(out, "choose another --out")  # before anything is decoded
    shared, images = _shared(options, listing)
    make = _maker(options, shared, listing, images)
    jobs = {_cell(job, images): job for job in _jobs(options, names, make)}
    files = {cell: out / "results" / _file_name(*cell) for cell in jobs}
    earlier = {cell: _finished(files[cell], job, _run_of(files[cell])) for cell, job in jobs.items()}  # before any work
    same, others = _others(
        out / "results", files.values(), lambda job: make(job.classic or job.config["method"], job.config["seed"])
    )
    for changed, left in others.items():
        say(f"not in the table, since measured with another {changed}: {', '.join(left)}")
    (out / "results").mkdir(parents=True, exist_ok=True)
    found = {_cell(job, images): result for job, result in same}
    for number, (cell, job) in enumerate(jobs.items(), start=1):
        before = earlier[cell]
        found[cell] = before or run_job(job, files[cell], _run_of(files[cell]))
        table = _table(_title(shared, images), found, out)
        table.write()
        say(f"{number} of {len(jobs)}: {_progress_line(*cell, found[cell])}{' (kept)' if before else ''}")
    if importlib.util.find_spec("matplotlib"):
        table.plot(out / "methods.png")
    return table


def run_job(job: Job, file: Path, run: Path) -> Found:
    """The result of a job in a process of its own, or why there is none."""
    if not file.is_file():
        shutil.rmtree(run, ignore_errors=True)  # nobody knows what it was begun with
    write(file, job)
    status = in_process(job, file, run)
    found = read(file)[1]
    if found is None:
        why = f"signal {-status}" if status < 0 else f"status {status}"
        write(file, job, failure=f"the process ended with {why}, perhaps for want of memory")
        found = read(file)[1]
    assert found is not None, "a result or a failure"
    return found


def in_process(job: Job, file: Path, folder: Path) -> int:
    """The exit status; what the process says goes into a .log beside its result."""
    command = [sys.executable, "-m", "benchmarks.one_method", str(file), str(folder)]
    goes_on = explained(lambda: "the same command goes on where it stopped")
    with goes_on, file.with_suffix(".log").open("w", encoding="utf-8") as log, environment(PYTHONPATH=python_path()):
        return run_child(command, told=json.dumps(asdict(job)), log=log)


def configured(method: str, seed: int, shared: Config, listing: Listing, overrides: dict[str, Any]) -> Config:
    """A method's settings: its recipe's own, in the sizes that all share."""
    recipe = recipe_of(method, listing)
    settings = recipe.settings if recipe else {}
    config = make_config({"method": method, **{name: settings[name] for name in OWN if name in settings}})
    if recipe and _is_for(recipe, listing):
        augment = make_config({"augment": settings.get("augment", {})}).augment
    else:
        augment = shared.augment
        if "tcc" in config.groups:
            config = make_config({"tcc": {"cluster_queue": 0}}, config)  # follows from the number of clusters
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


def _checked_names(names: Sequence[str]) -> list[str]:
    for name in names:
        if ":" in name:
            import_method(name)  # who names code here wants it to run
        elif name not in METHODS and name not in CLASSICS:
            every = [*METHODS, *CLASSICS]
            hint = closest(name, every) or f": choose from {', '.join(every)}, or name a package.module:Class"
            raise InputError(f"there is no method {name!r}{hint}")
    return list(dict.fromkeys(names))


def _shared(options: Options, listing: Listing) -> tuple[Config, Images]:
    """Sizes, device, length and augmentation for all, after the default method's recipe for this data."""
    overrides = parse_overrides(options.settings)
    if "method" in overrides:
        raise InputError("--set method: name the methods with --methods")
    recipe = recipe_of("anchored", listing)
    assert recipe is not None, "the default method has recipes"
    n_classes = len(np.unique(listing.labels[listing.labels >= 0])) if listing.labels is not None else 0
    given = {"backbone": options.backbone, "device": options.device}
    train: dict[str, Any] = {"minutes": float(options.minutes), "epochs": 0}  # the clock decides, whatever a recipe has
    train |= {name: value for name, value in given.items() if value}
    config = make_config({"n_clusters": n_classes, "train": train}, make_config(recipe.settings))
    overrides.pop("own", None)  # which only some of the methods know
    config = with_image_size(make_config(overrides, config), listing)
    images = open_for(config, listing)
    return resolve(config, images), images


def _maker(options: Options, shared: Config, listing: Listing, images: Images) -> Callable[[str, int], Job]:
    """What makes the job of a method, or of a classic system on pixels, and a seed."""
    source = location_of(options.data) or options.data
    root = str(options.root.absolute()) if options.root else None
    common = Job({}, source, options.labels, root, images.fingerprint, title_of(replace(shared, method="")))
    overrides = parse_overrides(options.settings)

    def make(name: str, seed: int) -> Job:
        if name in CLASSICS:
            config = {"n_clusters": shared.n_clusters, "seed": seed, "train": _pixel_settings(shared)}
            return replace(common, config=config, classic=name)
        return replace(common, config=configured(name, seed, shared, listing, overrides).to_dict())

    return make


def _jobs(options: Options, names: Sequence[str], make: Callable[[str, int], Job]) -> list[Job]:
    jobs = [make(name, seed) for name in names for seed in range(options.seeds)]
    jobs = [job if job.classic else _complete(job) for job in jobs]
    if options.features:
        run, model = str(options.features.resolve()), _digest(options.features)
        jobs += [replace(job, run=run, model=model) for job in jobs if job.classic]
    return jobs


def _complete(job: Job) -> Job:
    """With every setting of the method's own and a digest of its code, so that a result tells what it is of."""
    config = make_config(job.config)
    with contextlib.suppress(InputError):  # a setting that it does not know is what its row will say
        config = check_method(config)
    return replace(job, config=config.to_dict(), code=code_of(config.method))


def _pixel_settings(config: Config) -> dict[str, Any]:
    """What decides which pixels there are, and where a network runs."""
    return {"image_size": config.train.image_size, "frame": config.train.frame, "device": config.train.device}


def _digest(run: Path) -> str:
    Run.open(run)  # refuses what is no run
    if not (model := run / "model.safetensors").is_file():
        raise InputError(f"{run} has no model yet: continue the run with `twincluster fit ... --resume`")
    with model.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cell(job: Job, images: Images) -> tuple[str, int]:
    """Its row, and its seed."""
    return _row_of(job, images.is_rows), job.config["seed"]


def _file_name(row: str, seed: int) -> str:
    return f"{row.replace(' ', '-').replace(':', '.')}-{seed}.json"


def _run_of(file: Path) -> Path:
    """Where a result's run is."""
    return file.parent.parent / "trained" / file.stem


def _table(title: str, found: Mapping[tuple[str, int], Found], out: Path) -> Table:
    rows: dict[str, Row] = {name: Row(name, {}, {}) for name in sorted({row for row, _ in found}, key=_place)}
    for (name, seed), what in sorted(found.items()):
        if isinstance(what, Failure):
            rows[name].failures[seed] = what
        else:
            rows[name].results[seed] = what
    return Table(f"{title}, {_seeds([row.seeds() for row in rows.values()])}", tuple(rows.values()), out)


def _seeds(of_rows: Sequence[Sequence[int]]) -> str:
    last = max(max(seeds) for seeds in of_rows)
    if last == 0:
        return "seed 0"
    some = ", fewer for some" if any(len(seeds) <= last for seeds in of_rows) else ""
    return f"seeds 0 to {last}{some}: mean (lowest to highest)"


def _title(shared: Config, images: Images) -> str:
    network = title_of(replace(shared, method="")).removeprefix(", ")
    minutes = shared.train.minutes
    budget = f"{minutes:g} minute{'s' * (minutes != 1)} of training each"
    kind = "rows" if images.is_rows else "images"
    return f"{images.listing.name}, {len(images.usable):,} {kind}, {shared.n_clusters} clusters; {network}; {budget}"


def _progress_line(name: str, seed: int, found: Found) -> str:
    if isinstance(found, Failure):
        return f"{name}, seed {seed}, failed: {found.why} (see {found.log})"
    return f"{name}, seed {seed}, ACC {found.acc:.3f}  NMI {found.nmi:.3f}  ARI {found.ari:.3f}"


# -- what the folder holds already -------------------------------------------------------------------------------------


def _finished(file: Path, job: Job, folder: Path) -> Result | None:
    """What was found before; None where nothing was, or where it failed, which is tried again."""
    if not file.is_file():
        return None
    then, found = read(file)
    changed = [name for name in _differing(then, job) if name not in MOVED]
    finished = isinstance(found, Result)
    if changed and (finished or checkpoint_of(folder).exists()):
        what = ", ".join(f"code of {job.config['method']}" if name == "code" else name for name in changed)
        raise InputError(
            f"{file} was {'measured' if finished else 'begun'} with another {what}: choose another --out, or delete "
            "that file and those of its other seeds, to measure again"
        )
    return found if isinstance(found, Result) else None


def _others(
    results: Path, besides: Collection[Path], like: Callable[[Job], Job]
) -> tuple[list[tuple[Job, Found]], dict[str, list[str]]]:
    """What else is in the folder: what shares the settings of `like`, and other files by what differs in them."""
    same: list[tuple[Job, Found]] = []
    others: dict[str, list[str]] = {}
    for file in sorted(set(results.glob("*.json")) - set(besides)):
        job, found = read(file)
        if found is None:
            continue
        names = _differing(job, like(job))
        changed = [name for name in names if name.partition(".")[0] not in (*MOVED, *OWN, "code", "run", "model")]
        if changed:
            others.setdefault(", ".join(changed), []).append(file.name)
        else:
            same.append((job, found))
    return same, others


def _differing(then: Job, now: Job) -> list[str]:
    """Names of what differs between two jobs; settings by their dotted names."""
    one, two = (_flat(job) for job in (then, now))
    return [name for name in {**one, **two} if one.get(name) != two.get(name)]


def _flat(job: Job) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(json.dumps(asdict(job)))  # lists for tuples, as in a file
    return flatten(content.pop("config")) | content


def _row_of(job: Job, rows: bool) -> str:
    """The name of its row; `rows` where the data has rows of numbers instead of pixels."""
    if not job.classic:
        return str(job.config["method"])
    what = f"features of {Path(job.run).name}" if job.run else "rows" if rows else "pixels"
    return f"{TITLES.get(job.classic, job.classic)} on {what}"


def _place(row: str) -> tuple[int, str, int, str]:
    """Where a row stands: methods as METHODS has them, those of other packages, classics on pixels, on features."""
    if row in METHODS:
        return 0, "", list(METHODS).index(row), row
    title, _, what = row.partition(" on ")
    if title in TITLES.values():
        return 2, "" if what in ("rows", "pixels") else what, list(TITLES.values()).index(title), row
    return 1, "", 0, row
