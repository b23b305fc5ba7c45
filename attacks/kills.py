"""Kills at random moments: the same command then goes on, and its result is that of a run that nobody killed."""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.folders import run_command
from attacks.workplace import FIT, Fork, import_all, in_fork, must, restore_images, write_answers, write_images

COUNT = 300
Check = Callable[[], str]  # what is wrong; empty where nothing is


@dataclass(frozen=True)
class Job:
    """What is killed. `begin` makes the place as it is before, `goes_on` what a user does after a kill."""

    begin: Callable[[], None]
    act: Callable[[], int]
    goes_on: Callable[[], int]
    result: Callable[[], Any]


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Kill `count` commands; return figures. `tell` is called with every fault."""
    make_places()
    import_all()
    moments = random.Random(seed)
    expected, longest = {}, {}
    for name, job in JOBS.items():
        job.begin()
        began = time.monotonic()
        ended = in_fork(job.act)
        longest[name] = time.monotonic() - began
        if ended.status != 0:
            raise RuntimeError(f"{name} fails without a kill: {ended.err}")
        expected[name] = job.result()
    figures: dict[str, Any] = {"kills": 0, "too late": 0, "faults": 0} | {f"kills of {name}": 0 for name in JOBS}
    while figures["kills"] < count:
        name = list(JOBS)[figures["kills"] % len(JOBS)]
        job, after = JOBS[name], moments.random() * longest[name]
        job.begin()
        if Fork(job.act).kill(after).status is not None:
            figures["too late"] += 1
            longest[name] = max(0.05, 0.9 * longest[name])
            continue
        figures["kills"] += 1
        figures[f"kills of {name}"] += 1
        ended = in_fork(job.goes_on)
        fault = ended.fault or (f"refused: {ended.err}" if ended.status else "")
        if not fault and job.result() != expected[name]:
            fault = "another result than without the kill"
        if not fault and (left := [str(path) for path in Path().rglob("*.partial") if "cache" not in path.parts]):
            fault = f"left {', '.join(left)}"
        if fault:
            figures["faults"] += 1
            tell(f"kills seed {seed} number {figures['kills']}: {name} after {after:.3f} s: {fault}")
    return figures | _serve(seed, max(1, count // len(JOBS)), tell)


def make_places() -> None:
    """Make images, a finished run, an updated one, and answers about its images."""
    write_images("small", 200)
    write_images("fresh", 12, seed=1)
    must(*FIT, "--epochs", 3, "--out", "finished")
    shutil.copytree("finished", "updated")
    must("update", "updated", "fresh")
    write_answers("finished")


def _copied(folder: str) -> None:
    shutil.rmtree("run", ignore_errors=True)
    shutil.copytree(folder, "run")


def _nothing() -> None:
    shutil.rmtree("run", ignore_errors=True)


def _table() -> str:
    return Path("run/assignments.csv").read_text()


def _fit() -> int:
    return run_command(*FIT, "--epochs", 3, "--out", "run")


def _resume() -> int:
    begun = Path("run/config.json").is_file()
    if not begun and Path("run").is_dir():  # killed before anything was trained: what is left has to be free
        return _fit()
    return run_command(*FIT, "--epochs", 3, "--out", "run", *(["--resume"] if begun else []))


def _undo() -> int:
    return run_command("update", "run", "--undo")


def _undo_again() -> int:
    return _undo() if Path("run/updates.jsonl").is_file() or len(_table().splitlines()) > 201 else 0


def _unsorted() -> None:
    _copied("finished")
    shutil.rmtree("sorted", ignore_errors=True)
    restore_images("small", 200)


def _move() -> int:
    return run_command("export", "run", "sorted", "--to", "folders", "--mode", "move")


def _sorted() -> Any:
    return sorted(str(path) for top in ("sorted", "small") for path in Path(top).rglob("*.png"))


def _moved() -> None:
    _unsorted()
    ended = in_fork(_move)
    if ended.status:
        raise RuntimeError(ended.err)


def _move_back() -> int:
    return run_command("export", "run", "sorted", "--to", "folders", "--undo")


def _move_back_again() -> int:
    return _move_back() if any(Path("sorted").rglob("*.png")) else 0


def _export() -> int:
    return run_command("export", "run", "all.csv", "--to", "csv")


def _teach() -> int:
    return run_command("teach", "run", "--answers", "answers.csv") or run_command("teach", "run", "--accept")


def _teach_again() -> int:
    """Answers are given again; the first may have been recorded, and the proposals accepted, before the kill."""
    status = run_command("teach", "run", "--answers", "answers.csv")
    return status or (run_command("teach", "run", "--accept") and 0)


def _taught() -> Any:
    in_fork(_export)
    return Path("all.csv").read_text()


JOBS = {
    "fit": Job(_nothing, _fit, _resume, _table),
    "update": Job(lambda: _copied("finished"), lambda: run_command("update", "run", "fresh"),
                  lambda: run_command("update", "run", "fresh"), _table),
    "undo": Job(lambda: _copied("updated"), _undo, _undo_again, _table),
    "move": Job(_unsorted, _move, _move, _sorted),
    "move back": Job(_moved, _move_back, _move_back_again, _sorted),
    "export": Job(lambda: _copied("updated"), _export, _export, lambda: Path("all.csv").read_text()),
    "report": Job(lambda: _copied("finished"), lambda: run_command("report", "run"),
                  lambda: run_command("report", "run"), lambda: len(Path("run/report.html").read_text()) > 100_000),
    "teach": Job(lambda: _copied("finished"), _teach, _teach_again, _taught),
}  # fmt: skip


def _serve(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, int]:
    """Kill explorers under edits: each edit that was acknowledged is kept."""
    from twincluster.pages import listen
    from twincluster.runs import Edits, Run

    moments = random.Random(seed)
    faults = acknowledged = 0
    for number in range(count):
        _copied("finished")
        with listen("127.0.0.1", 0) as free:
            port = free.getsockname()[1]
        server = Fork(lambda port=port: run_command("serve", "run", "--port", port))  # type: ignore[misc]
        done: list[int] = []
        threading.Thread(target=_edit, args=(port, done), daemon=True).start()
        while not done and time.monotonic() < server.began + 60:
            time.sleep(0.005)
        server.kill(time.monotonic() - server.began + moments.random())
        kept = Edits(Run.open("run")).state.number
        acknowledged += len(done)
        if not done or kept < done[-1]:
            faults += 1
            tell(f"kills seed {seed}: explorer {number} acknowledged {done[-1:]} edits, {kept} are kept")
    return {"kills of serve under edits": count, "edits acknowledged": acknowledged, "faults of serve": faults}


def _edit(port: int, done: list[int]) -> None:
    """Rename a cluster again and again, until the explorer is gone."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            body = {"kind": "rename", "expected": done[-1] if done else 0, "cluster": 0, "name": f"name {len(done)}"}
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/api/edit", json.dumps(body).encode(), {"content-type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=10) as answer:
                done.append(json.load(answer)["number"])
        except OSError:
            if done:
                return
            time.sleep(0.02)
