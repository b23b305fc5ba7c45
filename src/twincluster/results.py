"""A run folder on disk: what training leaves behind and what prediction, evaluation and the pages read.

Every file is replaced atomically or only appended to, and none is ever unpickled, so a stranger's run cannot run code.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import twincluster
from twincluster.config import Config, make_config
from twincluster.errors import InputError
from twincluster.images.store import Images
from twincluster.methods import METHODS
from twincluster.methods.base import DataShape, Network

COLUMNS = ("path", "cluster", "confidence", "status")


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

    def write(self, path: Path) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for name, cluster, confidence, status in zip(
            self.paths, self.clusters, self.confidence, self.status, strict=True
        ):
            known = cluster >= 0
            writer.writerow([name, int(cluster) if known else "", f"{confidence:.4f}" if known else "", status])
        write_atomically(path, text.getvalue())

    @classmethod
    def read(cls, path: Path) -> Assignments:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        return cls(
            paths=tuple(row["path"] for row in rows),
            clusters=np.array([int(row["cluster"] or -1) for row in rows], dtype=np.int64),
            confidence=np.array([float(row["confidence"] or "nan") for row in rows]),
            status=tuple(row["status"] for row in rows),
        )


class Run:
    """A folder with config.json, model.safetensors, assignments.csv, metrics.jsonl and checkpoint/."""

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoint = self.folder / "checkpoint"
        self._config, self._model = self.folder / "config.json", self.folder / "model.safetensors"
        self._assignments, self._metrics = self.folder / "assignments.csv", self.folder / "metrics.jsonl"

    @classmethod
    def create(cls, folder: Path | str) -> Run:
        run = cls(folder)
        if run.folder.exists() and (not run.folder.is_dir() or any(run.folder.iterdir())):
            raise InputError(
                f"{run.folder} exists and is not empty: choose another --out, or continue it with --resume"
            )
        run.folder.mkdir(parents=True, exist_ok=True)
        return run

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
            shape = {name: tuple(v) if isinstance(v, list) else v for name, v in content["shape"].items()}
            return make_config(content["config"]), DataShape(**shape), content["data"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{self._config} cannot be read as a run's settings: {error}") from error

    def save_model(self, network: Network) -> None:
        partial = self._model.with_suffix(".partial")
        save_file({name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}, partial)
        partial.replace(self._model)

    def load_network(self, device: str = "cpu") -> Network:
        """The network that predicts, in evaluation mode."""
        config, shape, _ = self.read_config()
        if not self._model.is_file():
            raise InputError(f"{self.folder} has no model yet: continue the run with `twincluster fit ... --resume`")
        precision = config.train.precision if device == "cuda" else "float32"
        config = dataclasses.replace(config, train=dataclasses.replace(config.train, precision=precision))
        network = METHODS[config.method].network_type(config, shape)
        try:
            network.load_state_dict(load_file(self._model))
        except (SafetensorError, RuntimeError) as error:
            raise InputError(f"{self._model} does not fit its config.json: {error}") from error
        return network.to(device).eval()

    def write_assignments(self, assignments: Assignments) -> None:
        assignments.write(self._assignments)

    def read_assignments(self) -> Assignments:
        if not self._assignments.is_file():
            raise InputError(f"{self.folder} has no assignments yet: continue the run with --resume")
        return Assignments.read(self._assignments)

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self._metrics.is_file():
            return []
        return [json.loads(line) for line in self._metrics.read_text(encoding="utf-8").splitlines()]

    def truncate_metrics(self, epoch: int) -> None:
        """Forget the rows of `epoch` and later ones, which a resumed run writes again; also a half-written last line."""
        rows = []
        for line in self._metrics.read_text(encoding="utf-8").splitlines() if self._metrics.is_file() else []:
            try:
                row = json.loads(line)
            except ValueError:
                break  # the process died while writing it
            if row["epoch"] < epoch:
                rows.append(line)
        write_atomically(self._metrics, "".join(f"{row}\n" for row in rows))


def write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
