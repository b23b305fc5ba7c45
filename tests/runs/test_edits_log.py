"""edits.jsonl as a file: many writers at once, kills in the midst of writing, half lines and damage."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import twincluster
from by_hand import json_rows
from edited_runs import untrained_run
from twincluster.core import InputError
from twincluster.runs import EditLog, Edits, Line, Run

SOURCE = str(Path(twincluster.__file__).parents[1])

WRITER = """if True:
    import sys
    from pathlib import Path
    from twincluster.runs import EditLog
    log, name, count = EditLog(Path(sys.argv[1])), sys.argv[2], int(sys.argv[3])
    print("ready", flush=True)
    for number in range(count):
        line = {"kind": "note", "by": name, "count": number, "filling": "x" * (number % 700)}
        log.append(lambda lines: [line] if lines else [{"kind": "start"}, line])
        print(number, flush=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip


def note(text: str = "") -> Line:
    return {"kind": "note", "text": text}


def log_with(path: Path, count: int) -> EditLog:
    log = EditLog(path)
    log.append(lambda lines: [{"kind": "start"}, *(note(str(number)) for number in range(count))])
    return log


def test_lines_are_numbered_and_have_a_time(tmp_path: Path) -> None:
    log = log_with(tmp_path / "edits.jsonl", 2)
    rows = json_rows(log.path)
    assert rows == log.read()
    assert [row["edit"] for row in rows] == [0, 1, 2]
    assert all(row["time"].endswith("+00:00") for row in rows)


def test_two_processes_lose_no_line_and_tear_none(tmp_path: Path) -> None:
    path, count = tmp_path / "edits.jsonl", 300
    writers = [start_writer(path, name, count) for name in ("one", "two")]
    outputs = [writer.communicate(timeout=240)[0] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], outputs
    rows = json_rows(path)
    assert [row["edit"] for row in rows] == list(range(2 * count + 1))
    for name in ("one", "two"):
        assert [row["count"] for row in rows if row.get("by") == name] == list(range(count))
    assert EditLog(path).read() == rows


def test_a_kill_loses_at_most_the_line_being_written(tmp_path: Path) -> None:
    path, told = tmp_path / "edits.jsonl", 0
    for attempt in range(4):
        writer = start_writer(path, f"writer {attempt}", 10_000)
        assert writer.stdout
        assert writer.stdout.readline() == "ready\n"
        time.sleep(0.1 * attempt)
        writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read()  # all that it had said before it died
        writer.wait()
        told += 1 + rest.count("\n")
        assert (
            told <= EditLog(path).read()[-1]["edit"] <= told + attempt + 1
        )  # a line may be whole before it is told of
    log = EditLog(path)
    lines = log.append(lambda lines: [note("after")])
    assert [line["edit"] for line in lines] == list(range(len(lines)))
    assert json_rows(path) == lines


@pytest.mark.parametrize("torn", [b"{", b'{"edit": 3, "kind": "no', b'{"edit": 3, "parts": [{"id": 0}'])
def test_a_half_line_is_ignored_and_then_removed(tmp_path: Path, torn: bytes) -> None:
    log = log_with(tmp_path / "edits.jsonl", 2)
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + torn)
    for reader in (log, EditLog(log.path)):
        assert [line["edit"] for line in reader.read()] == [0, 1, 2]
    assert log.path.read_bytes() == whole + torn  # reading changes nothing
    lines = EditLog(log.path).append(lambda lines: [note("next")])
    assert [line["edit"] for line in lines] == [0, 1, 2, 3]
    assert log.path.read_bytes().startswith(whole + b'{"edit": 3, ')
    assert log.read() == lines


@pytest.mark.parametrize(
    "end", [b"\0" * 40, b"\xff", b'{"edit": 3, \0\0', b'{"edit": 3}\n', b'{"edit": 3, "kind": "n"}*']
)
def test_an_end_that_no_kill_leaves_is_damage(tmp_path: Path, end: bytes) -> None:
    """A zeroed page, or a changed byte, may stand where whole lines were."""
    path = log_with(tmp_path / "edits.jsonl", 2).path
    path.write_bytes(damaged := path.read_bytes() + end)
    for act in (EditLog(path).read, lambda: EditLog(path).append(lambda lines: [note()])):
        with pytest.raises(InputError, match=r"edits.jsonl is damaged in line 4 \("):
            act()
    assert path.read_bytes() == damaged


def test_every_place_at_which_a_write_can_break_off(tmp_path: Path) -> None:
    whole = log_with(tmp_path / "edits.jsonl", 2).path.read_bytes()
    ends = [place for place, byte in enumerate(whole) if byte == ord("\n")]  # a line may lack the break alone
    for cut in range(len(whole) + 1):
        path = tmp_path / "cut.jsonl"
        path.write_bytes(whole[:cut])
        count = sum(end <= cut for end in ends)
        assert len(EditLog(path).read()) == count
        lines = EditLog(path).append(lambda lines: [note("next")])
        assert [row["edit"] for row in json_rows(path)] == [row["edit"] for row in lines] == list(range(count + 1))


@pytest.mark.parametrize("damage", [b"nonsense\n", b'{"edit": 7, "kind": "note"}\n', b"[1]\n", b"\n"])
def test_damage_in_the_midst_is_told_and_not_written_over(tmp_path: Path, damage: bytes) -> None:
    path = log_with(tmp_path / "edits.jsonl", 2).path
    first, *others = path.read_bytes().splitlines(keepends=True)
    damaged = first + damage + b"".join(others)
    path.write_bytes(damaged)
    with pytest.raises(InputError, match="damaged in line 2"):
        EditLog(path).read()
    with pytest.raises(InputError, match="damaged in line 2"):
        EditLog(path).append(lambda lines: [note()])
    assert path.read_bytes() == damaged


def test_a_file_put_in_its_place_is_noticed(tmp_path: Path) -> None:
    log = log_with(tmp_path / "edits.jsonl", 3)
    log_with(tmp_path / "other.jsonl", 1).path.replace(log.path)
    assert [line["edit"] for line in log.read()] == [0, 1]
    log.path.unlink()
    assert log.read() == []


def test_a_refused_line_leaves_the_file_as_it_is(tmp_path: Path) -> None:
    log = log_with(tmp_path / "edits.jsonl", 1)
    whole = log.path.read_bytes()

    def refuse(lines: list[Line]) -> list[Line]:
        raise InputError("no")

    with pytest.raises(InputError, match="no"):
        log.append(refuse)
    assert log.path.read_bytes() == whole


EDITOR = """if True:
    import sys
    from twincluster.runs import Edits, Run
    edits = Edits(Run.open(sys.argv[1]))
    print("ready", flush=True)
    for number in range(60):
        edits.rename(0, f"0-{number}")
        edits.move([0], name=f"new 0-{number}")
"""


def test_two_editors_of_one_run_both_see_all(tmp_path: Path) -> None:
    run: Run = untrained_run(tmp_path / "run", [0, 1, 2, 0, 1, 2])
    other = subprocess.Popen(
        [sys.executable, "-c", EDITOR, str(run.folder)], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )  # fmt: skip
    assert other.stdout is not None
    with other.stdout as said:
        assert said.readline() == "ready\n"
    edits = Edits(run)
    for number in range(60):
        edits.rename(1, f"1-{number}")
        edits.move([1], name=f"new 1-{number}")
    assert other.wait(timeout=240) == 0
    state = Edits(run).state
    assert state.number == 240
    assert (state.names[0], state.names[1]) == ("0-59", "1-59")
    assert len(state.names) == 3 + 120  # every new cluster has an id of its own
    assert state.names[int(state.home[0])] == "new 0-59"
