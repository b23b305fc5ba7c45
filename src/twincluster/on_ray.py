"""Assign the images of a Ray dataset to the clusters of a run, on all machines of a Ray cluster.

Only `predict` is public. Ray is imported when it is called. The workers receive the run as a few files and return what
`twincluster predict` returns for images that the run does not know.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from twincluster.core import InputError
from twincluster.data import Content, Decoded, Images
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import EDITS_FILE as EDITS
from twincluster.runs import Assignments, Edits, Run, apply_edits

if TYPE_CHECKING:
    from ray.data import Dataset

COLUMNS = ("bytes", "image", "path")  # columns to search for images, in this order
BATCH = 256
FILES = ("config.json", "model.safetensors")  # files of a run needed to predict, besides edits


def predict(
    run: Run | Path | str, dataset: Dataset, *, column: str | None = None, keep_images: bool = False, **options: Any
) -> Dataset:
    """Return the dataset with the columns cluster, confidence and status, and name if the run was edited.

    Like every Ray dataset, it is computed when it is read or written, in no fixed order.

    run: a run folder; the workers need no access to it.
    column: the column of the images; by default the first of bytes, image and path. It may contain the bytes of image
        files, pixels (uint8 arrays of any size, (h,w) or (h,w,c)), or paths of files that every worker can read.
    keep_images: keep bytes and pixels in the result; paths are always kept.
    options: for Dataset.map_batches, for example num_gpus=1, batch_size=512 or
        compute=ray.data.ActorPoolStrategy(size=8). Workers use a GPU if num_gpus is set, otherwise one core each. By
        default there are as many workers as Ray has room for.

    An image that cannot be read has cluster -1, confidence nan and a status that says why. Renames, merges and splits
    apply to every image. Single images that were moved by hand or marked as junk are not recognised.
    """
    try:
        from ray.data import ActorPoolStrategy
    except ImportError:
        raise InputError("predicting on Ray needs a package: pip install 'twincluster[ray]'") from None
    run = Run.open(run.folder if isinstance(run, Run) else run)
    if not Model.load(run, "cpu").sees_images:  # load also fails here if the run is damaged or unfinished
        raise InputError(f"{run.folder} was trained on rows of numbers: on Ray, only images can be predicted")
    constructor = {
        "name": str(run.folder),
        "files": files_of(run),
        "column": column,
        "keep_images": keep_images,
        "device": "cuda" if options.get("num_gpus") else "cpu",
    }
    # a pool that grows while there is work; "concurrency" is another name for its size
    pool = {} if {"compute", "concurrency"} & options.keys() else {"compute": ActorPoolStrategy(min_size=1)}
    settings = {"batch_size": BATCH, **pool, **options, "fn_constructor_kwargs": constructor, "batch_format": "numpy"}
    return dataset.map_batches(Worker, **settings)


def files_of(run: Run) -> dict[str, bytes]:
    """Return what the workers need of a run; nothing of it names the run's own images."""
    files = {name: (run.folder / name).read_bytes() for name in FILES}
    if Edits(run).any:
        edits = RunImages(run).edits  # which can learn again what a damaged file held
        _ = edits.state  # damage is told here, not by a worker
        with TemporaryDirectory() as folder:
            edits.share(Path(folder))
            files |= {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return files


class Worker:
    """Runs in a process of Ray's: it holds the network, and answers one batch after another."""

    def __init__(self, name: str, files: dict[str, bytes], column: str | None, keep_images: bool, device: str) -> None:
        self.column, self.keep_images, self.device = column, keep_images, device
        with TemporaryDirectory() as folder:
            for file, content in files.items():
                Path(folder, file).write_bytes(content)
            run = Run.open(folder)
            self.model = Model.load(run, device).replace(name=name)
            _ = self.model.encoder  # fails before the first batch if its weights have changed
            edits = Edits(run)
            self.edited = edits.state if EDITS in files else None
            if self.edited and (taught := edits.taught):  # read while the file is there
                self.edited = dataclasses.replace(self.edited, head=lambda: taught.head)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        column = self.column or next((name for name in COLUMNS if name in batch), "")
        if column not in batch:
            expected = f"a column {column}" if column else f"one of the columns {', '.join(COLUMNS)}"
            raise InputError(f"the dataset needs {expected}, but has {', '.join(batch)}: set column=")
        values = list(batch[column])
        found = [self._decoded(value, suffix) for value, suffix in zip(values, _suffixes(batch, column), strict=True)]
        assignments = self._assign(found)
        keep = self.keep_images or column == "path" or any(isinstance(value, str) for value in values)
        result = {name: others for name, others in batch.items() if name != column or keep}
        result |= {"cluster": assignments.clusters, "confidence": assignments.confidence}
        result["status"] = np.array(assignments.status, dtype=object)
        if assignments.names is not None:
            result["name"] = np.array(assignments.names, dtype=object)
        return result

    def _decoded(self, value: Any, suffix: str) -> Decoded:
        if isinstance(value, np.ndarray):
            if value.ndim not in (2, 3):
                raise InputError(f"pixels of an image must be (h,w) or (h,w,c), got shape {value.shape}")
            return value, "ok"
        if isinstance(value, bytes):
            return self.model.decode(Content(value, suffix))
        if isinstance(value, str):
            return self.model.decode(Path(value))
        return None, "unreadable: no image"

    def _assign(self, found: Sequence[Decoded]) -> Assignments:
        """Assign decoded images. Images of equal size pass the network together."""
        count = len(found)
        clusters, confidence = np.full(count, -1, dtype=np.int64), np.full(count, np.nan)
        result = Assignments(("",) * count, clusters, confidence, tuple(status for _, status in found))
        together: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for row, (pixels, _) in enumerate(found):
            if pixels is not None:
                together[pixels.shape].append(row)
        for rows in together.values():
            stacked = np.stack([pixels for row in rows if (pixels := found[row][0]) is not None])
            assigned = self._apply(self.model.open_pixels(stacked))
            clusters[rows], confidence[rows] = assigned.clusters, assigned.confidence
        if not self.edited:
            return result
        return dataclasses.replace(result, names=tuple(self.edited.names.get(one, "") for one in clusters.tolist()))

    def _apply(self, images: Images) -> Assignments:
        assigned = self.model.assign(images)
        if not self.edited:
            return assigned
        unknown = np.full(len(assigned.paths), -1)  # no image is matched to a row of the run
        return apply_edits(assigned, self.edited, unknown, lambda rows: self.model.kinds(images, rows))


def _suffixes(batch: dict[str, np.ndarray], column: str) -> list[str]:
    """Return the suffixes of the file names, if a dataset of bytes has them: TGA is recognised only by its suffix."""
    paths = batch["path"] if column != "path" and "path" in batch else [""] * len(batch[column])
    return [Path(path).suffix if isinstance(path, str) else "" for path in paths]
