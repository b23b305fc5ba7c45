"""A run folder on disk: what training leaves behind and what prediction, evaluation and the pages read.

Every file is replaced atomically or only appended to, and none is ever unpickled, so a stranger's run cannot run code.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.util
import io
import json
import math
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

import twincluster
from twincluster.choose import Choice, plot
from twincluster.config import Config, make_config
from twincluster.errors import InputError
from twincluster.images.store import Images
from twincluster.methods import METHODS
from twincluster.methods.base import DataShape, Network

COLUMNS = ("path", "cluster", "confidence", "status")
DATA_FACTS = {"source", "location", "files", "fingerprint", "inputs", "readable", "split"}  # in every config.json


@dataclass(frozen=True)
class Assignments:
    """assignments.csv in memory: one entry per input; cluster -1 and confidence nan where the input is unreadable."""

    paths: tuple[str, ...]
    clusters: np.ndarray  # (n,) int64
    confidence: np.ndarray  # (n,) float64
    status: tuple[str, ...]

    @classmethod
    def of(cls, images: Images, rows: np.ndarray, probabilities: torch.Tensor) -> Assignments:
        """Probabilities (len(rows),K) spread over all inputs."""
        clusters = np.full(len(images.status), -1, dtype=np.int64)
        confidence = np.full(len(images.status), np.nan)
        clusters[rows] = probabilities.argmax(1).numpy()
        confidence[rows] = probabilities.amax(1).numpy()
        return cls(images.listing.paths, clusters, confidence, images.status)

    def sizes(self, n_clusters: int) -> list[int]:
        """Inputs in each cluster, empty ones included."""
        counts: list[int] = np.bincount(self.clusters[self.clusters >= 0], minlength=n_clusters).tolist()
        return counts

    def write(self, path: Path) -> None:
        """A .csv or .parquet table, after the name; cluster and confidence of an unreadable input stay empty."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".parquet":
            self._write_parquet(path)
        else:
            self._write_csv(path)

    def _write_csv(self, path: Path) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, cluster, confidence, status in zip(
            self.paths, self.clusters, self.confidence, self.status, strict=True
        ):
            known = cluster >= 0
            writer.writerow([name, int(cluster) if known else "", f"{confidence:.4f}" if known else "", status])
        write_atomically(path, text.getvalue())

    def _write_parquet(self, path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        unknown = self.clusters < 0
        columns = (
            pa.array(self.paths, pa.string()),
            pa.array(self.clusters, pa.int32(), mask=unknown, safe=True),
            pa.array(self.confidence, pa.float32(), mask=unknown, safe=False),
            pa.array(self.status, pa.string()),
        )
        partial = path.with_name(path.name + ".partial")
        parquet.write_table(pa.table(columns, names=COLUMNS), partial)
        partial.replace(path)

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
            raise InputError(f"{path} cannot be read as a table of {', '.join(COLUMNS)}: {error}") from error


def check_table(path: Path) -> None:
    """Whether `Assignments.write` will know what to do with a name, before any work is done for it."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"--out {path}: expected a name that ends in .csv or .parquet")
    if path.is_dir():
        raise InputError(f"--out {path} is a folder: give the name of a file, for example {path / 'new.csv'}")
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"--out {path} needs a package: pip install 'twincluster[parquet]', or name a .csv file")


class Run:
    """A folder with config.json, model.safetensors, assignments.csv, metrics.jsonl and checkpoint/."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoint = self.folder / "checkpoint"
        self._config, self._model = self.folder / "config.json", self.folder / "model.safetensors"
        self._assignments, self._metrics = self.folder / "assignments.csv", self.folder / "metrics.jsonl"
        self._choice = self.folder / "clusters.json"

    @property
    def has_choice(self) -> bool:
        """Whether the number of clusters was chosen from the data."""
        return self._choice.is_file()

    def write_choice(self, choice: Choice) -> None:
        """clusters.json with every number that was tried and, where matplotlib is installed, clusters.png."""
        write_atomically(self._choice, json.dumps(dataclasses.asdict(choice), indent=2) + "\n")
        if importlib.util.find_spec("matplotlib"):
            plot(choice, self._choice.with_suffix(".png"))

    @classmethod
    def create(cls, folder: Path | str) -> Run:
        run = cls(folder)
        run.refuse_if_taken()
        run.folder.mkdir(parents=True, exist_ok=True)
        return run

    def refuse_if_taken(self) -> None:
        if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
            hint = ", or continue it with --resume" if self._config.is_file() else ""
            raise InputError(f"{self.folder} exists and is not empty: choose another --out{hint}")

    @classmethod
    def open(cls, folder: Path | str) -> Run:
        run = cls(folder)
        if not run._config.is_file():
            raise InputError(f"{run.folder} is not a run: it has no config.json; `twincluster fit` makes one")
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
            raise InputError(f"{self._config} cannot be read as a run's settings: {_first_line(error)}") from error

    def save_model(self, network: Network) -> None:
        partial = self._model.with_suffix(".partial")
        tensors = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
        partial.write_bytes(save(tensors))  # not save_file, whose files only their owner can read
        partial.replace(self._model)

    def load_network(self, device: str = "cpu") -> Network:
        """The network that predicts, in evaluation mode."""
        config, shape, _ = self.read_config()
        if not self._model.is_file():
            raise InputError(f"{self.folder} has no model yet: continue the run with `twincluster fit ... --resume`")
        precision = config.train.precision if device == "cuda" else "float32"
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
        try:
            network = METHODS[config.method].network_type(config, shape)
            network.load_state_dict(load_file(self._model))
        except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError) as error:
            raise InputError(
                f"{self._model} and its config.json are damaged or from different runs: {_first_line(error)}"
            ) from error
        return network.to(device).eval()

    def write_assignments(self, assignments: Assignments) -> None:
        assignments.write(self._assignments)

    def read_assignments(self) -> Assignments:
        if not self._assignments.is_file():
            raise InputError(f"{self.folder} has no assignments yet: continue the run with --resume")
        assignments, (config, _, data) = Assignments.read(self._assignments), self.read_config()
        lowest, highest = assignments.clusters.min(initial=0), assignments.clusters.max(initial=-1)
        if len(assignments.paths) != data["inputs"] or lowest < -1 or highest >= config.n_clusters:
            raise InputError(
                f"{self._assignments} does not fit its config.json ({data['inputs']} inputs, {config.n_clusters} "
                "clusters): one of them is damaged or from another run"
            )
        return assignments

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(strict_json(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        return list(self._metric_rows())

    def truncate_metrics(self, epoch: int) -> None:
        """Forget the rows of `epoch` and later ones, which a resumed run writes again."""
        kept = [row for row in self._metric_rows() if row["epoch"] < epoch]
        write_atomically(self._metrics, "".join(strict_json(row) + "\n" for row in kept))

    def _metric_rows(self) -> Iterator[dict[str, Any]]:
        """All rows up to a half-written last line: the process died while writing it."""
        for line in self._metrics.read_bytes().splitlines() if self._metrics.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                return
            yield row


def _read_shape(n_samples: int, side: int, n_inputs: int, mean: list[float], std: list[float]) -> DataShape:
    if not all(isinstance(number, int) and number >= 0 for number in (n_samples, side, n_inputs)):
        raise ValueError("the sizes in shape are not whole numbers")
    if not len(mean) == len(std) == n_inputs:
        raise ValueError(f"shape needs {n_inputs} means and standard deviations")
    return DataShape(n_samples, side, n_inputs, tuple(map(float, mean)), tuple(map(float, std)))


def strict_json(value: Any, indent: int | None = None) -> str:
    """JSON that every reader takes: numbers that are none (nan, inf) become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _first_line(error: Exception) -> str:
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}, {said[0]}" if said else type(error).__name__


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
