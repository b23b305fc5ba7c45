"""Damaged files of a run: every one is an error that names the file, and none gives a wrong answer or loses a record.

Runs of versions without checksums, and runs that were killed between two writes, open.
"""

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from by_hand import change_json, json_rows, strip_checksums
from command_line import TINY, colours, command, worked
from mutations import damaged
from twincluster.clustering import Choice
from twincluster.clustering.choose import Candidate
from twincluster.core import InputError, read_table, write_table
from twincluster.data import open_source
from twincluster.model import Model
from twincluster.run_images import RunImages
from twincluster.runs import Assignments, Drift, Edits, Reference, Run, provenance, read_contents, read_stamps
from twincluster.training import CHECKPOINT_FILE, load_checkpoint

CHOICE = Choice(3, (Candidate(2, 0.5, 0.1), Candidate(3, 0.9, 0.1)), (Candidate(2, 0.5, 0.1),), clear=True, reason="")
DEEP = b"[" * 200_000 + b"]" * 200_000


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with images.npy and run/, which has all files that a run can have."""
    place = tmp_path_factory.mktemp("made")
    np.save(place / "images.npy", colours(24, side=8)[0])
    every_step = ("--set", "train.checkpoint_minutes=0")
    worked("fit", place / "images.npy", "--clusters", 3, "--out", place / "run", *TINY, *every_step)
    Run(place / "run").write_choice(CHOICE)
    for number in range(3):
        np.save(place / f"more {number}.npy", colours(4, side=8, seed=number + 1)[0])
        worked("update", place / "run", place / f"more {number}.npy")
    edits = Edits(Run.open(place / "run"))
    edits.rename(0, "cats")
    edits.move([1, 2], name="odd")
    largest = max(edits.state.sizes(), key=edits.state.sizes().__getitem__)
    edits.split_off(largest, edits.state.members(largest)[:1], RunImages(Run.open(place / "run")).features_of)
    edits.mark_junk([3])
    np.save(place / "new.npy", colours(6, side=8, seed=9)[0])
    worked("predict", place / "run", place / "new.npy", "--out", place / "expected.csv")
    return place


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return tmp_path


@pytest.fixture(params=["with checksums", "of an earlier version"])
def either(request: pytest.FixtureRequest, place: Path) -> Path:
    if request.param == "of an earlier version":
        strip_checksums(place / "run")
    return place


def edited(run: Run) -> Any:
    state = Edits(run).state
    return state.clusters.tolist(), dict(state.names), state.number


def asked(question: Callable[[], Any]) -> tuple[Any, str]:
    """The answer, or a complaint."""
    try:
        return question(), ""
    except InputError as error:
        return None, str(error)


# -- weights -----------------------------------------------------------------------------------------------------------


def complaints_of(place: Path) -> list[str]:
    """What `predict` and `update` say; neither may write a row."""
    table = (place / "run" / "assignments.csv").read_bytes()
    predict = command("predict", place / "run", place / "new.npy", "--out", place / "new.csv")
    found = [predict.complaint, command("update", place / "run", place / "new.npy").complaint]
    assert not (place / "new.csv").exists()
    assert (place / "run" / "assignments.csv").read_bytes() == table
    return found


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_an_error(either: Path, value: float) -> None:
    model = either / "run" / "model.safetensors"
    tensors = load_file(model)
    name = next(name for name, tensor in tensors.items() if tensor.dtype.kind == "f" and tensor.ndim > 1)
    tensors[name].flat[-1] = value
    save_file(tensors, model)
    (either / "run" / "edits.jsonl").unlink()
    for complaint in complaints_of(either):
        assert f"model.safetensors and its config.json are damaged or from different runs ({name} contains" in complaint


def test_zeroed_weights_are_an_error(place: Path) -> None:
    model = place / "run" / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[: -len(whole) // 4] + b"\0" * (len(whole) // 4))
    for complaint in complaints_of(place):
        assert "model.safetensors" in complaint
        assert "its checksum does not match: it is damaged" in complaint


@pytest.mark.parametrize("part", ["centres", "confidence", "distance", "typical"])
def test_a_reference_that_is_not_finite_is_an_error(either: Path, part: str) -> None:
    path = either / "run" / "reference.safetensors"
    tensors = load_file(path)
    tensors[part].flat[0] = np.nan
    save_file(tensors, path)
    complaint = command("update", either / "run", either / "new.npy").complaint
    assert f"reference.safetensors is damaged or from another run ({part} contains NaN or infinity)" in complaint


def test_a_changed_reference_is_an_error(place: Path) -> None:
    path = place / "run" / "reference.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    complaint = command("update", place / "run", place / "new.npy").complaint
    assert "reference.safetensors is damaged or from another run (its checksum does not match" in complaint


def test_outputs_that_are_not_finite_are_an_error(place: Path) -> None:
    run = Run.open(place / "run")
    model = Model.load(run, "cpu")
    images = model.open(open_source(place / "new.npy"))
    with torch.no_grad():
        for weight in model.network.parameters():
            weight.mul_(1e30)
    for apply in (model.predict, model.embed, model.assign):
        with pytest.raises(InputError, match="NaN or infinity for 6 of 6 inputs, such as 0: its model.safetensors"):
            apply(images)


def test_new_images_are_never_alike_because_of_nan() -> None:
    features, probabilities = torch.randn(40, 5), torch.full((40, 2), 0.5)
    reference = Reference.of(features, probabilities)
    for found in (
        Drift.between(reference, torch.full_like(features, torch.nan), probabilities),
        Drift.between(dataclasses.replace(reference, distance=reference.distance * np.nan), features, probabilities),
    ):
        assert found is not None
        assert found.verdict == "different"


# -- logs --------------------------------------------------------------------------------------------------------------


def test_a_damaged_line_costs_no_later_record(either: Path) -> None:
    log = either / "run" / "updates.jsonl"
    first, second, third = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(damage := first + second.replace(b'"', b"?", 1) + third)
    for arguments in ((either / "new.npy",), ("--undo",)):
        complaint = command("update", either / "run", *arguments).complaint
        assert "updates.jsonl is damaged in line 2 (" in complaint
    assert log.read_bytes() == damage


@pytest.mark.parametrize("name", ["updates.jsonl", "metrics.jsonl", "edits.jsonl"])
def test_every_change_of_a_byte_in_a_log_is_noticed(place: Path, name: str) -> None:
    run, log = Run.open(place / "run"), place / "run" / name
    read: Callable[[Run], Any] = {
        "updates.jsonl": Run.read_updates, "metrics.jsonl": Run.read_metrics,
        "edits.jsonl": edited,
    }[name]  # fmt: skip
    whole, wanted = log.read_bytes(), read(run)
    for position in range(0, len(whole), 3):
        changed = bytearray(whole)
        changed[position] ^= 1 << position % 7
        log.write_bytes(changed)
        found, complaint = asked(lambda: read(Run.open(run.folder)))
        if complaint:
            assert f"{name} is damaged in line {whole.count(10, 0, position) + 1} (" in complaint
        else:
            assert found == wanted  # the name of the checksum was changed, all else is as it was


def test_a_half_written_line_is_dropped_and_all_others_stay(either: Path) -> None:
    log = either / "run" / "updates.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + b'{"time": "2026-')
    assert len(Run.open(either / "run").read_updates()) == 3
    worked("update", either / "run", either / "new.npy")
    assert log.read_bytes().startswith(whole)
    assert len(Run.open(either / "run").read_updates()) == 4


def test_a_last_line_without_its_break_stays(place: Path) -> None:
    log = place / "run" / "updates.jsonl"
    rows = json_rows(log)
    log.write_bytes(log.read_bytes()[:-1])
    assert len(Run.open(place / "run").read_updates()) == 3
    worked("update", place / "run", place / "new.npy")
    assert json_rows(log)[:3] == rows


# -- tables ------------------------------------------------------------------------------------------------------------


def table_damage(lines: list[str]) -> dict[str, list[str]]:
    return {
        "cut in the last line": [*lines[:-1], lines[-1][:-4]],
        "a row doubled over another": [*lines[:4], lines[3], *lines[5:]],
        "a field too many": [*lines[:4], lines[4].replace("\n", ",x\n"), *lines[5:]],
        "a field too few": [*lines[:4], lines[4].rpartition(",")[0] + "\n", *lines[5:]],
        "a row too few": lines[:-1],
        "an open quote": [*lines[:4], '"' + lines[4], *lines[5:]],
        "confidence without a cluster": [*lines[:4], "3,,0.5000,ok\n", *lines[5:]],
        "confidence nan": [*lines[:4], "3,1,nan,ok\n", *lines[5:]],
        "no header": lines[1:],
    }


KINDS = list(table_damage(["x"] * 9))


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_table_is_an_error(either: Path, kind: str) -> None:
    table, is_old = either / "run" / "assignments.csv", not (either / "run" / "checksums.json").exists()
    table.write_text("".join(table_damage(table.read_text().splitlines(keepends=True))[kind]))
    (either / "run" / "edits.jsonl").unlink()
    for arguments in (
        ("report", either / "run"), ("export", either / "run", either / "out.csv", "--to", "csv"),
        ("evaluate", either / "run"),
    ):  # fmt: skip
        done = command(*arguments)
        if is_old and kind == "a row doubled over another":
            assert done.status == 0  # nothing tells
        else:
            assert str(table) in done.complaint


def test_a_table_names_the_row_that_is_wrong(tmp_path: Path) -> None:
    for rows, problem in (
        ("a.png,1,0.5,ok\nb.png,1\n", "line 3 has 2 fields, expected 4"),
        ("a.png,1,0.5,ok\nb.png,one,0.5,ok\n", "invalid literal for int"),
        ("a.png,1,0.5,ok\nb.png,1,7,ok\n", "row 2 has the cluster '1' and the confidence '7'"),
        ("a.png,1,0.5,ok\nb.png,1,0.5,o", "ends in the middle of a line"),
    ):
        (tmp_path / "table.csv").write_text("path,cluster,confidence,status\n" + rows)
        with pytest.raises(InputError) as refusal:
            Assignments.read(tmp_path / "table.csv")
        assert problem in str(refusal.value)


def test_damaged_stamps_are_an_error(either: Path) -> None:
    stamps = either / "run" / "stamps.csv"
    whole = stamps.read_text()
    for damage in (whole[:-3], whole.replace(",", ";", 5), "x\n", whole + "one field\n"):
        stamps.write_text(damage)
        complaint = command("update", either / "run", either / "new.npy").complaint
        assert "stamps.csv cannot be read as a table of path, stamp (" in complaint
        assert complaint.endswith("delete stamps.csv to continue without it")


@pytest.mark.parametrize("listed", [True, False])
@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_kill_between_any_two_writes_of_a_table_leaves_one_that_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: bool, writes: int
) -> None:
    table, real, done = tmp_path / "table.csv", Path.replace, []
    write_table(table, "old\n")
    if not listed:
        (tmp_path / "checksums.json").unlink()

    def die(self: Path, target: Path) -> Path:
        if len(done) == writes:
            raise KeyboardInterrupt
        done.append(target.name)
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            write_table(table, "new\n")
    assert read_table(table) == ("new\n" if "table.csv" in done else "old\n", True)
    write_table(table, "newer\n")
    assert read_table(table) == ("newer\n", True)
    table.write_text("old\n")
    assert read_table(table) == ("old\n", False)


# -- JSON of another type ----------------------------------------------------------------------------------------------

WRONG = [
    ("config.json", "predict", lambda content: content["data"].update(inputs="many"), "data.inputs is 'many'"),
    ("config.json", "predict", lambda content: content["shape"].update(mean=None), "shape.mean is None"),
    ("config.json", "predict", lambda content: content["config"].update(train=7), "train is a group of settings"),
    ("config.json", "predict", lambda content: content["config"]["train"].update(epochs=[]), "train.epochs is []"),
    (
        "provenance.json",
        "report",
        lambda content: content.update(sittings=[{"count": "x"}]),
        "sittings[0].count is 'x'",
    ),
    ("clusters.json", "report", lambda content: content.update(candidates=[3]), "clusters.json.candidates[0] is 3"),
]


@pytest.mark.parametrize("name,act,change,field", WRONG, ids=[wrong[3] for wrong in WRONG])
@pytest.mark.parametrize("has_checksum", [False, True])
def test_another_type_names_the_file_and_the_field(
    place: Path, name: str, act: str, change: Callable[[Any], object], field: str, has_checksum: bool
) -> None:
    path = place / "run" / name
    if has_checksum:  # which is wrong then, and says less
        content = json.loads(path.read_text())
        change(content)
        path.write_text(json.dumps(content))
    else:
        change_json(path, change)
    arguments = (place / "new.npy", "--out", place / "new.csv") if act == "predict" else ()
    complaint = command(act, place / "run", *arguments).complaint
    assert str(path) in complaint
    assert field in complaint


LINES = [
    ("metrics.jsonl", 1, {"epoch": "x"}, "it.epoch is 'x'"),
    ("metrics.jsonl", 1, {"histogram": 3}, "it.histogram is 3"),
    ("metrics.jsonl", 1, {"agreement": [1]}, "agreement is not a number"),
    ("updates.jsonl", 2, {"rows": "x"}, "it.rows is 'x'"),
    ("updates.jsonl", 3, {"undo": {"rows": 3, "replaced": [[1, 2]]}}, "it.undo.replaced[0] has 2 items"),
    ("edits.jsonl", 2, {"name": 5}, "edit 1.name is 5"),
    ("edits.jsonl", 3, {"rows": [1, "x"]}, "edit 2.rows[1] is 'x'"),
    ("edits.jsonl", 4, {"parts": [{}]}, "edit 3.parts[0] has no id"),
    ("edits.jsonl", 5, {"edit": None}, "its number is None, expected 4"),
]


@pytest.mark.parametrize("name,number,change,field", LINES, ids=[line[3] for line in LINES])
def test_another_type_in_a_line_names_the_file_the_line_and_the_field(
    either: Path, name: str, number: int, change: dict[str, Any], field: str
) -> None:
    path = either / "run" / name
    lines = path.read_text().splitlines()
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | change)
    path.write_text("\n".join(lines) + "\n")
    complaint = command("report", either / "run").complaint
    assert f"{path} is damaged in line {number} ({field}" in complaint


JSON = ("config.json", "provenance.json", "clusters.json", "checksums.json")
OTHER = (b"[]", b"null", b"7", b'"text"', b"{", DEEP, b'{"config":' * 100_000)


@pytest.mark.parametrize("name", [*JSON, "metrics.jsonl", "updates.jsonl", "edits.jsonl"])
@pytest.mark.parametrize("content", OTHER, ids=range(len(OTHER)))
def test_other_json_is_one_line_that_names_the_file(place: Path, name: str, content: bytes) -> None:
    (place / "run" / name).write_bytes(content + b"\n")
    assert str(place / "run" / name) in command("report", place / "run").complaint


@pytest.mark.parametrize("progress", ["[]", "null", '{"epoch": "x"}', '{"epoch": 1}', "[" * 200_000])
def test_the_header_of_a_checkpoint_is_checked(place: Path, progress: str) -> None:
    path = place / "run" / "checkpoint" / CHECKPOINT_FILE
    save_file(load_file(path), path, {"progress": progress})
    shutil.copy(place / "images.npy", place / "same.npy")
    (place / "run" / "updates.jsonl").unlink()
    (place / "run" / "edits.jsonl").unlink()
    resume = ("fit", place / "images.npy", "--clusters", 3, "--out", place / "run", *TINY[2:], "--resume")
    change_json(place / "run" / "config.json", lambda content: content["data"].update(location=str(resume[1])))
    assert f"{path} is not a checkpoint of twincluster (" in command(*resume, "--epochs", 1).complaint


@pytest.mark.parametrize("text", ["x = " + "[" * 200_000, "train = 5", "a" + ".a" * 200_000 + " = 1", "recipe = 3"])
def test_a_recipe_of_another_type_is_one_line(place: Path, text: str) -> None:
    recipe = place / "own.toml"
    recipe.write_text(text)
    done = command("fit", place / "images.npy", "--clusters", 3, "--recipe", recipe, "--out", place / "x")
    assert done.complaint


# -- runs of earlier versions ------------------------------------------------------------------------------------------


def test_a_run_without_checksums_opens_as_before_and_gets_them(place: Path) -> None:
    run = place / "run"
    strip_checksums(run)
    worked("predict", run, place / "new.npy", "--out", place / "new.csv")
    assert (place / "new.csv").read_bytes() == (place / "expected.csv").read_bytes()
    worked("report", run)
    worked("update", run, place / "new.npy")
    assert set(json.loads((run / "checksums.json").read_text())) == {
        "assignments.csv",
        "stamps.csv",
        "contents.csv",
        "problems.csv",
        "checksum",
    }
    assert ["checksum" in json.loads(line) for line in (run / "updates.jsonl").open()] == [False] * 3 + [True]
    worked("update", run, "--undo")


# -- any damage --------------------------------------------------------------------------------------------------------


def answers(run: Run, images: Any) -> dict[str, tuple[tuple[str, ...], Callable[[], Any]]]:
    """What can be asked of a run, with the files that decide the answer."""

    def table() -> Any:
        found = run.read_assignments()
        return found.paths, found.clusters.tolist(), [str(value) for value in found.confidence], found.status

    def predicted() -> Any:
        model = Model.load(run, "cpu")
        return model.predict(model.open(images)).tolist()

    def saved() -> Any:
        tensors, progress = load_checkpoint(run.checkpoint)
        return progress, {name: tensor.tolist() for name, tensor in tensors.items()}

    tables = ("config.json", "assignments.csv", "checksums.json", "updates.jsonl")
    return {
        "config": (("config.json",), lambda: (run.config, run.shape, run.data, run.n_clusters)),
        "table": (tables, table),
        "edits": ((*tables, "edits.jsonl", "model.safetensors"), lambda: edited(run)),
        "predict": (("config.json", "model.safetensors"), predicted),
        "metrics": (("metrics.jsonl",), run.read_metrics),
        "updates": (("updates.jsonl",), run.read_updates),
        "choice": (("clusters.json",), run.read_choice),
        "stamps": (("stamps.csv", "checksums.json"), lambda: read_stamps(run.folder)),
        "contents": (("contents.csv", "checksums.json"), lambda: read_contents(run.folder)),
        "provenance": (("provenance.json",), lambda: provenance.read(run.folder)),
        "reference": (
            ("reference.safetensors",),
            lambda: [part.tolist() for part in vars(Reference.read(run.folder, 3)).values()],
        ),
        "checkpoint": ((CHECKPOINT_FILE,), saved),
    }


def is_right(name: str, found: Any, wanted: Any, kind: str) -> bool:
    """A log that was cut is one of an earlier moment."""
    if kind != "cut" or name not in ("metrics", "updates", "edits"):
        return bool(found == wanted)
    return bool(found == wanted[: len(found)]) if name != "edits" else found[2] <= wanted[2]


def test_any_damage_gives_the_right_answer_or_one_line_that_names_a_file(place: Path) -> None:
    run = place / "run"
    (run / "report.html").unlink()
    images = open_source(place / "new.npy")
    files = {path: path.read_bytes() for path in sorted(run.rglob("*")) if path.is_file()}
    assert len(files) >= 12
    wanted = {name: ask() for name, (_, ask) in answers(Run.open(run), images).items()}
    refused = 0
    for seed in range(220):
        path, content, kind = damaged(seed, files)
        path.write_bytes(content)
        for name, (read, ask) in answers(Run(run), images).items():
            if path.name in read:
                found, complaint = asked(ask)
                if complaint:
                    assert "\n" not in complaint
                    assert path.name in complaint or "model.safetensors" in complaint, (seed, path.name, complaint)
                    refused += 1
                else:
                    assert is_right(name, found, wanted[name], kind), (seed, path.name, kind, name)
        path.write_bytes(files[path])
    assert refused > 200


# -- what reading costs ------------------------------------------------------------------------------------------------


def test_reading_a_table_imports_few_modules_and_no_torch(place: Path) -> None:
    code = f"""if True:
        import sys
        from twincluster.runs import Run
        assert len(Run.open({str(place / "run")!r}).read_assignments().paths) == 36
        ours = [name for name in sys.modules if name.partition(".")[0] == "twincluster"]
        assert len(ours) <= 1 + 5, ours  # the package itself and five modules in it
        assert not {{"torch", "pandas", "scipy", "sklearn"}} & sys.modules.keys()
    """
    subprocess.run([sys.executable, "-c", code], check=True)


COUNTED = """if True:
    import io, json, os, sys, threading, time, urllib.request
    from twincluster.cli import main
    parsed, loads = [], json.loads
    def count(text, *arguments, **options):
        content = loads(text, *arguments, **options)
        parsed.append(isinstance(content, dict) and "config" in content and "shape" in content)
        return content
    json.loads = count
"""


@pytest.mark.parametrize("act", ["fit", "report", "predict", "evaluate", "update", "export", "onnx"])
def test_a_command_reads_config_json_once(place: Path, act: str) -> None:
    arguments = {
        "fit": ("fit", place / "images.npy", "--clusters", 3, "--out", place / "other", *TINY),
        "report": ("report", place / "run"),
        "predict": ("predict", place / "run", place / "new.npy", "--out", place / "new.csv"),
        "evaluate": ("evaluate", place / "run"),
        "update": ("update", place / "run", place / "new.npy"),
        "export": ("export", place / "run", place / "new.csv", "--to", "csv"),
        "onnx": ("export", place / "run", place / "new.onnx", "--to", "onnx"),
    }[act]
    code = f"""{COUNTED}
    assert main({list(map(str, arguments))!r}) == 0
    print("parsed", sum(parsed))
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout.rpartition("parsed")[2]) <= 1, done.stdout


def test_the_explorer_reads_config_json_once(place: Path) -> None:
    code = f"""{COUNTED}
    class Output(io.StringIO):
        def write(self, text):
            if text.startswith("open http"):
                threading.Thread(target=visit, args=(text.split()[1],)).start()
            return len(text)
    def visit(address):
        while not ask(address, "number")["ready"]:
            time.sleep(0.1)
        ask(address, "state")
        os.write(1, str(sum(parsed)).encode())
        os._exit(0)
    def ask(address, what):
        with urllib.request.urlopen(f"{{address}}api/{{what}}") as answer:
            return loads(answer.read())
    sys.stdout = Output()
    main(["serve", {str(place / "run")!r}, "--port", "0"])
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300)
    assert int(done.stdout) <= 1
