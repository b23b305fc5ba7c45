"""The command line. Each command is a thin function; torch is imported only in those that compute."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

import twincluster
from twincluster.cli.doctor import doctor
from twincluster.cli.encode import encode
from twincluster.cli.encoders import encoders, offer_better
from twincluster.cli.look_up import methods, recipes
from twincluster.cli.reproduce import reproduce
from twincluster.cli.runs import cut, evaluate, export, predict, report, serve, update
from twincluster.cli.teach import teach
from twincluster.cli.terminal import (
    LOOK_UP,
    START,
    USE,
    Count,
    Json,
    PlainHelp,
    Seed,
    can_ask,
    results,
    resumable,
    status_of,
)
from twincluster.config import (
    BUNDLED,
    Config,
    Split,
    cluster_settings,
    configure,
    how_long,
    network_settings,
    other_settings,
    parse_overrides,
    settings_to_refine,
)
from twincluster.core import (
    InputError,
    check_writable,
    counted,
    duration,
    hold,
    hold_new,
    refuse_held,
    refuse_taken,
    refuse_zero,
    torch_for_good,
    typed,
)
from twincluster.parallel import decided, first, in_turn, refuse_several

if TYPE_CHECKING:
    import numpy as np

    from twincluster.clustering import Scores
    from twincluster.data import Listing
    from twincluster.runs import Run
    from twincluster.training import Progress

Out = Annotated[Path | None, Parameter(name=("--out", "-o"))]
TOGETHER = ("fit", "demo")  # commands that torchrun may start as several processes

app = App(
    name="twincluster",
    help="""Cluster images without labels. Start with: twincluster demo

    Example: twincluster fit photos/ --clusters 12 --out runs/photos""",
    help_format="plaintext",
    help_formatter=PlainHelp(),
    version=twincluster.__version__,
    suppress_keyboard_interrupt=False,
)
app["--help"].group = app["--version"].group = LOOK_UP
app.command(encode, group=START, usage="twincluster encode [OPTIONS] SOURCE OUT")
app.command(report, group=USE)
app.command(serve, group=USE)
app.command(teach, group=USE)
app.command(cut, group=USE)
app.command(predict, group=USE)
app.command(update, group=USE, usage="twincluster update [OPTIONS] RUN [SOURCE]")
app.command(evaluate, group=USE)
app.command(export, group=USE)
app.command(recipes, group=LOOK_UP, usage="twincluster recipes [OPTIONS] [NAME]")
app.command(
    encoders,
    group=LOOK_UP,
    usage="twincluster encoders [OPTIONS] [ACTION NAMES]",
)
app.command(methods, group=LOOK_UP, usage="twincluster methods [NAME]")
app.command(doctor, group=LOOK_UP, usage="twincluster doctor [OPTIONS]")
app.command(reproduce, group=LOOK_UP, usage="twincluster reproduce [OPTIONS] [NAME]")


def main(arguments: list[str] | None = None) -> int:
    """Run a command and return its exit status; without `arguments`, the command of this process."""
    # before torch loads: spinning threads slow down a busy machine several times
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    return status_of(lambda: _run(arguments), ends_process=arguments is None)


def _run(arguments: list[str] | None) -> None:
    words = sys.argv[1:] if arguments is None else arguments
    for word in words:
        refuse_zero(word)
    if words and words[0] in app and words[0] not in TOGETHER:
        refuse_several(words[0])
    with typed(words):
        app(list(map(_at_home, words)), exit_on_error=False, print_error=False, result_action="return_value")


def _at_home(word: str) -> str:
    """Expand a leading ~, which shells do not expand in --out=~/run and in quotes."""
    option, path = re.fullmatch(r"(-[\w-]+=)?(.*)", word, re.DOTALL).groups("")  # type: ignore[union-attr]
    if not path.startswith("~"):
        return word
    whole, home = os.path.expanduser(path), re.split(r"[/\\]", path)[0]
    if whole.startswith("~") and not os.path.lexists(home):
        raise InputError(f"{home} is not a home folder: check the name, or write ./{path} for a path in this folder")
    return option + whole


@app.command(group=START)
def fit(
    source: str,
    /,
    *,
    clusters: Annotated[str | None, Parameter(name=("--clusters", "-k"))] = None,
    out: Out = None,
    recipe: str | None = None,
    method: str | None = None,
    backbone: str | None = None,
    epochs: Count | None = None,
    minutes: float | None = None,
    settings: Annotated[list[str] | None, Parameter(name="--set", negative=())] = None,
    labels: str | None = None,
    split: Split = "all",
    seed: Seed | None = None,
    device: Literal["auto", "cpu", "cuda"] | None = None,
    precision: Literal["auto", "float32", "bf16"] | None = None,
    data_root: Path | None = None,
    from_run: Annotated[Path | None, Parameter(name="--from")] = None,
    resume: Annotated[bool, Parameter(negative=())] = False,
    tensorboard: Annotated[bool, Parameter(negative=())] = False,
    no_problems: Annotated[bool, Parameter(negative=())] = False,
    as_json: Json = False,
) -> None:
    """Cluster a folder of images, or another source, and write a run folder.

    Example: twincluster fit photos/ --clusters 12 --out runs/photos

    Parameters
    ----------
    source
        A folder (searched recursively), a .npy or .npz array, a list of paths, WebDataset shards (a .tar, or a quoted
        pattern such as 's-{000..099}.tar'), or a named set: digits, mnist, fashion_mnist, cifar10, cifar100 (20
        superclasses), stl10, imagenet10, imagenet_dogs, tiny_imagenet. A list is a .txt with one path per line, or a
        .csv or .parquet with a column path; relative paths start in its folder.
    clusters
        Number of clusters, a range to choose from such as 5-30, or auto, which chooses from 2 to 50. The default is the
        recipe's number, or auto if it has none.
    out
        The run folder to write. The default is runs/NAME.
    recipe
        A recipe by name (`twincluster recipes` lists them) or a TOML file. The default is `gpu` for 20,000 images or
        more with a GPU, `default` for fewer, `cpu` without a GPU, `rows` for an array of rows, and `pretrained` with a
        pretrained backbone.
    method
        A method by name (`twincluster methods` lists them) instead of the recipe's, or your own as
        package.module:Class, whose settings are --set own.FIELD=VALUE.
    backbone
        The network. resnet18, resnet34, resnet50 and small are trained from scratch. Pretrained networks need no GPU;
        their features are clustered: pretrained (pip install 'twincluster[pretrained]'), torchvision:NAME, timm:NAME,
        hf:NAME, onnx:FILE, resnet50:WEIGHTS.safetensors, or a name of `twincluster encoders`. Append @SIDE to set the
        image size; A+B+C joins several. The default, auto, chooses by image size; without a GPU and --recipe, all but
        tiny images get `pretrained`. --recipe finetune trains a pretrained network further.
    epochs
        Passes over the data, instead of the recipe's.
    minutes
        Minutes to train, instead of epochs. The learning-rate schedule is fitted to this time.
    settings
        Change one setting, for example --set optimiser.learning_rate=0.05. `twincluster methods NAME` lists the
        settings of a method. May be repeated.
    labels
        Score against labels after training; they are never trained on. `folders`, or a file: .csv or .parquet with
        path,label, or .npy; it may be the SOURCE itself, if that is a list with a column label. In shards `cls` or
        `json:FIELD`. Named sets have their own labels; `none` ignores them.
    split
        Train on one part of a set that has train and test parts, and score on the other.
    seed
        Seed of all random draws; 0 unless the recipe sets it.
    device
        auto (the default) uses a GPU if there is one.
    precision
        auto (the default) runs the backbone in bf16 on a GPU; losses are always float32.
    data_root
        Folder of named data sets. The default is $TWINCLUSTER_DATA.
    from_run
        Copy the corrections of another run: its examples, cluster names and junk, image by image. The settings of the
        runs may differ. That run does not change. With --method ruc, the run whose clusters are refined.
    resume
        Continue an interrupted run in --out.
    tensorboard
        Also write metrics for TensorBoard into the run folder.
    no_problems
        Do not write problems.csv, the table of copies, dark, blurred and blank images, screenshots and odd ones.
    as_json
        Print the result as JSON; all else goes to stderr.
    """
    if resume and out is None:
        raise InputError("--resume continues the run in --out: name it, for example --out runs/photos")
    changes = ({"method": method} if method else {}) | parse_overrides(settings or ())
    train: dict[str, object] = {**how_long(epochs, minutes), "device": device, "precision": precision}
    train |= network_settings(backbone, changes)
    options = {**cluster_settings(clusters), "seed": seed, "train": train}
    configured = partial(configure, settings=changes, options=options)
    from twincluster.methods import REFINERS
    from twincluster.runs import Run

    config, refining = configured(recipe or ("pretrained" if "encoder" in train else "default")), None
    if config.method in REFINERS and from_run is not None:
        before = settings_to_refine(Run.open(from_run).config, augment=recipe is None)
        config = refining = configure(recipe or f"{config.method}-cifar10", changes, options, before)
    if ":" in str(named := changes.get("method", "")):
        from twincluster.methods import import_method

        import_method(named)  # naming code on the command line is consent to run it; a recipe or a run is not

    def suited(listing: Listing) -> Config:
        if refining:
            return refining
        from twincluster.methods import DEFAULT
        from twincluster.resolve import choose_recipe

        earlier = Run.open(out).config.train.frozen if resume and out else None  # a run keeps its encoder
        config, why = choose_recipe(listing, configured, recipe, changes, earlier)
        chosen_here = "encoder" not in train and earlier is None and recipe is None
        if chosen_here and config.train.encoder == BUNDLED and can_ask() and offer_better():
            config, why = choose_recipe(listing, configured, recipe, changes, earlier)
        used = "pretrained" if config.train.encoder else "rows" if listing.is_rows else "default"
        named = recipe is None and config.method != DEFAULT
        for line in filter(None, (why, other_settings(config.method, used, listing.name) if named else None)):
            print(line, flush=True)
        return config

    with results(as_json) as found, _reserved(out, Path("runs") / _run_name(source), config, resume) as folder:
        found |= _cluster(
            source, config, suited, folder, labels, split, data_root, resume, tensorboard, from_run, not no_problems
        )


@app.command(show=False, help_flags=[], version_flags=[])
def bench(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> None:
    """Say where the benchmarks are."""
    name = words[0] if words and not words[0].startswith("-") else "NAME"
    raise InputError(
        f"benchmarks are not part of the package: run `python -m benchmarks {name}` in the source repository"
    )


@app.command(group=START)
def demo(*, out: Out = None, seed: Seed = 0, epochs: Count | None = None) -> None:
    """Cluster 1,797 bundled images of digits in a minute or two; compare with k-means, Ward and spectral clustering.

    Example: twincluster demo

    Parameters
    ----------
    out
        The run folder to write. The default is runs/demo.
    seed
        Seed of all random draws.
    epochs
        Passes over the data, instead of the recipe's. 1 shows every step in seconds, with poor clusters.
    """
    config = configure("digits", {}, {"seed": seed, "train": {"epochs": epochs}})
    length = f" --epochs {epochs}" if epochs else ""
    again = f"twincluster fit digits --recipe digits --seed {seed}{length}"
    with _reserved(out, Path("runs") / "demo", config) as folder, resumable(folder, again):
        _run_demo(folder, config)


def _run_demo(out: Path, config: Config) -> None:
    """Train, compare, and say where the run is and what to do next. `config` is the recipe `digits`, or nearly."""
    from twincluster.data import open_source
    from twincluster.fit import fit as fit_run
    from twincluster.training import Progress

    listing = open_source("digits")
    assert listing.array is not None, "the digits are embedded"
    assert listing.labels is not None, "and have labels"
    print(
        f"clustering {len(listing.paths):,} images of handwritten digits into {config.n_clusters} clusters, "
        "without their labels",
        flush=True,
    )
    start = time.monotonic()
    with Progress() as progress:
        fitted = fit_run(listing, config, out, location="digits", reporter=progress)
    seconds = time.monotonic() - start
    assert fitted.scores is not None, "there are labels"
    rows = {**_classic_scores(listing.array, listing.labels, config.seed), "twincluster": fitted.scores}
    print(f"\n{'method':24} {'ACC':>6} {'NMI':>6} {'ARI':>6}")
    for name, scores in rows.items():
        print(f"{name:24} {scores.acc:6.3f} {scores.nmi:6.3f} {scores.ari:6.3f}")
    print(f"\ntrained in {duration(seconds)}; the run is in {out}")
    print(f"one row per image: {out / 'assignments.csv'}")
    evaluate = f"twincluster evaluate {shlex.quote(str(out))}"
    mine = "twincluster fit FOLDER --clusters K --out runs/mine"
    width = max(len(evaluate), len(mine))
    print(f"next: {evaluate:{width}}   the confusion matrix")
    print(f"      {mine:{width}}   your own images", flush=True)
    _report_after_fit(fitted.run, listing, None, progress)


def _classic_scores(images: np.ndarray, labels: np.ndarray, seed: int) -> dict[str, Scores]:
    """Return what scikit-learn's classics make of the raw pixels."""
    from twincluster.clustering import TITLES, cluster_by, score

    pixels = images.reshape(len(images), -1) / 255.0
    return {
        f"{TITLES[name]} on pixels": score(labels, cluster_by(name, pixels, 10, seed))
        for name in ("k-means", "ward", "spectral")
    }


def _cluster(
    source: str, config: Config, suited: Callable[[Listing], Config], out: Path, labels: str | None, split: Split,
    root: Path | None, resume: bool, tensorboard: bool, from_run: Path | None = None, problems: bool = True,
) -> dict[str, Any]:  # fmt: skip
    """Train, write the run and its report, and return the results. `suited` returns the settings for a listing."""
    from twincluster.data import location_of, open_source
    from twincluster.methods import REFINERS
    from twincluster.runs import Edits, Run

    # before torch is imported, so that a wrong name is reported at once
    earlier = Run.open(from_run) if from_run is not None and config.method in REFINERS else None
    if earlier and not Edits(earlier).any:
        from_run = None
    if from_run is not None:
        _check_corrections(from_run, out)
    listing = in_turn(config.train.device, lambda: open_source(source, labels=labels, root=root))
    _announce(listing, config)

    with torch_for_good():
        from twincluster.fit import fit as fit_run
        from twincluster.training import Progress

    config = suited(listing)
    board = out / "tensorboard" if tensorboard else None
    with resumable(out, "the same command with"), Progress(tensorboard=board) as progress:
        fitted = fit_run(
            listing, config, out, location=location_of(source), root=root, split=split, resume=resume,
            earlier=earlier, reporter=progress, decoding=progress.decoding, encoding=progress.encoding,
        )  # fmt: skip
    print(fitted.summary(), flush=True)
    if from_run is not None:
        _take_over(from_run, fitted.run, root)
    page = _report_after_fit(fitted.run, listing, root, progress, problems)
    return {**fitted.to_dict(), "report": str(page) if page else None}


def _report_after_fit(
    run: Run, source: Listing, root: Path | None, progress: Progress, problems: bool = True
) -> Path | None:
    """Write the report of a new run. Errors are only a warning, because the run itself is complete."""
    try:
        from twincluster.pages import write_report
        from twincluster.runs import in_words

        path, material, _ = write_report(run, "none", root, source=source, problems=problems)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        progress.warn(f"the run is complete, but its report could not be written ({reason}): try twincluster report")
        return None
    if material.suspects:
        print(f"to clean up: {in_words(material.suspects)}; see problems.csv")
    print(f"report: open {path} in a browser")
    return path


def _check_corrections(from_run: Path, out: Path) -> None:
    """Refuse, before any work is done, corrections that cannot be read or have no place."""
    from twincluster.runs import EDITS_FILE, Edits, Run

    if not (edits := Edits(Run.open(from_run))).any:
        raise InputError(f"{from_run} has no corrections to take over: leave out --from")
    _ = edits.state
    if (out / EDITS_FILE).is_file():
        raise InputError(f"{out} has corrections of its own, which --from would mix with others: leave it out")


def _take_over(from_run: Path, run: Run, root: Path | None) -> None:
    from twincluster.run_images import RunImages
    from twincluster.runs import Run
    from twincluster.teacher import take_over

    for line in take_over(RunImages(Run.open(from_run), root), RunImages(Run.open(run.folder), root)):
        print(line, flush=True)


def _announce(listing: Listing, config: Config) -> None:
    others = f" ({counted(listing.skipped, 'other file')} ignored)" if listing.skipped else ""
    wanted = str(config.n_clusters or "{} to {}".format(*config.clusters_between))
    print(f"{len(listing.paths):,} inputs in {listing.name}{others}, {wanted} clusters", flush=True)


def _run_name(source: str) -> str:
    path = Path(os.path.expanduser(source)).resolve()
    if not path.exists():  # a pattern: "s" for s-{000..099}.tar
        return re.split(r"[{*?\[]", path.name)[0].rstrip("-_.") or "run"
    return (path.stem if path.is_file() else path.name) or "run"


@contextmanager
def _reserved(out: Path | None, usual: Path, config: Config, resume: bool = False) -> Iterator[Path]:
    """Lock the run folder before anything is listed, downloaded or decoded.

    Without `out` it is `usual`, or `usual-2`, `usual-3`, ... if that exists. With several processes, all use the same
    folder and the first one holds the lock.
    """
    instead = "choose another --out"
    with ExitStack() as stack:
        if out is None:

            def choose() -> str:
                check_writable(usual, instead)
                return str(stack.enter_context(hold_new(usual, "training", instead)))

            out = Path(decided(config.train.device, choose))
        elif first():
            instead = "" if resume else instead
            refuse_held(out, instead)
            if not resume:
                refuse_taken(out)
            elif not (out / "config.json").is_file():
                raise InputError(f"{out} contains no run to resume: omit --resume")
            check_writable(out, "choose another --out")
            stack.enter_context(hold(out, "training", instead))
        yield out
