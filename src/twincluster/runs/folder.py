"""The run folder: the files that training writes, and that prediction, evaluation and the pages read.

Every file is replaced atomically or only appended to, and none is unpickled, so a run from elsewhere cannot run code.
Reading the rows of a run imports neither torch nor the settings: heavy imports stand inside functions.
"""

from __future__ import annotations

import csv
import dataclasses
import html
import importlib.util
import io
import json
import math
import platform
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np

import twincluster
from twincluster.core import (
    MANIFEST,
    MISMATCH,
    SEAL,
    InputError,
    JsonLines,
    check_content,
    check_seal,
    check_writable,
    first_line,
    read_json,
    read_record,
    read_table,
    record_of,
    refuse_taken,
    seal,
    unfinished,
    write_atomically,
    write_json,
    write_table,
)

if TYPE_CHECKING:
    import torch

    from twincluster.clustering import Choice
    from twincluster.config import Config, DataShape
    from twincluster.data import Images

Parsed = TypeVar("Parsed")
COLUMNS = ("path", "cluster", "confidence", "status")
# makes pandas read clusters with missing values as integers instead of floats
WHOLE = {"name": "cluster", "field_name": "cluster", "pandas_type": "int32", "numpy_type": "Int32", "metadata": None}
FOR_PANDAS = {"index_columns": [], "column_indexes": [], "columns": [WHOLE]}
OWN_TABLES = ("assignments.csv", "stamps.csv", "contents.csv", "problems.csv")
REPORT_FILE = "report.html"
WRONG_TYPE = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)  # raised by invalid JSON
_NOTICE = re.compile(rb'<p class="warning" id="since"[^<]*</p>')  # as in page.html; its text is escaped


@dataclass(frozen=True)
class Assignments:
    """The content of assignments.csv: one entry per input; unreadable inputs have cluster -1 and confidence nan."""

    paths: tuple[str, ...]
    clusters: np.ndarray  # (n,) int64
    confidence: np.ndarray  # (n,) float64
    status: tuple[str, ...]
    names: tuple[str, ...] | None = None  # name of the cluster, "" without a cluster; None before any edit

    @classmethod
    def of(cls, images: Images, rows: np.ndarray, probabilities: torch.Tensor) -> Assignments:
        """Return assignments from the probabilities (len(rows),K) of some rows."""
        clusters = np.full(len(images.status), -1, dtype=np.int64)
        confidence = np.full(len(images.status), np.nan)
        clusters[rows] = probabilities.argmax(1).numpy()
        confidence[rows] = probabilities.amax(1).numpy()
        return cls(images.listing.paths, clusters, confidence, images.status)

    def first(self, count: int) -> Assignments:
        """Return the first rows: the inputs that the run was trained on."""
        return Assignments(self.paths[:count], self.clusters[:count], self.confidence[:count], self.status[:count])

    def problems(self) -> Counter[str]:
        """Count the inputs without a cluster by the kind of their status: unreadable, incomplete or too_large."""
        return count_problems(self.status)

    def sizes(self, n_clusters: int) -> list[int]:
        """Count the inputs in each cluster, including empty ones."""
        counts: list[int] = np.bincount(self.clusters[self.clusters >= 0], minlength=n_clusters).tolist()
        return counts

    def write(self, path: Path, more: Mapping[str, Sequence[str]] | None = None) -> None:
        """Write a .csv or .parquet table, by the suffix. Unreadable inputs have no cluster and confidence.

        `more` are further columns of a .csv table.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix.lower() == ".parquet":
            self._write_parquet(path)
        else:
            write_atomically(path, self.to_csv(more))

    def to_csv(self, more: Mapping[str, Sequence[str]] | None = None) -> str:
        """Return the text of a .csv file."""
        columns: dict[str, Sequence[str]] = {} if self.names is None else {"name": self.names}
        columns |= more or {}
        lines: list[str] = []
        # rows end in \r\n here, so that names with a carriage return are quoted
        writer = csv.writer(SimpleNamespace(write=lambda row: lines.append(row.removesuffix("\r\n") + "\n")))
        writer.writerow([*COLUMNS, *columns])
        others = zip(*columns.values(), strict=True) if columns else [()] * len(self.paths)
        for name, cluster, confidence, status, other in zip(
            self.paths, self.clusters, self.confidence, self.status, others, strict=True
        ):
            readable = cluster >= 0
            cells = (int(cluster), f"{confidence:.4f}") if readable else ("", "")
            writer.writerow([name, *cells, status, *other])
        return "".join(lines)

    def _write_parquet(self, path: Path) -> None:
        from pyarrow import parquet

        with unfinished(path) as partial:
            parquet.write_table(self.to_arrow(), partial)

    def to_arrow(self) -> Any:
        """Return a pyarrow table with the columns of the files."""
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
    def read(cls, path: Path, is_own: bool = False) -> Assignments:
        """Read a .csv table. With `is_own`, the table of a run folder, it must match its checksum."""
        try:
            text, matches = read_table(path) if is_own else (path.read_bytes().decode(), True)
            rows = rows_of_table(text, COLUMNS)
            table = cls(
                paths=tuple(row[0] for row in rows),
                clusters=np.array([int(row[1] or -1) for row in rows], dtype=np.int64),
                confidence=np.array([float(row[2] or "nan") for row in rows]),
                status=tuple(row[3] for row in rows),
            )
            odd = np.flatnonzero((table.clusters != -1) != ((table.confidence >= 0) & (table.confidence <= 1)))
            if len(odd):
                _, cluster, confidence, _ = rows[odd[0]]
                raise ValueError(f"row {odd[0] + 1} has the cluster {cluster!r} and the confidence {confidence!r}")
            if not matches:
                raise ValueError(f"{MISMATCH}, or was edited without deleting {MANIFEST}")
        except (ValueError, OverflowError) as error:
            raise InputError(
                f"{path} cannot be read as a table of {', '.join(COLUMNS)} ({error}): restore a copy, or fit again"
            ) from error
        return table


def rows_of_table(text: str, columns: Sequence[str]) -> list[list[str]]:
    """Return these columns of each row of CSV text. Raise ValueError for rows of another length or a truncated end."""
    if not text.endswith("\n"):
        raise ValueError("it ends in the middle of a line")
    lines = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(lines)
        if missing := [name for name in columns if header.count(name) != 1]:
            raise ValueError(f"it needs one column {missing[0]}")
        rows = []
        for row in lines:
            if len(row) != len(header):
                raise ValueError(f"line {lines.line_num} has {len(row)} fields, expected {len(header)}")
            rows.append(row)
    except csv.Error as error:
        raise ValueError(f"line {lines.line_num}: {error}") from error
    places = [header.index(name) for name in columns]
    return rows if places == list(range(len(header))) else [[row[place] for place in places] for row in rows]


def count_problems(statuses: Iterable[str]) -> Counter[str]:
    return Counter(status.partition(":")[0] for status in statuses if status not in ("ok", "junk"))


def kinds_of(problems: Counter[str]) -> str:
    """Return the counts of special problems as text, for example " (2 incomplete, 1 too_large)"; "" without any."""
    kinds = [f"{problems[kind]:,} {kind}" for kind in ("incomplete", "too_large") if problems[kind]]
    return f" ({', '.join(kinds)})" if kinds else ""


def check_table(path: Path) -> None:
    """Raise InputError for a path that `Assignments.write` could not write, before any work is done."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{path}: expected a file name that ends in .csv or .parquet")
    check_writable(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder: name a file, for example {path / 'new.csv'}")
    if path.name.lower() in OWN_TABLES and (path.parent / "config.json").is_file():
        raise InputError(f"{path} is one of the run's own tables: choose another name")
    if path.suffix.lower() == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise InputError(f"{path} needs a package: pip install 'twincluster[parquet]', or name a .csv file")


@dataclass(frozen=True)
class RunData:
    """The entry of config.json about the data that a run was trained on."""

    source: str  # its name, for messages
    location: str | None  # where to open it again: an absolute path, or the name of a data set
    files: bool  # whether the inputs are files; otherwise rows of an array
    fingerprint: str  # SHA-256 of the data
    inputs: int
    readable: int
    split: Literal["all", "train", "test"]
    root: str | None = None  # where named data sets were kept
    base: str | None = None  # where relative names start, if that is not the location: of an encoded folder
    side: int = 0  # pixels a side at which the images were read; 0: unknown, or rows
    encoder: str | None = None  # version of the encoder's weights
    columns: tuple[str, ...] | None = None  # names of the columns of a data frame
    float_range: int | None = None  # of images passed as floats: 1, 16 or 255

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for config.json, without fields that do not apply."""
        return {name: value for name, value in vars(self).items() if value is not None or name in ("location", "root")}


Replaced = tuple[int, int, float | None, str, str | None]  # old row: number, cluster, confidence, status and stamp


@dataclass(frozen=True)
class UndoRecord:
    """The information to undo an update."""

    rows: int  # of the table before the update
    replaced: tuple[Replaced, ...]


@dataclass(frozen=True)
class UpdateRecord:
    """A line of updates.jsonl, without its figures."""

    location: str | None  # of the images that were added
    files: bool  # whether they were files; otherwise rows of an array
    source: str  # their name, for messages
    rows: int | None = None  # of the table after the update
    undo: UndoRecord | None = None
    number: int | None = None  # of the line, from 0; None before lines were numbered


class Run:
    """A run folder: config.json, model.safetensors, assignments.csv, metrics.jsonl, checkpoint/ and files added later.

    config.json is parsed once, when first needed. updates.jsonl exists once `twincluster update` has added rows to
    assignments.csv.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.checkpoint = self.folder / "checkpoint"
        self.model = self.folder / "model.safetensors"
        self._config, self._choice = self.folder / "config.json", self.folder / "clusters.json"
        self._assignments = self.folder / "assignments.csv"
        self._metrics = JsonLines(self.folder / "metrics.jsonl", _epoch_of, "delete that line")
        self._updates = JsonLines(self.folder / "updates.jsonl", _update_of, "delete that line")

    @classmethod
    def create(cls, folder: Path | str) -> Self:
        """Create the folder. Raise InputError if it contains anything."""
        run = cls(folder)
        refuse_taken(run.folder)
        run.folder.mkdir(parents=True, exist_ok=True)
        return run

    @classmethod
    def open(cls, folder: Path | str) -> Self:
        """Open a run that `fit` has started or finished."""
        run = cls(folder)
        if not run._config.is_file():
            missing = "it has no config.json" if run.folder.exists() else "the folder does not exist"
            raise InputError(f"{run.folder} is not a run: {missing}; create one with `twincluster fit`")
        return run

    @cached_property
    def config(self) -> Config:
        """The resolved settings."""
        from twincluster.config import make_config

        return self._parsed(lambda content: make_config(_required(content, "config")))

    @cached_property
    def shape(self) -> DataShape:
        """Size and statistics of the data that the network was made for."""
        return self._parsed(_shape)

    @cached_property
    def data(self) -> RunData:
        """The source of the inputs."""
        return self._parsed(lambda content: record_of(RunData, _required(content, "data"), "data"))

    @cached_property
    def n_clusters(self) -> int:
        """Number of clusters of the model. Does not parse the other settings."""
        return self._parsed(_n_clusters)

    @property
    def versions(self) -> dict[str, Any]:
        """Versions of the packages that trained the run."""
        versions = self._content.get("versions")
        return dict(versions) if isinstance(versions, dict) else {}

    @cached_property
    def _content(self) -> dict[str, Any]:
        try:
            content = read_json(self._config)
            if isinstance(content, dict):
                return content
            problem = "expected an object"
        except ValueError as error:
            problem = first_line(error)
        raise self._damaged(problem)

    def _parsed(self, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
        """Parse a part of config.json. Raise InputError that names the file and the field if it is invalid."""
        content = self._content
        try:
            parsed = parse(content)
        except WRONG_TYPE as error:
            raise self._damaged(str(error)) from error
        try:
            check_content(content)
        except ValueError as error:
            raise self._damaged(_wrong_field(content) or str(error)) from error
        return parsed

    def _damaged(self, problem: str) -> InputError:
        return InputError(
            f"{self._config} cannot be read as a run's settings ({problem}): restore a copy, or fit again"
        )

    def write_config(
        self, config: Config, shape: DataShape, data: RunData, versions: dict[str, Any] | None = None
    ) -> None:
        """Write config.json. `versions` are those of the packages here unless another run trained the model."""
        content = {
            "config": config.to_dict(),
            "shape": dataclasses.asdict(shape),
            "data": data.to_dict(),
            "versions": versions or _versions(),
        }
        write_json(self._config, content)
        for name in ("config", "shape", "data", "n_clusters", "_content"):
            self.__dict__.pop(name, None)
        self.__dict__ |= {"config": config, "shape": shape, "data": data, "_content": content}

    @property
    def has_choice(self) -> bool:
        """True if the number of clusters was chosen from the data."""
        return self._choice.is_file()

    def write_choice(self, choice: Choice) -> None:
        """Write clusters.json with every number that was tried and, if matplotlib is installed, clusters.png."""
        from twincluster.clustering import plot

        write_json(self._choice, dataclasses.asdict(choice))
        if importlib.util.find_spec("matplotlib"):
            plot(choice, self._choice.with_suffix(".png"))

    def read_choice(self) -> Choice | None:
        """Return how the number of clusters was chosen; None if it was given."""
        from twincluster.clustering import Choice

        if not self.has_choice:
            return None
        try:
            return read_record(self._choice, Choice)
        except ValueError as error:
            raise InputError(f"{self._choice} is damaged ({error}): delete it to continue without it") from error

    def save_model(self, network: torch.nn.Module) -> None:
        """Write model.safetensors: every tensor of the network, on the CPU."""
        from safetensors.torch import save

        tensors = {name: tensor.cpu().contiguous() for name, tensor in network.state_dict().items()}
        with unfinished(self.model) as partial:
            partial.write_bytes(save(tensors, SEAL))  # save_file makes files that only the owner can read
            seal(partial)

    def read_model(self) -> dict[str, torch.Tensor]:
        """Read the tensors of model.safetensors. Raise InputError if they are damaged or not finite."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        if not self.model.is_file():
            raise InputError(f"{self.folder} has no model yet: continue the run with `twincluster fit ... --resume`")
        try:
            tensors = load_file(self.model)
        except SafetensorError as error:
            raise self._damaged_model(first_line(error)) from error
        if odd := [name for name, tensor in tensors.items() if not tensor.isfinite().all()]:
            raise self._damaged_model(f"{odd[0]} contains NaN or infinity")
        self.check_model()
        return tensors

    def check_model(self) -> None:
        """Raise InputError if model.safetensors has changed since it was written."""
        if self.model.is_file():
            try:
                check_seal(self.model)
            except ValueError as error:
                raise self._damaged_model(str(error)) from error

    def _damaged_model(self, problem: str) -> InputError:
        return InputError(
            f"{self.model} and its config.json are damaged or from different runs ({problem}): restore copies that "
            "belong together, or fit again"
        )

    def write_assignments(self, assignments: Assignments) -> None:
        write_table(self._assignments, assignments.to_csv())

    def read_assignments(self) -> Assignments:
        """Read the rows. Raise InputError if they do not fit config.json."""
        if not self._assignments.is_file():
            raise InputError(f"{self.folder} has no assignments yet: continue the run with --resume")
        # read before the table, to which a concurrent update may add rows
        updates, inputs = self.read_updates(), self.data.inputs
        assignments = Assignments.read(self._assignments, is_own=True)
        lowest, highest = assignments.clusters.min(initial=0), assignments.clusters.max(initial=-1)
        count, fewest = len(assignments.paths), inputs
        if updates and (last := updates[-1]).rows is not None and not (last.undo and last.undo.rows == count):
            fewest = last.rows  # fewer are valid only during an undo
        if count < fewest or (count > inputs and not self.is_updated) or lowest < -1 or highest >= self.n_clusters:
            raise InputError(
                f"{self._assignments} does not fit its config.json ({inputs} inputs, {self.n_clusters} clusters): one "
                "is damaged or from another run; restore copies that belong together, or fit again"
            )
        return assignments

    @property
    def is_updated(self) -> bool:
        return self._updates.path.is_file()

    def append_update(self, *records: dict[str, Any]) -> None:
        """Append to updates.jsonl.

        Called without a record before assignments.csv grows, so that a kill in between does not look like damage.
        """
        self._updates.append(lambda rows: [{"number": len(rows) + i, **record} for i, record in enumerate(records)])

    def drop_update(self) -> None:
        """Remove the last update. Without any, the run is as after its training."""
        self._updates.drop_last()

    def read_updates(self) -> list[UpdateRecord]:
        """Return the record of each `twincluster update`."""
        return self._updates.read()

    def append_metrics(self, row: dict[str, Any]) -> None:
        self._metrics.append(lambda _: [row])

    def read_metrics(self) -> list[dict[str, Any]]:
        """Return one row per epoch."""
        return self._metrics.read()

    def truncate_metrics(self, epoch: int) -> None:
        """Remove the rows of `epoch` and later, which a resumed run writes again."""
        self._metrics.rewrite([row for row in self.read_metrics() if row["epoch"] < epoch])

    def mark_outdated(self, what: str) -> None:
        """Write a notice at the top of the report, if there is one, that it is out of date."""
        path = self.folder / REPORT_FILE
        command = f"twincluster report {shlex.quote(str(self.folder))}"
        text = html.escape(f"This page is out of date ({what} since): {command} writes it again.")
        notice = f'<p class="warning" id="since">{text}</p>'.encode(errors="backslashreplace")
        with suppress(OSError):  # the table matters more than the report
            page = path.read_bytes() if path.is_file() else b""
            marked = _NOTICE.sub(lambda _: notice, page, count=1)
            if marked != page:
                write_atomically(path, marked)


def _versions() -> dict[str, str]:
    import torch

    ours = {"twincluster": twincluster.__version__, "torch": torch.__version__, "numpy": np.__version__}
    return ours | {"python": platform.python_version()}


def _epoch_of(row: dict[str, Any], place: int) -> dict[str, Any]:
    """Check a line of metrics.jsonl: the epoch, two lists, and numbers of any name."""
    if (epoch := record_of(_Epoch, row, "it").epoch) != place:
        raise ValueError(f"it has epoch {epoch}, expected {place}")
    for name, value in row.items():
        if name not in ("histogram", "mean_assignment") and not isinstance(value, int | float | None):
            raise ValueError(f"{name[:20]} is not a number")
    return row


def _update_of(record: dict[str, Any], place: int) -> UpdateRecord:
    update = record_of(UpdateRecord, record, "it")
    if update.number not in (None, place):
        raise ValueError(f"its number is {update.number}, expected {place}")
    return update


@dataclass(frozen=True)
class _Epoch:
    epoch: int
    histogram: list[int] | None = None
    mean_assignment: list[float | None] | None = None


def _shape(content: dict[str, Any]) -> DataShape:
    from twincluster.config import DataShape

    shape = record_of(DataShape, _required(content, "shape"), "shape")
    if min(shape.n_samples, shape.side, shape.n_inputs) < 0:
        raise ValueError("the sizes in shape must be whole numbers of 0 or more")
    if not len(shape.mean) == len(shape.std) == shape.n_inputs:
        raise ValueError(f"shape needs {shape.n_inputs} means and standard deviations")
    if not all(map(math.isfinite, (*shape.mean, *shape.std))) or min(shape.std, default=1) <= 0:
        raise ValueError("shape.mean and shape.std must be finite, and standard deviations above 0")
    return shape


def _n_clusters(content: dict[str, Any]) -> int:
    count = _required(content, "config", "n_clusters")
    if type(count) is not int:
        raise ValueError(f"config.n_clusters is {count!r}, expected a whole number")
    return count


def _wrong_field(content: dict[str, Any]) -> str:
    """Return what is wrong with the first field of config.json that has the wrong type, or ""."""
    from twincluster.config import make_config

    parts: tuple[Callable[[], Any], ...] = (
        lambda: make_config(_required(content, "config")), lambda: _shape(content),
        lambda: record_of(RunData, _required(content, "data"), "data"),
    )  # fmt: skip
    for parse in parts:
        try:
            parse()
        except WRONG_TYPE as error:
            return str(error)
    return ""


def _required(content: Any, *path: str) -> Any:
    """Return an entry of nested JSON objects. Raise ValueError that names it if it is missing."""
    for place, name in enumerate(path, start=1):
        if not isinstance(content, dict) or name not in content:
            raise ValueError(f"it has no {'.'.join(path[:place])}")
        content = content[name]
    return content
