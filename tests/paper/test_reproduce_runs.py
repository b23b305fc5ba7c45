"""Tables and figures from real, tiny trainings: done once, kept, shared, refused where they are of something else."""

import csv
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from command_line import command, worked
from twincluster.cli import main
from twincluster.clustering import score
from twincluster.config import differences, load_recipe, make_config
from twincluster.data import open_images, open_source
from twincluster.pages import HUES
from twincluster.paper import Asked, course
from twincluster.paper import trainings as running
from twincluster.paper.figures import COLOURS, draw_moons, sweep
from twincluster.paper.trainings import by_own_paper, by_paper
from twincluster.resolve import resolve
from twincluster.runs import Run, provenance

FEW = ("--data", "cifar10", "--epochs", 2, "--set", "train.backbone=small", "--set", "train.batch_size=16")


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which CIFAR-10 has forty images of 8 pixels, and trainings in this process, to save its start."""
    random = np.random.default_rng(0)
    folder = tmp_path / "sets" / "cifar10"
    folder.mkdir(parents=True)
    labels = np.arange(40) % 10
    images = random.integers(0, 100, (40, 8, 8, 3)) + 15 * labels[:, None, None, None]
    np.save(folder / "images.npy", images.astype(np.uint8))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "split.npy", np.repeat([0, 1], [30, 10]).astype(np.int8))
    monkeypatch.setattr(running, "run_child", lambda command, log: main(list(command[3:])))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sets"


def cells(file: Path) -> list[list[str]]:
    """Of a table in Markdown, without the line below its head."""
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("|")]
    return [line[2:-2].split(" | ") for line in lines if "---" not in line]


def has_colours(file: Path, colours: Sequence[str]) -> bool:
    with Image.open(file) as picture:
        seen = {colour for _, colour in picture.convert("RGB").getcolors(1 << 24)}
    return all(ImageColor.getrgb(colour) in seen for colour in colours)


def test_a_table_beside_what_was_published(sets: Path, tmp_path: Path) -> None:
    said = worked("reproduce", "table5", *FEW, "--seeds", 2, "--data-root", sets, "--out", tmp_path / "out").out
    assert said.startswith("6 trainings, about ")
    assert "on this machine, by a rough guess; the longest is " in said
    assert re.search(r"\n6 of 6: tcc on cifar10, seed 1: ACC 0\.\d{3}  NMI 0\.\d{3}  ARI -?0\.\d{3} in \d+ s\n", said)
    log = (tmp_path / "out" / "tcc-1.log").read_text()
    assert log.startswith("twincluster fit cifar10 --recipe paper-cifar10")
    hardware = provenance.read(tmp_path / "out" / "tcc-0").facts()["hardware"]
    assert f"measured with seeds 0 to 1: mean (lowest to highest), on {hardware}\n" in said
    head, *rows = cells(tmp_path / "out" / "table5.md")
    assert head[:3] == ["", "published, CIFAR-10", "measured, cifar10"]
    assert [row[:2] for row in rows] == [
        ["DeepCluster-V2", ".727 / .652 / .589"], ["SwAV", ".796 / .711 / .649"], ["TCC", ".906 / .790 / .733"],
    ]  # fmt: skip
    truth = open_source("cifar10", root=sets).labels
    assert truth is not None
    found = [Run(tmp_path / "out" / f"tcc-{seed}").read_assignments().clusters for seed in (0, 1)]
    low, high = sorted(score(truth, clusters).acc for clusters in found)
    assert rows[2][2].startswith(f"{(low + high) / 2:.3f} ({low:.3f} to {high:.3f})".replace("0.", "."))
    assert rows[2][3] == "2"
    with (tmp_path / "out" / "table5.csv").open(encoding="utf-8", newline="") as file:
        numbers = {row["name"]: row for row in csv.DictReader(file)}["TCC"]
    assert (numbers["published_nmi"], numbers["seeds"], numbers["epochs"]) == ("0.79", "2", "2")
    assert (float(numbers["acc_min"]), float(numbers["acc_max"])) == (low, high)
    assert float(numbers["acc_mean"]) == pytest.approx((low + high) / 2)
    assert (tmp_path / "out" / "table5.md").read_text() in said + "\n"


def test_several_sets_with_a_common_budget(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are announced before the first begins, counted together, and each has a folder and a table."""
    begun = []
    monkeypatch.setattr(running, "run_child", lambda command, log: begun.append(list(command)) or 2)
    words = ("reproduce", "table5", "--data", "cifar10, digits", "--minutes", 0.5, "--data-root", sets)
    said = worked(*words, "--out", tmp_path / "out").out
    assert said.startswith("6 trainings, about 3 min 0 s\n1 of 6: deepcluster_v2 on cifar10, seed 0: failed")
    assert "\n6 of 6: tcc on digits, seed 0: failed with status 2, see tcc-0.log\n" in said
    assert all(command[command.index("--minutes") + 1] == "0.5" for command in begun)
    for data in ("cifar10", "digits"):
        table = (tmp_path / "out" / data / "table5.md").read_text()
        assert table in said + "\n"
        assert f"measured, {data}" in table
    assert worked(*words, "--dry-run").out.count("runs/reproduce-digits/") == 3
    assert "is not about one set" in command("reproduce", "figure1", "--data", "cifar10,digits").complaint


def test_the_line_of_all_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal it shows the training that runs; trainings that were there do not count for the pace."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(course, "WAIT", 0.01)
    terminal, clock = Terminal(), [100.0]
    monkeypatch.setattr(course.time, "monotonic", lambda: clock[0])
    line = course.Course([0.0, 60.0, 120.0], terminal)
    line.end("first: kept")
    folder = tmp_path / "second-0"
    folder.mkdir()
    (folder / "metrics.jsonl").write_text('{"progress": 0.1}\n{"progress": 0.5}\n')
    with line.training("second", folder):
        clock[0] += 40
        while "50%" not in terminal.getvalue():
            threading.Event().wait(0.01)
    assert "\r2 of 3: second, 50%; about 3 min 20 s left in all" in terminal.getvalue()  # 40 s for 30 of 180
    clock[0] += 20
    line.end("second: done")
    assert terminal.getvalue().endswith("\r2 of 3: second: done; about 2 min 0 s left\n")


def test_the_guess_follows_the_work() -> None:
    config = make_config(load_recipe("dccm-cifar10").settings)
    plans = [course.Plan("dccm", config, 60_000, False), course.Plan("half", replace(
        config, train=replace(config.train, epochs=2000)), 60_000, False)]  # fmt: skip
    small = [
        replace(plan, config=replace(plan.config, train=replace(plan.config.train, backbone="small"))) for plan in plans
    ]
    seconds = course.expected_seconds(small)
    assert seconds[0] == pytest.approx(2 * seconds[1])
    said = course.announcement(small, seconds)
    assert "the longest is dccm: 7,500,000 steps, about " in said
    durations = [course.long_duration(seconds) for seconds in (90, 7200, 10 * 86400)]
    assert durations == ["1 min 30 s", "2 h 0 min", "10 days"]


def test_runs_are_kept_and_shared(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = (*FEW, "--data-root", sets, "--out", tmp_path / "out")
    worked("reproduce", "figure5", *few)
    assert has_colours(tmp_path / "out" / "figure5.png", HUES[:2])  # a hue for each method
    monkeypatch.setattr(running, "run_child", lambda command, log: pytest.fail("it was trained already"))
    for name in ("figure3", "figure6"):
        assert "1 of 1: tcc on cifar10, seed 0: kept\n" in worked("reproduce", name, *few).out
        assert (tmp_path / "out" / f"{name}.svg").is_file()
    assert worked("reproduce", "figure5", *few, "--dry-run").out.strip() == ""
    complaint = command("reproduce", "figure6", *few, "--set", "tcc.alpha=0.25").complaint
    assert "was trained with another tcc.alpha: choose another --out" in complaint


def test_what_fails_is_a_note(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        running, "run_child", lambda command, log: 2 if "swav-cifar10" in command else main(command[3:])
    )
    worked("reproduce", "table5", *FEW, "--data-root", sets, "--out", tmp_path / "out")
    rows = {row[0]: row for row in cells(tmp_path / "out" / "table5.md")}
    assert rows["SwAV"][2:] == ["-", "", "", "seed 0 failed with status 2, see swav-0.log"]
    assert (
        'SwAV,0.796,0.711,0.649,0,,,,,,,,,,,,"seed 0 failed with status 2, see swav-0.log"\n'
        in (tmp_path / "out" / "table5.csv").read_text()
    )
    assert rows["TCC"][5] == ""
    monkeypatch.setattr(running, "run_child", lambda command, log: 2)
    complaint = command("reproduce", "figure6", *FEW, "--data-root", sets, "--out", tmp_path / "none").complaint
    assert complaint.startswith("tcc failed with status 2, see tcc-0.log, and the figure needs it")


def test_commands_stand_for_the_settings(sets: Path, tmp_path: Path) -> None:
    """What is typed and what is compared with are made separately: a run by the one is taken for the other."""
    settings = ("train.backbone=small", "train.batch_size=16")
    asked = Asked("cifar10", tmp_path / "out", epochs=1, settings=settings, root=sets)
    images = open_images(open_source("cifar10", root=sets))
    for training in (by_paper("cifar10", "tcc-without-l1"), by_own_paper("cifar10", "moco"), sweep("cifar10")[0]):
        assert main(training.command(asked, 3)[1:]) == 0
        found = Run(training.folder(asked, 3)).config
        assert differences(found, resolve(training.config(asked, 3), images)) == []
        assert found.seed == 3


def test_peers_follow_the_set() -> None:
    training = by_own_paper("imagenet_dogs", "deepcluster_v2")
    assert training.recipe == "deepcluster-v2-cifar10"
    config = training.config(Asked("imagenet_dogs", Path("out")), 0)
    assert (config.n_clusters, config.train.image_size) == (15, 96)
    # with a recipe of its own paper for the set, that one, and for sets that are like it
    asked = {data: Asked(data, Path("out")) for data in ("stl10", "imagenet10", "imagenet_dogs", "cifar100")}
    peers = {data: by_own_paper(data, "iic") for data in asked}
    assert [peer.recipe for peer in peers.values()] == ["iic-stl10", "iic-stl10", "iic-stl10", "iic-cifar100"]
    configs = {data: peer.config(asked[data], 0) for data, peer in peers.items()}
    assert {(c.n_clusters, c.train.image_size) for c in configs.values()} == {(10, 64), (10, 96), (15, 96), (20, 32)}
    assert by_own_paper("imagenet_dogs", "cc").recipe == "cc-imagenet10"
    assert by_own_paper("tiny_imagenet", "cc").recipe == "cc-cifar10"
    config = by_own_paper("digits", "dccs").config(Asked("digits", Path("out")), 0)
    # with the optimiser of digits it diverges
    assert config.optimiser == make_config(load_recipe("dccs-cifar10").settings).optimiser
    assert config.train == make_config(load_recipe("digits").settings).train


def test_the_sweep_changes_one_setting_at_a_time() -> None:
    asked = Asked("cifar10", Path("out"))
    base = by_paper("cifar10").config(asked, 0)
    changed = [differences(base, training.config(asked, 0)) for training in sweep("cifar10")]
    assert sorted(map(len, changed)) == [0] + [1] * (len(changed) - 1)
    assert {name for names in changed for name in names} == {
        "tcc.alpha", "tcc.gumbel_temperature", "tcc.cluster_queue", "train.batch_size",
    }  # fmt: skip


def test_commands_for_a_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = worked("reproduce", "table3", "--data", "digits", "--seeds", 2, "--dry-run").out.splitlines()
    assert len(lines) == 18
    assert shlex.split(lines[-1]) == [
        "twincluster", "fit", "digits", "--recipe", "paper-digits", "--seed", "1",
        "--out", "runs/reproduce-digits/tcc-1",
    ]  # fmt: skip
    assert not (tmp_path / "runs").exists()


def test_commands_for_a_queue_go_on_with_what_was_begun(sets: Path, tmp_path: Path) -> None:
    few = ("figure5", *FEW, "--data-root", sets, "--out", tmp_path / "a folder")
    first, second = worked("reproduce", *few, "--dry-run").out.splitlines()
    assert main(shlex.split(first)[1:]) == 0
    (tmp_path / "a folder" / "tcc-0" / "assignments.csv").unlink()  # as if it had been interrupted
    assert worked("reproduce", *few, "--dry-run").out.splitlines() == [f"{first} --resume", second]
    assert main([*shlex.split(first)[1:], "--resume"]) == 0
    assert worked("reproduce", *few, "--dry-run").out.splitlines() == [second]
    complaint = command("reproduce", *few, "--dry-run", "--set", "tcc.alpha=0.25").complaint
    assert "tcc.alpha has no effect on the method mice" in complaint
    complaint = command("reproduce", *few, "--dry-run", "--set", "augment.flip=0").complaint
    assert "was trained with another augment.flip" in complaint


def test_classics_stand_in_table_2(sets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "run_child", lambda command, log: 2)  # twenty trainings are not what this is about
    worked("reproduce", "table2", *FEW, "--data-root", sets, "--out", tmp_path / "out")
    rows = {row[0]: row for row in cells(tmp_path / "out" / "table2.md")}
    assert rows["AC"][1] == ".228 / .105 / .065"
    assert rows["AC"][5].startswith("by Ward's linkage: the paper does not say by which; on pixels")
    assert rows["SCL"][1] == ".733 / .669 / .568"
    assert rows["SCL"][5].startswith("published in a comment of the paper's LaTeX source; its formulas were not found")
    assert rows["AC, by average linkage"][1] == "-"
    assert 0.1 <= float(rows["AC"][2].split(" / ")[0]) <= 1
    assert rows["DDC"][5] == "its formulas were not found: --method ddc is our reading, which is not compared"
    assert rows["twincluster, by default"][1] == "-"
    worked("reproduce", "table2", *FEW, "--seeds", 2, "--data-root", sets, "--out", tmp_path / "out")
    assert " to " in {row[0]: row for row in cells(tmp_path / "out" / "table2.md")}["AC"][2]
    worked("reproduce", "table2", *FEW, "--data-root", sets, "--out", tmp_path / "out")
    again = {row[0]: row for row in cells(tmp_path / "out" / "table2.md")}
    assert again["AC"] == rows["AC"]  # of seed 0 alone, whatever else was measured before


def test_data_sets(sets: Path, tmp_path: Path) -> None:
    said = worked("reproduce", "table1", "--data", "cifar10", "--data-root", sets, "--out", tmp_path / "out").out
    assert "| CIFAR-10 | 60,000 | 10 | 32 | 40 | 10 | 8 |" in said
    assert "STL-10" not in said
    said = worked("reproduce", "table1", "--data", "digits", "--out", tmp_path / "out").out
    assert "| digits | - | - | - | 1,797 | 10 | 8 |" in said
    said = worked("reproduce", "table1", "--data", "imagenet10", "--data-root", sets, "--out", tmp_path / "out").out
    assert "| ImageNet-10 | 13,000 | 10 | 96 | - | - | - |\n\nimagenet10 is made from ImageNet" in said


def test_two_moons(tmp_path: Path) -> None:
    said = draw_moons(Asked("cifar10", tmp_path), points=60)
    names = [line.partition(": ARI ")[0] for line in said.splitlines()[:4]]
    assert names == ["k-means", "tcc", "tcc, settings chosen for it", "anchored"]  # each by its name
    assert has_colours(tmp_path / "figure1.png", COLOURS)  # both clusters


def typed(*words: str) -> list[str]:
    """A command that takes interrupts even where this process was told to ignore them."""
    taking = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    return [
        sys.executable,
        "-c",
        f"{taking}; import sys; from twincluster.cli import main; sys.exit(main())",
        *words,
    ]


def ended(command: Sequence[str], folder: Path, send: Callable[[int, int], None], number: int) -> tuple[int, str]:
    """Its exit status and its words, after a signal in the midst of its first training."""
    metrics = folder / "out" / "tcc-0" / "metrics.jsonl"
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            deadline = time.monotonic() + 120
            while not metrics.is_file() and time.monotonic() < deadline:
                time.sleep(0.05)
            send(child.pid, number)
            return child.wait(timeout=60), child.communicate()[1]
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)


def test_an_interrupt_saves_and_the_same_command_goes_on(tmp_path: Path) -> None:
    command = typed("reproduce", "figure6", "--data", "digits", "--epochs", "3", "--out", "out")
    status, said = ended(command, tmp_path, os.killpg, signal.SIGINT)  # as a terminal does
    assert status == 130, said
    assert "interrupted; the same `twincluster reproduce` goes on" in said
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "kept" not in done.stdout
    assert [row["epoch"] for row in Run(tmp_path / "out" / "tcc-0").read_metrics()] == [0, 1, 2]


@pytest.mark.parametrize("number,status,called", [
    (signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM"),
])  # fmt: skip
def test_a_signal_to_this_process_alone_ends_the_training_too(
    tmp_path: Path, number: signal.Signals, status: int, called: str
) -> None:
    command = typed("reproduce", "figure6", "--data", "digits", "--epochs", "1000", "--out", "out")
    found, said = ended(command, tmp_path, os.kill, number)
    assert found == status, said
    assert said.splitlines()[-1].startswith(f"twincluster: {called}; the same `twincluster reproduce` goes on")
    log = (tmp_path / "out" / "tcc-0.log").read_text()
    assert "--resume continues from the last checkpoint" in log
    assert "Traceback" not in said
    assert (tmp_path / "out" / "tcc-0" / "checkpoint" / "state.safetensors").is_file()  # none was due
