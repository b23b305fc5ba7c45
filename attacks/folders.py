"""Run folders with one damaged file: every command gives the right answer, or one line that names what is wrong."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.workplace import (
    FIT,
    Ended,
    contents,
    import_all,
    in_fork,
    must,
    restore,
    start,
    write_answers,
    write_images,
)
from mutations import damaged

COUNT = 20_000
LOGS = ("edits.jsonl", "updates.jsonl", "metrics.jsonl")
Answer = Callable[[Path], int]


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Damage `count` run folders; return figures. `tell` is called with every fault."""
    make_runs()
    import_all()
    finished, begun = contents(Path("finished")), contents(Path("begun"))
    expected = {"finished": Expected("finished", finished), "begun": Expected("begun", begun)}
    figures = {"mutated folders": 0, "commands": 0, "refused": 0, "right": 0, "faults": 0}
    for number in range(count):
        name, files = ("begun", begun) if number % 5 == 4 else ("finished", finished)
        path, content, kind = damaged(
            seed * 1_000_003 + number, {p: c for p, c in files.items() if p.suffix != ".html"}
        )
        figures["mutated folders"] += 1
        for act, command in COMMANDS[name].items():
            run = Path("damaged")
            restore(run, files)
            (run / path).write_bytes(content)
            ended, answer = _ask(run, command)
            figures["commands"] += 1
            fault = ended.fault
            if not fault and ended.status == 0:
                log = path if path.name in LOGS else None
                if not expected[name].has(act, answer, log):
                    fault = "another answer in silence"
            fault = fault or _lost(run, files, path, act)
            figures["refused" if ended.status == 2 else "right"] += 1
            if fault:
                figures["faults"] += 1
                tell(f"folders seed {seed} number {number}: {act} with {path} ({kind}): {fault}")
    return figures


def make_runs() -> None:
    """A finished run with three updates, three edits and what it was taught, and one that was killed."""
    write_images("small", 200)
    write_images("fresh", 12, seed=1)
    must(*FIT, "--epochs", 3, "--out", "finished")
    for number in range(3):
        write_images(f"more-{number}", 5, seed=number + 2)
        must("update", "finished", f"more-{number}")

    from twincluster.runs import Edits, Run

    edits = Edits(Run.open("finished"))
    edits.rename(0, "cats")
    edits.move([1, 2], name="odd")
    edits.mark_junk([3])
    write_answers("finished")
    must("teach", "finished", "--answers", "answers.csv")
    must("teach", "finished", "--accept")
    with start(*FIT, "--epochs", 6, "--out", "begun") as process:
        while not (metrics := Path("begun/metrics.jsonl")).is_file() or metrics.read_bytes().count(b"\n") < 3:
            time.sleep(0.01)
            assert process.poll() is None, process.stderr and process.stderr.read()
        process.kill()


def _ask(run: Path, command: Answer) -> tuple[Ended, str]:
    Path("answer").unlink(missing_ok=True)
    ended = in_fork(lambda: command(run))
    try:
        return ended, Path("answer").read_text()
    except FileNotFoundError:
        return ended, ""


class Expected:
    """What a command answers without damage, and with fewer lines in a log: a cut between two lines leaves no trace."""

    def __init__(self, name: str, files: dict[Path, bytes]) -> None:
        self.name, self.files = name, files
        self._answers: dict[tuple[str, Path | None, int], str] = {}

    def has(self, act: str, answer: str, log: Path | None) -> bool:
        if answer == self._answer(act, None, 0):
            return True
        lines = self.files[log].count(b"\n") if log else 0
        return any(answer == self._answer(act, log, count) for count in range(lines))

    def _answer(self, act: str, log: Path | None, count: int) -> str:
        if (act, log, count) not in self._answers:
            restore(Path("damaged"), self.files)
            if log:
                Path("damaged", log).write_bytes(b"".join(self.files[log].splitlines(keepends=True)[:count]))
            ended, answer = _ask(Path("damaged"), COMMANDS[self.name][act])
            if ended.status != 0 and not log:
                raise RuntimeError(f"{act} fails without damage: {ended.err}")
            self._answers[act, log, count] = answer or "no answer"
        return self._answers[act, log, count]


def _lost(run: Path, files: dict[Path, bytes], damaged: Path, act: str) -> str:
    """Say which records of an undamaged log a command has removed."""
    for log in (Path(name) for name in LOGS):
        if log in files and log != damaged and act in ("update", "rename", "resume"):
            now = (run / log).read_bytes() if (run / log).is_file() else b""
            if not now.startswith(files[log]) and not (act == "resume" and log.name == "metrics.jsonl"):
                return f"records of {log} were lost"
    return ""


def run_command(*words: object) -> int:
    """Run a command in this process."""
    from twincluster.cli import main

    return main([str(word) for word in words])


def _predict(run: Path) -> int:
    return run_command("predict", run, "fresh", "--out", "answer.csv") or _answer(Path("answer.csv").read_text())


def _export(run: Path) -> int:
    return run_command("export", run, "answer.csv", "--to", "csv") or _answer(Path("answer.csv").read_text())


def _evaluate(run: Path) -> int:
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = run_command("evaluate", run, "--json")
    return status or _answer(said.getvalue())


def _report(run: Path) -> int:
    status = run_command("report", run)
    if status:
        return status
    page = (run / "report.html").read_text()
    data = json.loads(re.search(r'<script[^>]*id="data"[^>]*>(.*?)</script>', page, re.S)[1])  # type: ignore[index]
    kept = {name: data.get(name) for name in ("clusters", "images", "map", "problems", "head")}
    return _answer(json.dumps(kept))


def _update(run: Path) -> int:
    return run_command("update", run, "fresh") or _answer((run / "assignments.csv").read_text())


def _undo(run: Path) -> int:
    (run / "edits.jsonl").unlink()  # which came after the update, and would not let it be undone
    return run_command("update", run, "--undo") or _answer((run / "assignments.csv").read_text())


def _resume(run: Path) -> int:
    return run_command(*FIT, "--epochs", 6, "--out", run, "--resume") or _answer((run / "assignments.csv").read_text())


def _serve(run: Path) -> int:
    """Start the explorer, ask it, end it."""
    from twincluster.pages import listen

    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]

    def visit() -> None:
        def get(path: str) -> Any:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
                return json.load(answer)

        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                if get("/api/number")["ready"]:
                    break
            except OSError:
                pass
            time.sleep(0.02)
        try:
            said = get("/api/state") | {"rows": get("/api/rows?of=all&order=source")}
            said["details"] = get("/api/details?rows=0,1,2,3,4,5,100,199")
            said["pictures"].pop("version")  # has the time of a file in it
            _answer(json.dumps(said))
        except OSError as error:
            print(f"twincluster: the explorer answers with {error}", file=sys.stderr)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=visit, daemon=True).start()
    return run_command("serve", run, "--port", port)


def _rename(run: Path) -> int:
    """Correct the run by Python, then export it."""
    from twincluster.cli import status_of
    from twincluster.runs import Edits, Run

    return status_of(lambda: Edits(Run.open(run)).rename(1, "dogs")) or _export(run)


def _answer(text: str) -> int:
    Path("answer").write_text(text)
    return 0


COMMANDS: dict[str, dict[str, Answer]] = {
    "finished": {
        "predict": _predict, "export": _export, "evaluate": _evaluate, "report": _report, "serve": _serve,
        "update": _update, "undo": _undo, "rename": _rename,
    },
    "begun": {"resume": _resume},
}  # fmt: skip
