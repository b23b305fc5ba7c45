"""Decoding in several processes: the same rows in the same order, whatever happens to a process."""

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

from PIL import Image

from twincluster.images import decode_many as module
from twincluster.images.decode_many import decode_many


def _numbered(folder: Path, count: int) -> list[Path]:
    files = [folder / f"{number:03d}.png" for number in range(count)]
    for number, file in enumerate(files):
        Image.new("RGB", (20, 20), (number % 256, number // 256, 7)).save(file)
    return files


def test_processes_give_what_one_process_gives_in_order(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 120)
    files[50].write_bytes(b"")
    alone = list(decode_many(files, 8, workers=1))
    together = list(decode_many(files, 8, workers=2))
    assert [status for _, status in together] == [status for _, status in alone]
    assert [None if a is None else a.tolist() for a, _ in alone] == [
        None if b is None else b.tolist() for b, _ in together
    ]
    assert alone[50] == (None, "unreadable: empty file")
    assert not multiprocessing.active_children()


def test_a_killed_process_costs_no_row(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 300)
    results = decode_many(files, 8, workers=2)
    found = [next(results)]
    os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)
    found.extend(results)
    assert [status for _, status in found] == ["ok"] * 300
    assert [int(pixels[0, 0, 0]) for pixels, _ in found if pixels is not None] == [n % 256 for n in range(300)]


class Lethal(type(Path())):  # type: ignore[misc]
    """A path that ends the process that decodes it, as a fault in a decoder would."""

    @property
    def suffix(self) -> str:
        if multiprocessing.parent_process() is not None:
            os._exit(139)
        return super().suffix  # type: ignore[no-any-return]


def test_a_file_that_ends_its_process_loses_its_own_row_only(tmp_path: Path) -> None:
    files = _numbered(tmp_path, 150)
    files[40] = Lethal(files[40])
    found = list(decode_many(files, 8, workers=2))
    assert found[40] == (None, "unreadable: decoder crashed")
    assert [int(pixels[0, 0, 0]) for pixels, _ in found if pixels is not None] == [n for n in range(150) if n != 40]


def test_a_script_without_a_main_guard_is_not_run_again_by_the_processes(tmp_path: Path) -> None:
    _numbered(tmp_path, 120)
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from twincluster.images.decode_many import decode_many\n"
        "print('started', flush=True)\n"
        "files = sorted(Path(sys.argv[1]).glob('*.png'))\n"
        "print(sum(status == 'ok' for _, status in decode_many(files, 8, workers=2)))\n"
    )
    command = [sys.executable, str(script), str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, env=_with_source(), check=False)
    assert run.stdout.split() == ["started", "120"], run.stderr


def _count_inside(folder: str) -> int:
    return sum(status == "ok" for _, status in decode_many(sorted(Path(folder).glob("*.png")), 8, workers=2))


def test_inside_a_daemonic_process_it_decodes_there(tmp_path: Path) -> None:
    _numbered(tmp_path, 100)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_count_inside, (str(tmp_path),)) == 100


def _with_source() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
