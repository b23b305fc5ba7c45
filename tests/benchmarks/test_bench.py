"""Benchmarks at toy sizes: the commands run and print their fields, and what they count agrees with counts by hand."""

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing.synchronize import Event as EventType
from pathlib import Path

import numpy as np
import pytest
import torch

import benchmarks
from benchmarks import augment, common, encoded, memory, startup
from benchmarks.__main__ import main
from command_line import colours
from small_encoders import own_weights
from twincluster.core import InputError
from twincluster.pages import write_report

MEGABYTE = 10**6


# the commands


def test_bench_alone_lists_the_benchmarks_with_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in ("augment", "train", "memory", "startup"):
        assert sum(f" {name}  " in line for line in lines) == 1


def test_a_clone_runs_benchmarks_as_a_program() -> None:
    root = Path(benchmarks.__file__).parents[1]
    words = [sys.executable, "-m", "benchmarks", "startup", "--runs", "none"]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith("see python -m benchmarks startup --help")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["trian"], "did you mean 'train'?"),
        (["startup", "--runs", "0"], "--runs"),
        (["train", "--steps", "0"], "--steps"),
        (["train", "--recipe", "rows"], "rows of numbers"),
        (["train", "--method", "k-means"], "no method 'k-means'"),
        (["train", "--set", "train.speed=3"], "train.speed"),
        (["memory", "--images", "0"], "--images"),
        (["predict", "nowhere"], "nowhere: no such file, folder or data set"),
        (["growth", "--plot", "nowhere/growth.svg"], "name a .svg, .png or .pdf file, in a folder that exists"),
        (["growth", "--plot", "growth.txt"], "name a .svg, .png or .pdf file"),
        (["methods", "--data", "digits", "--out", __file__], "a file: name a folder"),
        (["longtail", "digits", "--seed", "-1"], "--seed: expected a whole number from 0 to 4294967295, not -1"),
    ],
)
def test_bad_input_is_told_in_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert message in said.err
    assert said.err.count("\n") == 1


# augment


def test_augment_prints_both_loaders_beside_ours(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    assert main(["augment", "--rounds", "1", "--batches", "2", "--batch-size", "8", "--side", "16"]) == 0
    out = capsys.readouterr().out
    rows = {line[:26].strip(): line[26:].split() for line in out.splitlines()[2:5]}
    assert set(rows) == {"twincluster", "torchvision v2, tensors", "torchvision v2, Pillow"}
    assert all(float(row[0].replace(",", "")) > 0 for row in rows.values())
    assert [len([word for word in row if word.endswith("x")]) for row in rows.values()] == [0, 2, 2]
    assert "augmented pairs of 16 px images" in out
    assert torch.get_num_threads() == threads


def test_every_contender_counts_the_pairs_it_delivers() -> None:
    images = common.noise_images(24, 8)
    assert augment.feeder(images, batch_size=8)() == augment.PASSES * 24
    assert augment.loader(images, batch_size=8, pillow=False)() == 24
    assert augment.loader(images, batch_size=8, pillow=True)() == 24


def test_ratio_compares_within_each_round() -> None:
    speeds = {"twincluster": [10.0, 90.0, 20.0], "other": [5.0, 30.0, 1.0]}  # 2, 3 and 20 times
    efficiency = {"twincluster": [80.0, 80.0, 80.0], "other": [20.0, 10.0, 10.0]}  # 4, 8 and 8 times
    text = augment.AugmentSpeed(side=32, batch_size=8, speeds=speeds, efficiency=efficiency).to_text()
    (row,) = (line.split() for line in text.splitlines() if line.startswith("other"))
    assert row == ["other", "5", "1", "30", "3.0x", "10", "8.0x"]


def test_processor_time_includes_that_of_workers() -> None:
    before, own = common.cpu_seconds(), time.process_time()
    release = multiprocessing.Event()
    worker = multiprocessing.Process(target=_burn, args=(0.3, release))
    worker.start()
    while common.cpu_seconds() - before < 0.3:
        time.sleep(0.01)  # would never end if the worker's time were not counted
    assert time.process_time() - own < 0.3
    release.set()
    worker.join()


def _burn(seconds: float, release: EventType) -> None:
    start = time.process_time()
    while time.process_time() - start < seconds:
        pass
    release.wait()


# memory


def test_memory_watches_a_real_fit(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(memory, "IMPORTS", "import numpy, time; time.sleep(0.5)")  # quicker than torch
    settings = ["--set", "train.batch_size=16", "--set", "anchored.hidden=16"]
    assert main(["memory", "--images", "40", *settings]) == 0
    out = capsys.readouterr().out
    assert "40 images of 32 px, backbone small, epochs 1, train.batch_size=16" in out
    rows = {line[:26].strip(): [float(number) for number in line[26:].split()] for line in out.splitlines()[2:4]}
    assert list(rows) == ["imports alone", "fit"]
    for resident, own, files, _ in rows.values():
        assert resident > own > 0
        assert resident == pytest.approx(own + files, abs=0.011)  # each is rounded
    assert rows["fit"][0] > rows["imports alone"][0]


def test_watch_sees_memory_and_whose_it_is(tmp_path: Path) -> None:
    file = tmp_path / "zeros"
    file.write_bytes(bytes(100 * MEGABYTE))
    code = """if True:
        import mmap, time
        own = bytearray(150_000_000)
        with open(FILE, "rb") as file:
            pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = sum(pages[i] for i in range(0, len(pages), 4096))
        time.sleep(1)
    """.replace("FILE", repr(str(file)))
    peak = memory.watch([sys.executable, "-c", code])
    assert 150 * MEGABYTE <= peak.anonymous < 200 * MEGABYTE
    assert 250 * MEGABYTE <= peak.resident < 320 * MEGABYTE


def test_watch_adds_up_the_process_tree() -> None:
    grandchild = "import time; held = bytearray(100_000_000); time.sleep(1.5)"
    code = (
        f"import subprocess, sys; held = bytearray(150_000_000); subprocess.run([sys.executable, '-c', {grandchild!r}])"
    )
    assert memory.watch([sys.executable, "-c", code]).anonymous >= 250 * MEGABYTE


def test_watch_notices_a_peak_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "LOOK_SECONDS", 0.5)
    code = "import time; time.sleep(0.6); held = bytearray(200_000_000); del held; time.sleep(1.2)"
    assert memory.watch([sys.executable, "-c", code]).resident >= 200 * MEGABYTE


def test_watch_reports_a_command_that_fails() -> None:
    with pytest.raises(InputError, match="status 3"):
        memory.watch([sys.executable, "-c", "raise SystemExit(3)"])


def test_watch_takes_its_child_along_when_terminated() -> None:
    child = "import time; time.sleep(60)"
    code = (
        "import sys; from benchmarks.memory import watch; from twincluster.cli.terminal import status_of; "
        f"sys.exit(status_of(lambda: watch([sys.executable, '-c', {child!r}])))"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as parent:
        family = [parent.pid]
        # until the child is a program of its own, and so one that its parent knows of
        while not any(memory._read(memory.PROC / str(pid) / "cmdline").endswith(f"\0{child}\0") for pid in family[1:]):
            assert parent.poll() is None
            time.sleep(0.05)
            family = memory._family(parent.pid)
        parent.terminate()
        assert parent.wait() == 128 + signal.SIGTERM
    assert not any(Path(f"/proc/{pid}").exists() for pid in family)


def test_noise_is_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "CHUNK", 4)
    common.write_noise(tmp_path / "noise.npy", 10, 8)
    pixels = np.load(tmp_path / "noise.npy")
    assert (pixels.shape, pixels.dtype) == ((10, 8, 8, 3), np.uint8)
    assert len(np.unique(pixels.reshape(10, -1), axis=0)) == 10


# startup


@pytest.mark.parametrize("keeps", [True, False])
def test_startup_times_help_and_says_when_bytecode_is_not_kept(
    keeps: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
    assert main(["startup", "--runs", "1"]) == 0
    out = capsys.readouterr().out
    rows = [line[:26].strip() for line in out.splitlines()[2:-1]]
    assert rows[:2] == ["python -c pass", "twincluster --help"]
    assert ("PYTHONDONTWRITEBYTECODE" in out) is not keeps
    assert (startup.CACHED in rows) is not keeps
    assert "target: twincluster --help under 0.5 s" in out


# encoded


def test_encoded_prints_the_phases_of_a_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = f"--set=train.encoder=small:{own_weights(tmp_path)}"
    np.save(tmp_path / "images.npy", colours(60)[0])
    quick = ("--set=train.epochs=2", "--set=train.batch_size=16", "--set=n_clusters=3")
    before, written = os.environ.get("TWINCLUSTER_CACHE"), []
    monkeypatch.setattr(encoded, "rates_alone", partial(encoded.rates_alone, seconds=0.05))
    monkeypatch.setattr(encoded, "write_report", lambda *given, **more: written.append(write_report(*given, **more)))
    assert main(["encoded", str(tmp_path / "images.npy"), encoder, *quick]) == 0
    title, _, *lines, longest, speed = capsys.readouterr().out.splitlines()
    assert "60 images of images.npy, 2 epochs" in title
    assert re.fullmatch(rf"most time: ({'|'.join(encoded.PHASES)}), \d+%", longest)
    alone = r"\(onnxruntime \d+, torch \d+, torch bf16 \d+\)"
    assert re.fullmatch(rf"encoded: \d+ images a CPU second, \d+% of the network alone {alone}", speed)
    assert [line[:20].strip() for line in lines] == [*encoded.PHASES, "together"]
    assert sum(float(line[20:28]) for line in lines[:-1]) == pytest.approx(float(lines[-1][20:28]), abs=0.3)
    assert os.environ.get("TWINCLUSTER_CACHE") == before
    assert "x" in written[0][2].data["map"]  # as after a fit: with all that takes time


def test_each_second_belongs_to_one_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr(encoded.time, "perf_counter", lambda: next(clock))
    watch = encoded._Watch()
    watch.encoding(0, 9)
    watch.encoding(9, 9)
    watch.step(0.5, None)
    watch.step(1.0, None)
    watch.epoch({})
    assert [wall for wall, _ in watch.seconds.values()] == [10, 10, 10, 20, 0, 0]
