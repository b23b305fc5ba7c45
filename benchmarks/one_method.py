"""One job of the benchmark `methods`: a process that trains one method once, or runs one classic system.

Each job has its own process, so that its memory is measured alone and a crash costs the others nothing. The job comes
by standard input; the result goes to a file.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import shutil
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import peak_memory
from twincluster import fit
from twincluster.clustering import Scores, cluster_by, pixel_rows, score
from twincluster.config import Config, make_config
from twincluster.core import InputError, strict_json, terminable, write_atomically
from twincluster.data import Listing, open_source
from twincluster.methods import import_method
from twincluster.model import Model, open_for
from twincluster.runs import Run
from twincluster.training import Reporter


@dataclass(frozen=True)
class Job:
    """Everything a result depends on."""

    config: dict[str, Any]  # settings, among them method and seed
    source: str
    labels: str | None
    root: str | None
    data: str  # fingerprint
    hardware: str
    classic: str = ""  # one of CLASSICS, instead of the method
    run: str = ""  # whose features it clusters, instead of pixels
    model: str = ""  # digest of that run's network
    code: str = ""  # of a method of another package: see code_of


@dataclass(frozen=True)
class Result:
    acc: float
    nmi: float
    ari: float
    seconds: float  # of training, or of clustering
    memory: int | None  # bytes, the most there was of it
    on_gpu: bool  # that memory
    images_per_second: float | None = None  # of training, with what is done between epochs
    epochs: float | None = None  # passes over the data
    note: str = ""


@dataclass(frozen=True)
class Failure:
    why: str
    log: str  # its name, as seen from the folder of the table


Found = Result | Failure


def main() -> None:
    """`python -m benchmarks.one_method RESULT RUN < JOB`."""
    with terminable():  # what was trained so far is saved
        leave(Job(**json.load(sys.stdin)), *map(Path, sys.argv[1:]))


def leave(job: Job, file: Path, folder: Path) -> None:
    """Do the job and write its result, or why there is none."""
    try:
        found, failure = asdict(work(job, folder)), ""
    except Exception as error:  # whatever a method dies of is what its row says
        traceback.print_exc()
        said = str(error).strip().splitlines() or [""]
        found, failure = {}, said[0] if isinstance(error, InputError) else f"{type(error).__name__}: {said[0]}"
        if not isinstance(error, InputError):
            shutil.rmtree(folder, ignore_errors=True)  # what led there is no beginning for another attempt
    write(file, job, found, failure)


def write(file: Path, job: Job, result: dict[str, Any] | None = None, failure: str = "") -> None:
    """Write a job and its result or failure; neither of them while the job runs."""
    write_atomically(file, strict_json({"job": asdict(job), "result": result or {}, "failure": failure}) + "\n")


def read(file: Path) -> tuple[Job, Found | None]:
    """Read a job and its result or failure; None for a job that did not end."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        job, why = Job(**content["job"]), str(content["failure"])
        found = Result(**content["result"]) if content["result"] else Failure(why, log_of(file)) if why else None
        if not (job.classic or "method" in job.config) or "seed" not in job.config:
            raise KeyError("method or seed")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file} cannot be read as a result: delete it, and it will be measured again") from error
    return job, found


def log_of(file: Path) -> str:
    """Return the name of the log beside a result, as seen from the folder of the table."""
    return f"{file.parent.name}/{file.with_suffix('.log').name}"


def work(job: Job, folder: Path) -> Result:
    """Train in the run folder `folder`, or go on where it was interrupted; classics need no folder."""
    config = make_config(job.config)
    listing = open_source(job.source, labels=job.labels, root=Path(job.root) if job.root else None)
    return _clustered(job, listing, config) if job.classic else _trained(job, listing, config, folder)


class _Listener(Reporter):
    note = ""  # what the newest epoch was warned of

    def epoch(self, row: dict[str, Any]) -> None:
        self.note = ""

    def warn(self, message: str) -> None:
        self.note = message.partition(";")[0]


def _trained(job: Job, listing: Listing, config: Config, folder: Path) -> Result:
    if code_of(config.method) != job.code:
        raise InputError(f"the code of {config.method} was changed after the command began: give it again")
    listener, begun = _Listener(), checkpoint_of(folder).exists()
    if not begun:
        shutil.rmtree(folder, ignore_errors=True)  # nothing there to go on from
    fitted = fit.fit(
        listing, config, folder, location=job.source, root=Path(job.root) if job.root else None, resume=begun,
        reporter=listener,
    )  # fmt: skip
    assert fitted.scores is not None, "there are labels"
    epochs, on_gpu = fitted.run.read_metrics(), fitted.config.train.device == "cuda"
    seen, seconds = sum(row["steps"] for row in epochs) * fitted.config.train.batch_size, epochs[-1]["seconds"]
    shutil.rmtree(fitted.run.checkpoint, ignore_errors=True)  # the largest part of a run that nobody will resume
    return Result(
        **_scores(fitted.scores),
        seconds=seconds,
        memory=torch.cuda.max_memory_reserved() if on_gpu else peak_memory(),
        on_gpu=on_gpu,
        images_per_second=seen / seconds,
        epochs=seen / int((fitted.assignments.clusters >= 0).sum()),
        note=listener.note,
    )


def code_of(method: str) -> str:
    """A digest of the file that package.module:Class is in, which it imports; "" for the methods of twincluster."""
    if ":" not in method:
        return ""
    found = import_method(method)  # who named it to the benchmark wants it to run
    try:
        return hashlib.sha256(Path(inspect.getfile(found)).read_bytes()).hexdigest()[:12]
    except (OSError, TypeError):  # made by code that is in no file
        return ""


def checkpoint_of(folder: Path) -> Path:
    """What a run that was interrupted goes on from."""
    return Run(folder).checkpoint


def _clustered(job: Job, listing: Listing, config: Config) -> Result:
    if job.run:
        model = Model.load(Run.open(job.run), config.train.device)
        images = model.open(listing)
        rows = model.embed(images).numpy()
    else:
        images = open_for(config, listing)
        rows = pixel_rows(images.pixels, images.usable)
    start = time.monotonic()
    clusters = cluster_by(job.classic, rows, config.n_clusters, config.seed)
    seconds, sample = time.monotonic() - start, int((clusters >= 0).sum())
    assert listing.labels is not None, "there are labels"
    return Result(
        **_scores(score(listing.labels[images.usable], clusters)),
        seconds=seconds,
        memory=peak_memory(),
        on_gpu=False,
        note=f"on {sample:,} of {len(rows):,}" if sample < len(rows) else "",
    )


def _scores(scores: Scores) -> dict[str, float]:
    return {"acc": scores.acc, "nmi": scores.nmi, "ari": scores.ari}


if __name__ == "__main__":
    main()
