"""How a run was made: when, on what hardware, by which command, and how long it trained.

It contains no user or machine name. No result depends on it, so it has its own file, and equal runs have equal
config.json. torch is imported only when a run is made, because the command is recorded long before.
"""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath

from twincluster.core import (
    InputError,
    available_cores,
    counted,
    duration,
    read_json,
    read_record,
    typed_command,
    write_json,
)
from twincluster.parallel import several

PROVENANCE_FILE = "provenance.json"
_WHOLE_PATH = re.compile(r"(^|[=:])(/.+)$", re.DOTALL)  # at the end of a word


@dataclass(frozen=True)
class Sitting:
    """One command, or one call in Python, that trained a run or a part of it. None means unknown."""

    started: str | None = None  # UTC, ISO 8601
    ended: str | None = None  # None if it was interrupted
    device: str | None = None  # cuda or cpu
    hardware: str | None = None  # name of the GPU, or of the processor
    count: int | None = None  # GPUs, or cores
    threads: int | None = None  # of each process, on the processor
    processes: int | None = None
    command: str | None = None  # as typed, quoted for a shell; None in Python

    def hardware_text(self) -> str:
        """Return the hardware as text."""
        if self.hardware is None:
            return "unknown"
        if self.device == "cuda":
            return f"{self.hardware}" if self.count == 1 else f"{self.count} x {self.hardware}"
        said = f"{self.hardware}, {counted(self.count or 0, 'core')}"
        said += f", {counted(self.threads or 0, 'thread')}" if self.threads != self.count else ""
        return said if self.processes == 1 else f"{said}, {counted(self.processes or 0, 'process')}"


@dataclass(frozen=True)
class Provenance:
    """All sittings of a run; those after the first resumed it."""

    sittings: tuple[Sitting, ...] = ()
    seconds: float | None = None  # of training in all sittings; None until it has finished

    def __bool__(self) -> bool:
        return bool(self.sittings)

    def begin(self, started: str, device: str) -> Provenance:
        """Return a copy with a new, unfinished sitting. `device` is cuda or cpu."""
        return Provenance((*self.sittings, _here(started, device)))

    def end(self, seconds: float) -> Provenance:
        last = self.sittings[-1] if self.sittings else Sitting()  # the file may have been deleted
        return Provenance((*self.sittings[:-1], replace(last, ended=now())), round(seconds, 3))

    def facts(self) -> dict[str, str]:
        """Return the known facts as text, without the commands."""
        if not self.sittings:
            return {}
        began, more, said = self.sittings[0].started, len(self.sittings) - 1, {}
        if began is not None:
            times = {0: "", 1: ", resumed once", 2: ", resumed twice"}.get(more, f", resumed {more} times")
            said["begun"] = f"{str(began)[:10]} {str(began)[11:16]} UTC{times}"
        said["hardware"] = ", then ".join(dict.fromkeys(sitting.hardware_text() for sitting in self.sittings))
        if isinstance(self.seconds, int | float) and math.isfinite(self.seconds):
            said["training time"] = duration(self.seconds)
        return said

    def command(self) -> str | None:
        """Return the first command of the run for shared pages: of absolute paths the last part."""
        command = self.sittings[0].command if self.sittings else None
        try:
            return command and shlex.join(_WHOLE_PATH.sub(_last_part, word) for word in shlex.split(command))
        except (ValueError, AttributeError):  # edited by hand
            return None

    def without_commands(self) -> Provenance:
        return replace(self, sittings=tuple(replace(sitting, command=None) for sitting in self.sittings))


UNKNOWN = Provenance((Sitting(),))  # a run of an earlier version


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read(run: Path) -> Provenance:
    """Read the provenance of a run folder; empty if there is no file."""
    path = run / PROVENANCE_FILE
    try:
        if isinstance(content := read_json(path), dict) and "sittings" not in content:
            raise ValueError("it has no sittings")
        return read_record(path, Provenance)
    except FileNotFoundError:
        return Provenance()
    except ValueError as error:
        raise InputError(f"{path} is damaged ({error}): delete it to continue without it") from None


def write(run: Path, provenance: Provenance) -> None:
    write_json(run / PROVENANCE_FILE, asdict(provenance))


def _here(started: str, device: str) -> Sitting:
    import torch

    processes = int(os.environ["WORLD_SIZE"]) if several() else 1
    on_gpu = device == "cuda"
    return Sitting(
        started=started,
        device=device,
        hardware=torch.cuda.get_device_name() if on_gpu else _processor(),
        count=processes if on_gpu else available_cores(),  # each process takes a GPU
        threads=torch.get_num_threads(),
        processes=processes,
        command=typed_command(),
    )


def _processor() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _last_part(found: re.Match[str]) -> str:
    """photos/ of /home/ann/photos/."""
    return found[1] + (PurePosixPath(found[2]).name or "/") + "/" * (len(found[2]) > 1 and found[2].endswith("/"))
