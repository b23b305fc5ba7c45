"""Decoding in several processes: the same rows in the same order, whatever happens to a process."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from twincluster.data import decode
from twincluster.data import pool as module
from twincluster.data.pool import RowFile, Said, decode_many
from twincluster.data.store import digest_of

SIDE, START = 8, 5  # of the rows; the bytes before the first one
BLACK = np.zeros((SIDE, SIDE, 3), np.uint8)


def _numbered(folder: Path, count: int) -> list[Path]:
    files = [folder / f"{number:03d}.png" for number in range(count)]
    for number, file in enumerate(files):
        Image.new("RGB", (20, 20), (number % 256, number // 256, 7)).save(file)
    return files


def _rows(folder: Path, count: int) -> RowFile:
    """Where the rows go, full of what an earlier try might have left."""
    (folder / "rows").write_bytes(b"start" + b"\7" * (count * BLACK.nbytes))
    return RowFile(folder / "rows", START, SIDE)


def _written(rows: RowFile) -> np.ndarray:
    content = rows.path.read_bytes()
    assert content[:START] == b"start"
    return np.frombuffer(content[START:], np.uint8).reshape(-1, SIDE, SIDE, 3)


def _decoding(files: list[Path], rows: RowFile, workers: int) -> Iterator[Said]:
    return decode_many(list(enumerate(files)), rows, workers)


@pytest.mark.parametrize("workers", [1, 2])
def test_every_row_is_there_and_said_in_order(tmp_path: Path, workers: int) -> None:
    files = _numbered(tmp_path, 120)
    files[50].write_bytes(b"")
    rows = _rows(tmp_path, 120)
    said = list(_decoding(files, rows, workers))
    expected = [decode(file, SIDE)[0] for file in files]
    expected[50] = BLACK
    written = _written(rows)
    assert np.array_equal(written, np.stack([pixels for pixels in expected if pixels is not None]))
    assert [status for status, _ in said] == ["ok"] * 50 + ["unreadable: empty file"] + ["ok"] * 69
    assert [digest for _, digest in said] == [digest_of(row) for row in written]
    assert not multiprocessing.active_children()


def test_rows_that_were_not_asked_for_stay(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 3)
    rows = _rows(tmp_path, 5)
    assert [status for status, _ in decode_many([(4, files[2]), (1, files[0])], rows, 1)] == ["ok", "ok"]
    assert _written(rows)[:, 0, 0, 0].tolist() == [7, 0, 7, 7, 2]


def test_what_is_said_of_a_row_is_said_after_it_was_written(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 120)
    rows = _rows(tmp_path, 120)
    for row, (_, digest) in enumerate(_decoding(files, rows, 2)):
        assert digest_of(_written(rows)[row]) == digest


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_of_rows_that_is_gone_is_not_made_again(tmp_path: Path, workers: int) -> None:
    files = _numbered(tmp_path, 120)
    with pytest.raises(FileNotFoundError):
        list(_decoding(files, RowFile(tmp_path / "rows", START, SIDE), workers))
    assert not (tmp_path / "rows").exists()
    assert not multiprocessing.active_children()


def test_a_killed_process_costs_no_row(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 300)
    rows = _rows(tmp_path, 300)
    results = _decoding(files, rows, 2)
    said = [next(results)]
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    said.extend(results)
    assert [status for status, _ in said] == ["ok"] * 300
    assert _written(rows)[:, 0, 0, 0].tolist() == [n % 256 for n in range(300)]


class Lethal(type(Path())):  # type: ignore[misc]
    """A path that ends the process that decodes it, as a fault in a decoder would."""

    def __fspath__(self) -> str:
        if multiprocessing.parent_process() is not None:
            os._exit(139)
        return super().__fspath__()  # type: ignore[no-any-return]


def test_a_file_that_ends_its_process_loses_its_own_row_only(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 150)
    files[40] = Lethal(files[40])
    rows = _rows(tmp_path, 150)
    said = list(_decoding(files, rows, 2))
    assert said[40] == ("unreadable: decoder crashed", digest_of(BLACK))
    assert [status for status, _ in said].count("ok") == 149
    assert _written(rows)[:, 0, 0, 0].tolist() == [n if n != 40 else 0 for n in range(150)]


class Hungry(type(Path())):  # type: ignore[misc]
    """A path that asks for more memory than a process may have that decodes."""

    def __fspath__(self) -> str:
        if multiprocessing.parent_process() is not None:
            bytearray(700_000_000)
        return super().__fspath__()  # type: ignore[no-any-return]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the memory of a process")
def test_the_system_refuses_a_process_more_memory_than_an_image_may_take(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 120)
    files[40] = Hungry(files[40])
    said = list(_decoding(files, _rows(tmp_path, 120), 2))
    assert said[40] == ("too_large", digest_of(BLACK))
    assert [status for status, _ in said].count("ok") == 119


def test_who_takes_much_waits_for_others() -> None:
    context = multiprocessing.get_context("spawn")
    room = module._Room(4, context.Semaphore(4), context.Lock())
    taken, most, count = 0, 0, threading.Lock()

    def decode(units: int) -> None:
        nonlocal taken, most
        for _ in range(20):
            with room.admit(units * module._UNIT):
                with count:
                    taken += units
                    most = max(most, taken)
                time.sleep(0.001)
                with count:
                    taken -= units

    threads = [threading.Thread(target=decode, args=(units,)) for units in (1, 2, 3, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (taken, most) == (0, 4)


def test_there_is_always_room_for_one_image_of_the_largest_kind() -> None:
    units = (module._TOGETHER - module._MOST_WORKERS * module._RESTING) // module._UNIT
    assert units * module._UNIT >= module.LARGEST


def test_a_script_without_a_main_guard_is_not_run_again_by_the_processes(tmp_path: Path) -> None:
    _numbered(tmp_path, 120)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from twincluster.data.pool import RowFile, decode_many\n"
        "print('started', flush=True)\n"
        "files = sorted(Path(sys.argv[1]).glob('*.png'))\n"
        "rows = RowFile(Path(sys.argv[1], 'rows'), 5, 8)\n"
        "print(sum(status == 'ok' for status, _ in decode_many(list(enumerate(files)), rows, workers=2)))\n"
    )
    _rows(tmp_path, 120)
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_with_source(), check=False)
    assert run.stdout.split() == ["started", "120"], run.stderr


def _count_inside(folder: str) -> int:
    files, rows = sorted(Path(folder).glob("*.png")), _rows(Path(folder), 100)
    return sum(status == "ok" for status, _ in _decoding(files, rows, 2))


def test_inside_a_daemonic_process_it_decodes_there(tmp_path: Path) -> None:
    _numbered(tmp_path, 100)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_count_inside, (str(tmp_path),)) == 100


def _with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
