"""Check that a change of the code changes no result: record hashes of many small runs before it, compare after it.

    python -m benchmarks.same_results record before.json
    python -m benchmarks.same_results record after.json
    python -m benchmarks.same_results compare before.json after.json

Only the command line, the HTTP interface of `twincluster serve` and the estimator are used, so that two versions with
different modules can be compared: set PYTHONPATH to the other one's src. Hashes depend on the processor and on the
versions of torch and numpy; compare only records made on one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WORK = Path(tempfile.gettempdir()) / "twincluster-same-results"  # a fixed place: run folders name their sources
SMALL = (
    "--set",
    "train.backbone=small",
    "--set",
    "train.image_size=16",
    "--set",
    "train.batch_size=32",
    "--epochs",
    "2",
)
NARROW = ("--set", "anchored.hidden=32", "--set", "anchored.n_features=16", "--set", "anchored.instance_queue=64")
TIMES = re.compile(r'"(seconds|time|started|ended|rate|checksum)": ?("[^"]*"|[0-9.e+-]+)')
UNEQUAL = ("seconds", "checksum")  # entries of metrics.jsonl that differ where results do not

RUNS: dict[str, tuple[str, ...]] = {
    "digits": ("digits", "--recipe", "digits", "--epochs", "2"),
    "digits-auto": ("images.npz", "-k", "2-8", "--recipe", "digits", "--epochs", "2", "--seed", "1"),
    "paper": ("images.npz", "--recipe", "paper-digits", "--epochs", "2", "--set", "tcc.instance_queue=64"),
    "repaired": ("images.npz", "--recipe", "repaired-digits", "--epochs", "3"),
    "ablation": ("images.npz", "--recipe", "paper-digits", "--method", "tcc-without-subsetting", "--epochs", "2"),
    "photos-anchored": ("photos", "-k", "3", "--recipe", "default", *SMALL, *NARROW),
    "photos-letterbox": ("photos", "-k", "3", "--recipe", "gpu", *SMALL, *NARROW, "--set", "train.frame=letterbox"),
    "photos-encoded": ("photos", "-k", "3", "--epochs", "2"),
    "photos-finetuned": (
        "few", "-k", "2", "--recipe", "finetune", "--backbone", "pretrained@32", "--epochs", "1", "--seed", "4",
        "--set", "train.batch_size=8", *NARROW,
    ),
    "tiny": ("tiny", "-k", "3", "--epochs", "2"),
    "list": ("photos.csv", "-k", "3", "--recipe", "cpu", *SMALL, *NARROW, "--labels", "photos.csv"),
    "shards": ("shards/s-{000..001}.tar", "-k", "3", "--recipe", "cpu", *SMALL, *NARROW, "--labels", "cls"),
    "rows": ("rows.npy", "-k", "3", "--epochs", "3", "--seed", "2"),
    "moco": ("images.npz", "-k", "5", "--recipe", "moco-cifar10", *SMALL, "--set", "own.queue_size=64"),
    "scan": ("images.npz", "-k", "5", "--recipe", "scan-cifar10", *SMALL, "--set", "own.neighbours=3"),
    "iic": ("images.npz", "-k", "5", "--recipe", "iic-cifar10", *SMALL, "--set", "own.repeats=2"),
    "split": ("images.npz", "-k", "5", "--recipe", "cpu", *SMALL, *NARROW, "--split", "train"),
}  # fmt: skip
EDITS: tuple[dict[str, Any], ...] = (
    {"kind": "rename", "cluster": 0, "name": "first"},
    {"kind": "split", "cluster": 0, "parts": 2},
    {"kind": "merge", "clusters": [1, 2], "name": "both"},
    {"kind": "move", "rows": [3, 4, 5], "name": "chosen"},
    {"kind": "junk", "rows": [7, 8]},
    {"kind": "move", "rows": [7], "to": 1},
    {"kind": "undo"},
)


def main(words: list[str]) -> int:
    match words:
        case ["record", out]:
            Path(out).write_text(json.dumps(record(), indent=1) + "\n")
            return 0
        case ["compare", one, other]:
            return compare(json.loads(Path(one).read_text()), json.loads(Path(other).read_text()))
    print(__doc__)
    return 2


def compare(before: dict[str, str], after: dict[str, str]) -> int:
    """Name every result that differs; the status is 1 where one does."""
    different = [name for name in before | after if before.get(name) != after.get(name)]
    for name in different:
        print(f"differs: {name}: {before.get(name, 'missing')} before, {after.get(name, 'missing')} after")
    print(f"{len(before | after) - len(different)} of {len(before | after)} results are the same")
    return int(bool(different))


def record() -> dict[str, str]:
    """Hashes by name."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    make_sources()
    found: dict[str, str] = {}
    for name, words in RUNS.items():
        twincluster("fit", *words, "--out", f"runs/{name}", "--device", "cpu")
        found |= hashes_of(name)
    for name in ("digits", "photos-anchored", "photos-encoded", "rows"):
        found |= after_training(name)
    for name in ("tiny", "photos-encoded", "rows"):
        found |= edited(name)
    found |= by_estimator()
    return found


def make_sources() -> None:
    """Arrays, folders, a list and shards; the same bytes and times every time."""
    random = np.random.default_rng(0)
    images, labels = pictures(240, 14, random)
    np.savez(WORK / "images.npz", images=images, labels=labels, split=np.arange(240) % 4 == 0)
    rows = random.normal(size=(200, 6)) + 5 * (np.arange(200) % 3)[:, None]
    np.save(WORK / "rows.npy", rows.astype(np.float32))
    np.save(WORK / "later.npy", (rows[:40] + 0.3).astype(np.float32))
    for folder, count, side in (("photos", 72, 40), ("tiny", 90, 16), ("few", 16, 48), ("later", 20, 40)):
        for number, (picture, label) in enumerate(zip(*pictures(count, side, random), strict=True)):
            path = WORK / folder / f"kind{label}" / f"{number:03d}{('.png', '.jpg')[number % 3 == 0]}"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[: side - number % 5]).save(path)
    (WORK / "photos" / "broken.png").write_bytes(b"no picture")
    paths = sorted(path.relative_to(WORK) for path in (WORK / "photos").rglob("*.*"))
    lines = [f"{path},{path.parent.name}" for path in paths if path.parent.name != "photos"]
    (WORK / "photos.csv").write_text("\n".join(["path,label", *lines, "photos/gone.png,kind0"]) + "\n")
    make_shards()
    for path in WORK.rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def make_shards() -> None:
    import io
    import tarfile

    (WORK / "shards").mkdir()
    files = sorted((WORK / "photos").glob("kind*/*"))
    for number, part in enumerate((files[::2], files[1::2])):
        with tarfile.open(WORK / "shards" / f"s-{number:03d}.tar", "w") as archive:
            for place, path in enumerate(part):
                for name, content in (
                    (f"{place}{path.suffix}", path.read_bytes()),
                    (f"{place}.cls", path.parent.name.encode()),
                ):
                    entry = tarfile.TarInfo(name)
                    entry.size = len(content)
                    archive.addfile(entry, io.BytesIO(content))


def pictures(count: int, side: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Noisy stripes in three colours and directions."""
    labels = np.arange(count) % 3
    across, down = np.meshgrid(np.arange(side), np.arange(side))
    pixels = random.integers(0, 90, (count, side, side, 3))
    for image, label in zip(pixels, labels, strict=True):
        image[..., label] += (80 + 80 * np.sin(2 * np.pi * (across, down, across + down)[label] / 7)).astype(int)
    return pixels.astype(np.uint8), labels


def after_training(name: str) -> Iterator[tuple[str, str]] | dict[str, str]:
    """Prediction, the report, ONNX, an update and its undoing."""
    run, later = f"runs/{name}", "later.npy" if name == "rows" else "images.npz" if name == "digits" else "later"
    twincluster("predict", run, later, "--out", f"out/{name}.csv", "--device", "cpu")
    found = {f"{name}: predicted": digest(WORK / f"out/{name}.csv")}
    found[f"{name}: evaluated"] = hash_of(twincluster("evaluate", run, "--json"))
    twincluster("report", run)
    found[f"{name}: report"] = report_digest(WORK / run / "report.html")
    twincluster("export", run, f"out/{name}.onnx", "--to", "onnx")
    found[f"{name}: onnx"] = onnx_digest(WORK / f"out/{name}.onnx", name)
    twincluster("export", run, f"out/{name}.parquet", "--to", "parquet", "--map", "pca")
    found[f"{name}: parquet"] = parquet_digest(WORK / f"out/{name}.parquet")
    twincluster("update", run, later)
    found |= {f"{name} updated: {file}": digest(WORK / run / file) for file in ("assignments.csv", "stamps.csv")}
    found[f"{name} updated: record"] = hash_of(TIMES.sub("", (WORK / run / "updates.jsonl").read_text()))
    twincluster("update", run, "--undo")
    found[f"{name} undone: assignments.csv"] = digest(WORK / run / "assignments.csv")
    return found


def edited(name: str) -> dict[str, str]:
    """A run corrected through the explorer, and what comes of it."""
    run = f"runs/{name}"

    def make_edits(address: str) -> None:
        for change in EDITS:
            edit(address, change)

    with_explorer(run, make_edits)
    lines = [TIMES.sub("", line) for line in (WORK / run / "edits.jsonl").read_text().splitlines()]
    found = {f"{name} edited: log": hash_of("\n".join(lines))}
    twincluster("export", run, f"out/{name}-edited.csv", "--to", "csv")
    found[f"{name} edited: rows"] = digest(WORK / f"out/{name}-edited.csv")
    later = "later.npy" if name == "rows" else "later"
    twincluster("predict", run, later, "--out", f"out/{name}-edited-later.csv", "--device", "cpu")
    found[f"{name} edited: predicted"] = digest(WORK / f"out/{name}-edited-later.csv")
    twincluster("report", run)
    found[f"{name} edited: report"] = report_digest(WORK / run / "report.html")
    return found


def by_estimator() -> dict[str, str]:
    from twincluster.estimator import TwinContrastClustering

    found = {}
    rows, images = np.load(WORK / "rows.npy"), np.load(WORK / "images.npz")["images"]
    settings = {"train": {"backbone": "small", "image_size": 12}, "anchored": {"hidden": 16, "n_features": 8}}
    models = {
        "rows": (TwinContrastClustering(3, epochs=3, random_state=0), rows),
        "images": (TwinContrastClustering(3, recipe="cpu", epochs=2, settings=settings, random_state=1), images),
        "auto": (TwinContrastClustering("auto", epochs=2, random_state=2), rows),
    }
    for name, (model, data) in models.items():
        model.fit(data)
        found[f"estimator {name}: labels"] = hash_of(model.labels_.tolist())
        found[f"estimator {name}: proba"] = hash_of(model.predict_proba(data[::3]).tobytes().hex())
        found[f"estimator {name}: transform"] = hash_of(model.transform(data[::3]).tobytes().hex())
        model.save(WORK / "runs" / f"estimator-{name}")
        found |= hashes_of(f"estimator-{name}")
        again = TwinContrastClustering.load(WORK / "runs" / f"estimator-{name}")
        found[f"estimator {name}: loaded"] = hash_of(again.predict(data[::3]).tolist())
    return found


def hashes_of(name: str) -> dict[str, str]:
    """The files that a run consists of."""
    folder = WORK / "runs" / name
    config = json.loads((folder / "config.json").read_text())
    for entry in ("versions", "checksum"):
        config.pop(entry, None)
    found = {"config.json": hash_of(config), "assignments.csv": digest(folder / "assignments.csv")}
    for file in ("model.safetensors", "reference.safetensors"):
        found[file] = tensors_digest(folder / file)
    for file in ("stamps.csv", "clusters.json"):
        if (folder / file).is_file():
            found[file] = hash_of(TIMES.sub("", (folder / file).read_text()))
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found["metrics.jsonl"] = hash_of([{key: value for key, value in row.items() if key not in UNEQUAL} for row in rows])
    return {f"{name}: {file}": value for file, value in found.items()}


def tensors_digest(path: Path) -> str:
    """Of names and numbers; what else a file holds, such as a checksum, may change."""
    from safetensors.numpy import load_file

    return hash_of({name: tensor.tobytes().hex() for name, tensor in sorted(load_file(path).items())})


def report_digest(path: Path) -> str:
    """The data of a page, without what its making took."""
    text = path.read_text(encoding="utf-8")
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])  # type: ignore[index]
    for name in ("made", "command", "version"):
        data["run"].pop(name, None)
    for curve in data["curves"] if isinstance(data["curves"], list) else []:
        curve.pop("seconds", None)
    return hash_of(TIMES.sub("", json.dumps(data, sort_keys=True)))


def onnx_digest(path: Path, name: str) -> str:
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    given = np.load(WORK / "rows.npy")[:9] if name == "rows" else np.load(WORK / "images.npz")["images"][:9]
    outputs = session.run(None, {session.get_inputs()[0].name: given})
    return hash_of([np.asarray(output).tobytes().hex() for output in outputs])


def parquet_digest(path: Path) -> str:
    from pyarrow import parquet

    return hash_of(parquet.read_table(path).to_pydict())


def with_explorer(run: str, act: Callable[[str], object]) -> None:
    command = [sys.executable, "-m", "twincluster", "serve", run, "--port", "0"]
    with subprocess.Popen(command, cwd=WORK, stdout=subprocess.PIPE, text=True, env=environment()) as server:
        try:
            assert server.stdout is not None
            address = next(word for line in server.stdout for word in line.split() if word.startswith("http"))
            while not ask(address, "api/number")["ready"]:
                pass
            act(address)
        finally:
            server.terminate()


def edit(address: str, change: dict[str, Any]) -> None:
    ask(address, "api/edit", change | {"expected": ask(address, "api/state")["number"]})


def ask(address: str, path: str, content: dict[str, Any] | None = None) -> Any:
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(address + path, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def twincluster(*words: str) -> str:
    command = [sys.executable, "-m", "twincluster", *words]
    done = subprocess.run(command, cwd=WORK, capture_output=True, text=True, env=environment())
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def environment() -> dict[str, str]:
    fixed = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TWINCLUSTER_CACHE": str(WORK / "cache")}
    return os.environ | fixed


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


def hash_of(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


if __name__ == "__main__":
    os.environ |= environment()
    sys.exit(main(sys.argv[1:]))
