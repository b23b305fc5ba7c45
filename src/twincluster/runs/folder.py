"""A run folder on disk: what training leaves behind and what prediction, evaluation and the pages read.

Every file is replaced atomically or only appended to, and none is ever unpickled, so a stranger's run cannot run code.

A report that was written before the run went on says so itself, at its top, without being written anew.

A new one would take the images and whatever labels it was made with; `twincluster report` asks for them.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import importlib.util
import json
import platform
import re
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors.torch import save

import twincluster
from twincluster.clustering import Candidate, Choice, plot
from twincluster.config import Config, DataShape, make_config
from twincluster.core import (
    InputError,
    check_writable,
    json_lines,
    refuse_taken,
    strict_json,
    unfinished,
    write_atomically,
)
from twincluster.data import Images

COLUMNS = ("path", "cluster", "confidence", "status")
# has pandas read clusters as whole numbers, where some are missing, instead of making them floats
WHOLE = {"name": "cluster", "field_name": "cluster", "pandas_type": "int32", "numpy_type": "Int32", "metadata": None}
FOR_PANDAS = {"index_columns": [], "column_indexes": [], "columns": [WHOLE]}
DATA_FACTS = {"source", "location", "files", "fingerprint", "inputs", "readable", "split"}  # in every config.json


@dataclass(frozen=True)
class Assignments:
    """assignments.csv in memory: one entry per input; cluster -1 and confidence nan where the input is unreadable."""

    paths: tuple[str, ...]
    clusters: np.ndarray  # (n,) int64
    confidence: np.ndarray  # (n,) float64
    status: tuple[str, ...]
    names: tuple[str, ...] | None = None  # what clusters are called, "" without one; None before any edit

    @classmethod
    def of(cls, images: Images, rows: np.ndarray, probabilities: torch.Tensor) -> Assignments:
        """Probabilities (len(rows),K) spread over all inputs."""
        clusters = np.full(len(images.status), -1, dtype=np.int64)
        confidence = np.full(len(images.status), np.nan)
        clusters[rows] = probabilities.argmax(1).numpy()
        confidence[rows] = probabilities.amax(1).numpy()
        return cls(images.listing.paths, clusters, confidence, images.status)

    def first(self, count: int) -> Assignments:
        """The first rows: those of the inputs that a run was trained on."""
        return Assignments(self.paths[:count], self.clusters[:count], self.confidence[:count], self.status[:count])

    def sizes(self, n_clusters: int) -> list[int]:
        """Inputs in each cluster, empty ones included."""
        counts: list[int] = np.bincount(self.clusters[self.clusters >= 0], minlength=n_clusters).tolist()
        return counts

    def write(self, path: Path) -> None:
        """A .csv or .parquet table, after the name; cluster and confidence of an unreadable input stay empty."""
        path.parent.mkdir(parents=True, exist_ok=True)
        (self._write_parquet if path.suffix.lower() == ".parquet" else self._write_csv)(path)

    def _write_csv(self, path: Path) -> None:
        lines: list[str] = []
        # a row at a time, since a name with a carriage return is quoted only where rows end in one
        writer = csv.writer(SimpleNamespace(write=lambda row: lines.append(row.removesuffix("\r\n") + "\n")))
        writer.writerow(COLUMNS if self.names is None else (*COLUMNS, "name"))
        called = [()] * len(self.paths) if self.names is None else [(name,) for name in self.names]
        for name, cluster, confidence, status, more in zip(
            self.paths, self.clusters, self.confidence, self.status, called, strict=True
        ):
            known = cluster >= 0
            writer.writerow([name, int(cluster) if known else "", f"{confidence:.4f}" if known else "", status, *more])
        write_atomically(path, "".join(lines))

    def _write_parquet(self, path: Path) -> None:
        from pyarrow import parquet

        with unfinished(path) as partial:
            parquet.write_table(self.to_arrow(), partial)

    def to_arrow(self) -> Any:
        """A table of pyarrow with the columns of the files."""
        import pyarrow as pa

        unknown = self.clusters < 0
        columns = {
            "path": pa.array(self.paths, pa.string()),
            "cluster": pa.array(self.clusters, pa.int32(), mask=unknown, safe=True),
            "confidence": pa.array(self.confidence, pa.float32(), mask=unknown, safe=False),
            "status": pa.array(self.status, pa.string()),
        }
        if self.names is not None:
            columns["name"] = pa.array([name or None for name in self.names], pa.string())
        return pa.table(columns, metadata={"pandas": json.dumps(FOR_PANDAS)})

    @classmethod
    def read(cls, path: Path) -> Assignments:
        try:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            return cls(
                paths=tuple(row["path"] for row in rows),
                clusters=np.array([int(row["cluster"] or -1) for row in rows], dtype=np.int64),
                confidence=np.array([float(row["confidence"] or "nan") for row in rows]),
                status=tuple(row["status"] for row in rows),
            )
        except (ValueError, KeyError, OverflowError, csv.Error) as error:
            raise InputError(
                f"{path} cannot be read as a table of {', '.join(COLUMNS)} ({error}): put back a copy, or fit again"
            ) from error


def check_table(path: Path) -> None:
    """Refuse a name that `Assignments.write` could not write to, before any work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: expected a name that ends in .csv or .parquet")
    check_writable(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder: give the name of a file, for example {path / 'new.csv'}")
    if path.name.lower() in ("assignments.csv", "stamps.csv") and (path.parent / "config.json").is_file():
        raise InputError(f"{path} is a table of the run itself, which is read again: choose another name")
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{path} needs a package: pip install 'twincluster[parquet]', or name a .csv file")


class Run:
    """A folder with config.json, model.safetensors, assignments.csv, metrics.jsonl and checkpoint/.

    updates.jsonl is there once `twincluster update` has added rows to assignments.csv, after those of the training.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoint = self.folder / "checkpoint"
        self._config, self.model = self.folder / "config.json", self.folder / "model.safetensors"
        self._assignments, self._metrics = self.folder / "assignments.csv", self.folder / "metrics.jsonl"
        self._choice, self._updates = self.folder / "clusters.json", self.folder / "updates.jsonl"

    @property
    def has_choice(self) -> bool:
        """Whether the number of clusters was chosen from the data."""
        return self._choice.is_file()

    def write_choice(self, choice: Choice) -> None:
        """clusters.json with every number that was tried and, where matplotlib is installed, clusters.png."""
        write_atomically(self._choice, json.dumps(dataclasses.asdict(choice), indent=2) + "\n")
        if importlib.util.find_spec("matplotlib"):
            plot(choice, self._choice.with_suffix(".png"))

    def read_choice(self) -> Choice | None:
        """How the number of clusters was chosen, where it was."""
        if not self.has_choice:
            return None
        try:
            found = json.loads(self._choice.read_text(encoding="utf-8"))
            tried = {name: tuple(Candidate(**row) for row in found[name]) for name in ("candidates", "runners_up")}
            return Choice(**{**found, **tried})
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{self._choice} is damaged ({first_line(error)}): delete it to do without") from error

    @classmethod
    def create(cls, folder: Path | str) -> Run:
        run = cls(folder)
        refuse_taken(run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        run = cls(folder)
        if not run._config.is_file():
            missing = "it has no config.json" if run.folder.exists() else "there is no such folder"
            raise InputError(f"{run.folder} is not a run: {missing}; `twincluster fit` makes one")
        return run

    def write_config(self, config: Config, shape: DataShape, data: dict[str, Any]) -> None:
        content = {
            "config": config.to_dict(),
            "shape": dataclasses.asdict(shape),
            "data": data,
            "versions": {
                "twincluster": twincluster.__version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        write_atomically(self._config, json.dumps(content, indent=2) + "\n")

    def read_config(self) -> tuple[Config, DataShape, dict[str, Any]]:
        """Resolved settings, shape of the data, and what is known of its source."""
        try:
            content = json.loads(self._config.read_text(encoding="utf-8"))
            if missing := DATA_FACTS - set(content["data"]):
                raise KeyError(*sorted(missing))
            return make_config(content["config"]), _read_shape(**content["shape"]), content["data"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{self._config} cannot be read as a run's settings ({first_line(error)}): "
                "put back a copy, or fit again"
            ) from error

    def save_model(self, network: torch.nn.Module) -> None:
        tensors = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
        write_atomically(self.model, save(tensors))  # not save_file, whose files only their owner can read

    def write_assignments(self, assignments: Assignments) -> None:
        assignments.write(self._assignments)

    def read_assignments(self) -> Assignments:
        if not self._assignments.is_file():
            raise InputError(f"{self.folder} has no assignments yet: continue the run with --resume")
        assignments, (config, _, data) = Assignments.read(self._assignments), self.read_config()
        lowest, highest = assignments.clusters.min(initial=0), assignments.clusters.max(initial=-1)
        more = len(assignments.paths) - data["inputs"]
        if more < 0 or (more and not self.is_updated) or lowest < -1 or highest >= config.n_clusters:
            raise InputError(
                f"{self._assignments} does not fit its config.json ({data['inputs']} inputs, {config.n_clusters} "
                "clusters): one is damaged or from another run; put back copies that belong together, or fit again"
            )
        return assignments

    @property
    def is_updated(self) -> bool:
        return self._updates.is_file()

    def append_update(self, *records: dict[str, Any]) -> None:
        """Called without a record before assignments.csv grows: a kill in between must not look like damage."""
        rows = [*self.read_updates(), *records]
        write_atomically(self._updates, "".join(strict_json(row) + "\n" for row in rows))

    def drop_update(self) -> None:
        """Forget the last one; without any the run is as after its training."""
        if rows := self.read_updates()[:-1]:
            write_atomically(self._updates, "".join(strict_json(row) + "\n" for row in rows))
        else:
            self._updates.unlink(missing_ok=True)

    def read_updates(self) -> list[dict[str, Any]]:
        return list(json_lines(self._updates))

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(strict_json(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(json_lines(self._metrics))

    def truncate_metrics(self, epoch: int) -> None:
        """Forget the rows of `epoch` and later ones, which a resumed run writes again."""
        kept = [row for row in json_lines(self._metrics) if row["epoch"] < epoch]
        write_atomically(self._metrics, "".join(strict_json(row) + "\n" for row in kept))


def _read_shape(n_samples: int, side: int, n_inputs: int, mean: list[float], std: list[float]) -> DataShape:
    if not all(isinstance(number, int) and number >= 0 for number in (n_samples, side, n_inputs)):
        raise ValueError("the sizes in shape are not whole numbers")
    if not len(mean) == len(std) == n_inputs:
        raise ValueError(f"shape needs {n_inputs} means and standard deviations")
    return DataShape(n_samples, side, n_inputs, tuple(map(float, mean)), tuple(map(float, std)))


def first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}, {said[0]}" if said else type(error).__name__


REPORT_FILE = "report.html"
_NOTICE = re.compile(rb'<p class="warning" id="since"[^<]*</p>')  # as page.html has it; what is inside is escaped


def mark_outdated(folder: Path, what: str) -> None:
    """Tell the report of a run, if there is one, what has happened since it was written."""
    path = folder / REPORT_FILE
    command = f"twincluster report {shlex.quote(str(folder))}"
    said = html.escape(f"This page is older than the table of the run ({what} since): {command} writes it again.")
    notice = f'<p class="warning" id="since">{said}</p>'.encode(errors="backslashreplace")
    with suppress(OSError):  # the table, which counts, is written
        page = path.read_bytes() if path.is_file() else b""
        marked = _NOTICE.sub(lambda _: notice, page, count=1)
        if marked != page:
            write_atomically(path, marked)
