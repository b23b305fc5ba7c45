"""Two processes on one run, image folder or output at a time: both work or one is refused, and nothing is lost."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.folders import run_command
from attacks.kills import make_places
from attacks.workplace import FIT, Fork, import_all, in_fork, restore_images, write_images

COUNT = 1_000
Act = Callable[[], int]


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Start `count` pairs; return figures. `tell` is called with every fault."""
    make_places()
    write_images("other", 9, seed=7)
    import_all()
    moments = random.Random(seed)
    names = list(ACTS)
    figures: dict[str, Any] = {"pairs": 0, "both worked": 0, "one refused": 0, "both refused": 0, "faults": 0}
    for number in range(count):
        pair = moments.choice(names), moments.choice(names)
        _begin(trained=not {"fit", "resume"} & set(pair))
        before = _records()
        first = Fork(ACTS[pair[0]])
        time.sleep(moments.choice((0, 0, 0.05, 0.2)) * moments.random())
        second = Fork(ACTS[pair[1]])
        ended = first.end(), second.end()
        worked = sum(one.status == 0 for one in ended)
        figures["pairs"] += 1
        figures[("both refused", "one refused", "both worked")[worked]] += 1
        faults = [one.fault for one in ended if one.fault]
        if not faults and (fault := _wrong(pair, [one.status == 0 for one in ended], before)):
            faults = [fault]
        if faults:
            figures["faults"] += 1
            tell(f"pairs seed {seed} number {number}: {pair[0]} and {pair[1]}: {faults[0]}")
    return figures


def _begin(trained: bool) -> None:
    shutil.rmtree("run", ignore_errors=True)
    shutil.rmtree("sorted", ignore_errors=True)
    restore_images("small", 200)
    for name in ("new.csv", "all.csv"):
        Path(name).unlink(missing_ok=True)
    if trained:
        shutil.copytree("finished", "run")


def _records() -> dict[str, bytes]:
    logs = (Path("run", name) for name in ("updates.jsonl", "edits.jsonl"))
    return {log.name: log.read_bytes() for log in logs if log.is_file()}


def _wrong(pair: tuple[str, str], worked: list[bool], before: dict[str, bytes]) -> str:
    """What is not as it has to be after a pair has ended; empty where all is."""
    if Path("run/config.json").is_file() and Path("run/assignments.csv").is_file():
        restore_images("small", 200)
        for act in ("predict", "export", "evaluate"):
            after = in_fork(ACTS[act])
            if after.status != 0:
                return f"{act} fails afterwards: {after.err or after.fault}"
    done = [act for act, did in zip(pair, worked, strict=True) if did]
    lines = {name: content.count(b"\n") for name, content in _records().items()}
    if lines.get("edits.jsonl", 0) < done.count("rename"):
        return "an edit is lost"
    if (
        "undo" not in done
        and "fit" not in pair
        and (("update" in done) + ("update other" in done) > lines.get("updates.jsonl", 0))
    ):
        return "an update is lost"
    if left := [str(path) for path in Path().rglob("*.partial") if "cache" not in path.parts]:
        return f"left {left[0]}"
    for name in ("new.csv", "all.csv"):
        if Path(name).is_file() and not Path(name).read_text().endswith("\n"):
            return f"{name} is torn"
    return ""


def _rename() -> int:
    from twincluster.cli import status_of
    from twincluster.runs import Edits, Run

    return status_of(lambda: Edits(Run.open("run")).rename(0, f"name {time.monotonic_ns()}"))


def _resume() -> int:
    resume = ["--resume"] if Path("run/config.json").is_file() else []
    return run_command(*FIT, "--epochs", 3, "--out", "run", *resume)


ACTS: dict[str, Act] = {
    "fit": lambda: run_command(*FIT, "--epochs", 3, "--out", "run"),
    "resume": _resume,
    "update": lambda: run_command("update", "run", "fresh"),
    "update other": lambda: run_command("update", "run", "other"),
    "undo": lambda: run_command("update", "run", "--undo"),
    "rename": _rename,
    "teach": lambda: run_command("teach", "run", "--answers", "answers.csv"),
    "accept": lambda: run_command("teach", "run", "--accept"),
    "report": lambda: run_command("report", "run"),
    "predict": lambda: run_command("predict", "run", "fresh", "--out", "new.csv"),
    "export": lambda: run_command("export", "run", "all.csv", "--to", "csv"),
    "evaluate": lambda: run_command("evaluate", "run", "--json"),
    "move": lambda: run_command("export", "run", "sorted", "--to", "folders", "--mode", "move"),
    "move back": lambda: run_command("export", "run", "sorted", "--to", "folders", "--undo"),
}
