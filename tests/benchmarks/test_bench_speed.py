"""`benchmarks feed`, `store`, `predict` and `same` at toy sizes: they run, and what they compare is what they say."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from benchmarks import common, feed, predict, same, store, train
from benchmarks.__main__ import main
from twincluster.config import make_config
from twincluster.data import decode, open_images, open_source
from twincluster.training import Trainer

TINY = ["train.image_size=8", "train.backbone=small", "train.batch_size=16", "anchored.hidden=16"]
OPTIONS = ["--device", "cpu", *(part for setting in TINY for part in ("--set", setting))]


def test_one_thread_is_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    titles = []
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        titles.append(train.title_of(make_config({"train": {"device": "cpu"}})))
    assert [title.rpartition(" on ")[2] for title in titles] == ["CPU, 1 thread", "CPU, 2 threads"]


# feed


def test_feed_prints_both_paths_and_their_ratio(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["feed", "--method", "tcc", "--steps", "2", "--rounds", "1", "--side", "12", *OPTIONS]) == 0
    title, _, *rows, goal = capsys.readouterr().out.splitlines()
    assert title.startswith("tcc, small, 8 px, batch 16, float32 on CPU")
    assert title.endswith("epochs of 32 images of 432 bytes, median of 1 rounds")
    assert [row[:26].strip() for row in rows] == [feed.RESIDENT, feed.STREAMED, feed.READING]
    assert [row.endswith("%") for row in rows] == [False, True, False]
    assert "90%" in goal


def test_the_share_compares_within_each_round() -> None:
    seconds = {feed.RESIDENT: [1.0, 4.0, 9.0], feed.STREAMED: [2.0, 5.0, 10.0], feed.READING: [0.1, 0.1, 0.1]}
    measured = feed.FeedSpeed("toy", 100, 10, seconds)
    assert measured.share(feed.STREAMED) == 0.8
    assert "0.8" not in measured.to_text()
    assert "80%" in measured.to_text()


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_both_paths_train_to_the_same_weights(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = train.configure("cifar10", method, "cpu", TINY)
    common.write_noise(tmp_path / "images.npy", 40, 8)
    images = open_images(open_source(tmp_path / "images.npy"))
    trainers: list[Trainer] = []
    monkeypatch.setattr(feed, "Trainer", lambda *given: trainers.append(Trainer(*given)) or trainers[-1])
    for resident in (True, False):
        turn = feed.training(config, images, resident=resident)
        turn(0)
        turn(1)
    one, two = (trainer.state() for trainer in trainers)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


# store


def test_store_prints_shares_and_moments(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    moments = f"{{name: [time.monotonic(), time.process_time()] for name in {store.MOMENTS!r}}}"
    monkeypatch.setattr(store, "CHILD", f"import json, time; print(json.dumps({moments}))")  # quicker than torch
    monkeypatch.setattr(store, "BARE", "pass")
    assert main(["store", "--images", "20", "--side", "16", "--rounds", "1", "--start", "30"]) == 0
    build, start = capsys.readouterr().out.split("\n\n")
    assert build.startswith("20 JPEG files decoded at 16 px")
    pillow, ours = build.splitlines()[2:4]
    assert pillow.startswith("Pillow alone")
    assert ours.count("%") == 2
    title, _, bare, *rows, goal = start.strip().splitlines()
    assert title.startswith("second start on 30 files")
    assert bare.startswith("a process with torch")
    assert [row[:26].strip() for row in rows] == list(store.MOMENTS)
    assert all(float(row.split()[-3]) >= 0 for row in rows)
    assert "2 s" in goal


def test_pictures_are_whole_jpegs_and_most_of_them_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "DIFFERENT", 3)
    monkeypatch.setattr(common, "PER_FOLDER", 4)
    common.make_pictures(tmp_path / "photos", 10, (20, 12))
    files = sorted((tmp_path / "photos").rglob("*.jpg"))
    assert len(files) == 10
    assert len({file.parent for file in files}) == 3
    assert len({file.stat().st_ino for file in files}) == 3
    with Image.open(files[0]) as image:
        assert (image.format, image.size) == ("JPEG", (20, 12))


def test_pillow_alone_does_what_decoding_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common.make_pictures(tmp_path / "photos", 2, (90, 60))
    (file, _) = sorted((tmp_path / "photos").rglob("*.jpg"))
    kept: list[Image.Image] = []
    resize = Image.Image.resize

    def keeping(image: Image.Image, *given: object, **named: object) -> Image.Image:
        kept.append(resize(image, *given, **named))  # type: ignore[arg-type]
        return kept[-1]

    monkeypatch.setattr(Image.Image, "resize", keeping)
    assert store._decode([str(file)], 16) == 1
    assert np.array_equal(np.asarray(kept[-1]), decode(file, 16)[0])


def test_the_first_batch_comes_from_the_store(
    tmp_path: Path, own_cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common.make_pictures(tmp_path / "photos", 5, (20, 12))
    for _ in range(2):
        store.first_batch(str(tmp_path / "photos"))
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert list(first) == list(second) == list(store.MOMENTS)
    assert len(list(own_cache.rglob("*.npy"))) == 1


def test_processor_time_has_that_of_children_that_ended_and_that_run(tmp_path: Path) -> None:
    common.make_pictures(tmp_path / "photos", 40, (400, 300))
    listing = open_source(tmp_path / "photos")
    with store.pillow_alone(listing, 16, workers=1) as decode_all:
        before = common.cpu_seconds()
        assert decode_all() == 40
        running = common.cpu_seconds()
    assert before < running <= common.cpu_seconds()


# predict


def test_predict_prints_arrays_and_files(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--images", "40", "--files", "12", "--rounds", "1", *OPTIONS]) == 0
    arrays, files = capsys.readouterr().out.split("\n\n")
    title, _, alone, ours, goal = arrays.splitlines()
    assert title.endswith("40 images in an array, median of 1 rounds")
    assert alone.startswith("the network alone")
    assert ours.endswith("%")
    assert "80%" in goal
    title, _, *rows, verdict = files.strip().splitlines()
    assert title.startswith("small, 8 px, float32 on CPU")
    assert "12 JPEG files" in title
    assert [row[:26].strip() for row in rows] == [predict.TORCH, predict.ONNX]
    assert float(verdict.rpartition("differ by ")[2].split()[0]) < 1e-5


def test_the_network_alone_sees_as_many_images(monkeypatch: pytest.MonkeyPatch) -> None:
    config = train.configure("cifar10", None, "cpu", TINY)
    images = common.noise_images(25, 8)
    network = predict.network_of(config, images)
    seen: list[int] = []
    monkeypatch.setattr(network, "log_assign", lambda batch: seen.append(len(batch)))
    monkeypatch.setattr(predict, "chunk_size", lambda network, pixels: 10)
    predict.alone(network, images)()
    assert seen == [10, 10, 5]


def test_contenders_get_every_row_once_and_their_largest_difference_is_told() -> None:
    given: dict[str, list[int]] = {"one": [], "two": []}

    def answer(name: str, offset: float) -> predict.Callable[[np.ndarray], np.ndarray]:
        def run(rows: np.ndarray) -> np.ndarray:
            given[name] += rows.tolist()
            return np.where(rows == 13, offset, 0.0)

        return run

    seconds, difference = predict.take_turns({"one": answer("one", 0.0), "two": answer("two", 0.25)}, np.arange(20))
    assert given["one"] == given["two"] == [*range(8), *range(20)]  # eight warm up
    assert [len(turns) for turns in seconds.values()] == [predict.TURNS] * 2
    assert difference == 0.25


# same


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(same, "BACKEND", "aot_eager")  # the compiler proper takes minutes


@pytest.mark.usefixtures("quick")
def test_same_holds_every_way_to_the_plain_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["same", "--steps", "3", "--method", "tcc", *OPTIONS]) == 0
    title, _, _, *rows, verdict = capsys.readouterr().out.strip().splitlines()
    assert title.startswith("tcc, small, 8 px, batch 16 on CPU")
    assert title.endswith("3 steps from one seed")
    assert [row[:26].strip() for row in rows] == [way.name for way in same.WAYS["cpu"]]
    assert all(" ok " in row for row in rows)
    assert verdict == "all within the tolerance"


def test_same_looks_at_the_default_method_with_all_parts_of_its_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(same.WAYS, "cpu", (same.Way("streamed", streamed=True),))
    config = train.configure("cifar10", "anchored", "cpu", TINY)
    trainer, _ = same.made(config, common.noise_images(48, 8), same.PLAIN)
    assert float(trainer.method.cluster_weight) > 0
    assert float(trainer.method.commit_weight) > 0
    assert (trainer.method.prototypes.norm(dim=1) > 0.99).all()
    (found,) = same.measure(config, 3).others.values()
    assert found == same.Differences(0.0, 0.0, 0.0)


@pytest.mark.parametrize("fault", ["swapped views", "no momentum", "no queue"])
def test_a_way_that_does_otherwise_is_found_out(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = train.configure("cifar10", "tcc", "cpu", TINY)
    monkeypatch.setitem(same.WAYS, "cpu", (same.Way("streamed", streamed=True),))
    make = same.made

    def faulty(config: train.Config, images: train.Any, way: same.Way) -> tuple[Trainer, same.Step]:
        trainer, step = make(config, images, way)
        method, plain = trainer.method, trainer.losses
        if way.streamed and fault == "swapped views":
            trainer.losses = lambda views, samples, keys: plain((views[1], views[0]), samples, keys)
        elif way.streamed and fault == "no queue":
            monkeypatch.setattr(method.instance_queue, "push", lambda rows: None)
        elif way.streamed:
            method.settings = replace(method.settings, ema=1.0)
        return trainer, step

    monkeypatch.setattr(same, "made", faulty)
    found = same.measure(config, 3)
    (differences,) = found.others.values()
    assert not differences.within("float32")
    assert found.to_text().endswith("outside of the tolerance: streamed")


def test_same_fails_when_a_row_says_no(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """After all of them, whichever it was."""
    monkeypatch.setitem(same.WAYS, "cpu", (same.Way("streamed", streamed=True),))
    measured = same.measure

    def first_outside(config: train.Config, steps: int) -> same.Sameness:
        found = measured(config, steps)
        worse = {way: same.Differences(1.0, 0.0, 0.0) for way in found.others}
        return replace(found, others=worse) if config.method == "anchored" else found

    monkeypatch.setattr(same, "measure", first_outside)
    assert main(["same", "--steps", "2", *OPTIONS]) == 1
    told = capsys.readouterr()
    first, second = told.out.split("\n\n")
    assert " NO " in first
    assert " ok " in second
    assert told.err == ""


def test_what_is_not_a_number_is_outside() -> None:
    nan = float("nan")
    assert not same.Differences(nan, 0.0, 0.0).within("float32")
    assert not same.Differences(0.0, nan, 0.0).within("bf16")
    assert same.Differences(1e-4, 5e-2, nan).within("float32")
