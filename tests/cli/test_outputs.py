"""Where a command cannot write, it says so before it works: real commands as a user whom folders can be closed to.

Each of them would fail for another reason a little later, which it tells where it can write: so the check comes first.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import twincluster
from command_line import Done, benchmark, command
from edited_runs import untrained_run
from twincluster.cli.app import _reserved
from twincluster.config import make_config
from twincluster.core import InputError

# The first commands load all that the others, with fewer rights, need.
AS_ANOTHER = """
import json, os, sys
from test_outputs import answer
before, after = json.load(sys.stdin)
said = [answer(arguments) for arguments in before]
os.geteuid() or (os.setgroups([]), os.setgid(65534), os.setuid(65534))
json.dump([said, [answer(arguments) for arguments in after]], sys.stdout)
"""

# RUN has edits and a model that cannot be read. What is written goes into PLACE, by the last ones into the run there.
DAMAGED, ABSENT = "edits.jsonl is damaged in line 1", "nowhere: no such file, folder or data set"
COMMANDS = {
    "fit nowhere --out PLACE/new/run": ABSENT,
    "predict nowhere nowhere --out PLACE/new/a.csv": "nowhere is not a run",
    "export RUN --to csv PLACE/new/a.csv": DAMAGED,
    "export RUN --to parquet PLACE/new/a.parquet": DAMAGED,
    "export RUN --to onnx PLACE/new/a.onnx": "model.safetensors and its config.json are damaged",
    "export RUN --to huggingface PLACE/new": "model.safetensors and its config.json are damaged",
    "export RUN --to folders PLACE/new": DAMAGED,
    "reproduce table2 --data imagenet10 --data-root RUN --out PLACE/new": "imagenet10",
    "benchmarks methods --data nowhere --out PLACE/new": ABSENT,
    "benchmarks growth --recipe nowhere --plot PLACE/a.svg": "nowhere",
}
OF_A_RUN = {
    "report PLACE/run": DAMAGED,
    "report PLACE/run --figures": DAMAGED,
    "update PLACE/run nowhere": ABSENT,
    "update PLACE/run --undo": "has no update to undo",
}
WRITING = COMMANDS | OF_A_RUN


def words(line: str, place: Path) -> list[str]:
    return [word.replace("PLACE", str(place)).replace("RUN", str(place.parent / "run")) for word in line.split()]


def answer(words: list[str]) -> Done:
    """Run a command of twincluster, or one of the benchmarks."""
    return benchmark(*words[1:]) if words[0] == "benchmarks" else command(*words)


def damaged_run(folder: Path) -> None:
    run = untrained_run(folder, [0, 1, 2, 0]).folder
    (run / "edits.jsonl").write_text("nonsense\n" * 2)
    (run / "model.safetensors").write_text("torn")


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder open to any user, as those of pytest are not, with two in it: one to write to, and a closed one."""
    with tempfile.TemporaryDirectory() as made:
        place = Path(made)
        place.chmod(0o755)
        for folder in ("run", "open/run", "closed/run"):
            damaged_run(place / folder)
        for folder in ("closed", "closed/run"):
            (place / folder).chmod(0o555)
        yield place
        for folder in ("closed", "closed/run"):
            (place / folder).chmod(0o755)


@pytest.fixture(scope="module")
def complaints(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """By command: what it says where it can write, and where it cannot."""
    tests = Path(__file__).parents[1]
    paths = list(map(str, (Path(twincluster.__file__).parents[1], tests, tests / "cli", tests.parent)))
    cache = str(tmp_path_factory.mktemp("cache"))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TWINCLUSTER_CACHE": cache}
    asked = [[words(line, place / folder) for line in WRITING] for folder in ("open", "closed")]
    asked[1].append(["demo", "--out", str(place / "closed" / "new")])
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER], input=json.dumps(asked), capture_output=True, text=True, env=environment,
        cwd=place / "open", check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout)
    assert [status for status, _, _ in before + after] == [2] * (2 * len(WRITING) + 1), before + after
    said = [[err for _, _, err in answers] for answers in (before, after)]
    return dict(zip([*WRITING, "demo"], zip([*said[0], ""], said[1], strict=True), strict=True))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_place_that_cannot_be_written_to_is_told_first(
    line: str, complaints: dict[str, tuple[str, str]], place: Path
) -> None:
    elsewhere, here = complaints[line]
    assert COMMANDS[line] in elsewhere
    instead = "--out" if line.startswith(("fit", "reproduce", "benchmarks methods")) else "place"
    said = f"{place / 'closed'} is not writable: check its permissions, or choose another {instead}"
    assert here == f"twincluster: {said}\n"


@pytest.mark.parametrize("line", OF_A_RUN)
def test_a_run_that_cannot_be_written_to_is_told_first(
    line: str, complaints: dict[str, tuple[str, str]], place: Path
) -> None:
    elsewhere, here = complaints[line]
    assert OF_A_RUN[line] in elsewhere
    run = place / "closed" / "run"
    said = f"{run} is not writable: check its permissions, or copy the run to where you may write"
    assert here == f"twincluster: {said}\n"


def test_the_demo_does_not_begin_either(complaints: dict[str, tuple[str, str]], place: Path) -> None:
    said = f"{place / 'closed'} is not writable: check its permissions, or choose another --out"
    assert complaints["demo"][1] == f"twincluster: {said}\n"


def test_nothing_is_left_behind(complaints: dict[str, tuple[str, str]], place: Path) -> None:
    for folder in ("open", "closed"):
        assert os.listdir(place / folder) == ["run"]
        assert sorted(os.listdir(place / folder / "run")) == sorted(os.listdir(place / "run"))


@pytest.mark.parametrize("line", COMMANDS)
def test_a_file_in_the_place_of_a_folder_is_told_first(line: str, tmp_path: Path) -> None:
    damaged_run(tmp_path / "run")
    (tmp_path / "file").touch()
    complaint = answer(words(line, tmp_path / "file")).complaint
    if "--plot" in line:  # which never makes a folder
        assert complaint.endswith("name a .svg, .png or .pdf file, in a folder that exists")
    else:
        assert complaint.startswith(f"{tmp_path / 'file'} is not a folder: choose another ")


def test_a_file_in_the_place_of_the_figures_is_told_first(tmp_path: Path) -> None:
    damaged_run(tmp_path / "run")
    (tmp_path / "run" / "figures").touch()
    complaint = command("report", tmp_path / "run", "--figures").complaint
    assert complaint.startswith(f"{tmp_path / 'run' / 'figures'} is not a folder: ")
    assert DAMAGED in command("report", tmp_path / "run").complaint


def test_what_writes_nothing_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    planned = command("reproduce", "table4", "--out", tmp_path / "file" / "new", "--dry-run")
    assert planned.status == 0
    assert "twincluster fit tiny_imagenet" in planned.out
    damaged_run(tmp_path / "run")
    sorting = ("export", tmp_path / "run", "--to", "folders", tmp_path / "file" / "new", "--dry-run")
    assert DAMAGED in command(*sorting).complaint


def test_bench_methods_checks_the_folder_it_chooses_before_it_decodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/methods-digits").touch()
    monkeypatch.setattr("benchmarks.methods.open_for", pytest.fail)
    complaint = benchmark("methods", "--data", "digits", "--methods", "k-means").complaint
    assert complaint == "runs/methods-digits is not a folder: choose another --out"


def test_of_several_processes_only_the_one_that_writes_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may be on machines that do not have the folder."""

    def reserved(out: Path, resume: bool = False) -> Path:
        with _reserved(out, out, make_config({"train": {"device": "cpu"}}), resume) as folder:
            return folder

    (tmp_path / "file").touch()
    for name, value in {"MASTER_ADDR": "localhost", "WORLD_SIZE": "2", "RANK": "1"}.items():
        monkeypatch.setenv(name, value)
    assert reserved(tmp_path / "file" / "run") == tmp_path / "file" / "run"
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(InputError, match="is not a folder: choose another --out$"):
        reserved(tmp_path / "file" / "run")
    with pytest.raises(InputError, match="exists and is not empty: choose another --out$"):
        reserved(tmp_path)
    (tmp_path / "config.json").touch()
    assert reserved(tmp_path, resume=True) == tmp_path
    monkeypatch.setenv("RANK", "1")
    assert reserved(tmp_path) == tmp_path


def test_a_plot_that_cannot_be_drawn_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growth = ("growth", "--recipe", "nowhere", "--plot")
    (tmp_path / "folder.svg").mkdir()
    assert "name a .svg, .png or .pdf file" in benchmark(*growth, tmp_path / "folder.svg").complaint
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    complaint = benchmark(*growth, tmp_path / "a.svg").complaint
    assert complaint == "--plot needs a package: pip install 'twincluster[plots]'"
