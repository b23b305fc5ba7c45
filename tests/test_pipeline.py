"""From a source to a run folder and from a run folder to new assignments, without the command line around it."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from command_line import TINY, colours
from twincluster import fit as pipeline
from twincluster import model as opening
from twincluster import resolve as deciding
from twincluster.clustering import score
from twincluster.config import Config, make_config, parse_overrides
from twincluster.core import InputError
from twincluster.data import Listing, decoding, open_images, open_source
from twincluster.methods import base as inference
from twincluster.runs import Assignments, Run, RunData
from twincluster.training import Trainer

PAIRS = [argument for argument in TINY if "=" in argument]


def tiny(*changes: str) -> Config:
    return make_config(parse_overrides([*PAIRS, "n_clusters=3", "train.epochs=1", "train.device=cpu", *changes]))


def labelled(split: bool = False) -> Listing:
    images, labels = colours()
    listing = dataclasses.replace(open_source(images), labels=labels, class_names=("red", "green", "blue"))
    return dataclasses.replace(listing, split=(np.arange(48) // 3 % 3 == 0).astype(np.int8)) if split else listing


def test_a_run_folder_has_all_the_contract_names(tmp_path: Path) -> None:
    fitted = pipeline.fit(labelled(), tiny(), tmp_path / "run", location="somewhere", root=tmp_path)
    assert {file.name for file in (tmp_path / "run").iterdir()} == {
        "config.json", "model.safetensors", "assignments.csv", "metrics.jsonl", "checkpoint", "reference.safetensors",
        "stamps.csv", "contents.csv", "provenance.json", "checksums.json", "tree.safetensors",
    }  # fmt: skip
    run = Run.open(tmp_path / "run")
    config, shape, data = run.config, run.shape, run.data
    assert config == fitted.config
    assert (config.train.batch_size, config.train.image_size, config.train.precision) == (16, 16, "float32")
    assert (shape.n_samples, shape.side, shape.n_inputs) == (48, 16, 3)
    assert len(data.fingerprint) == 64
    assert dataclasses.replace(data, fingerprint="") == RunData(
        source="array", location="somewhere", root=str(tmp_path), files=False, fingerprint="", inputs=48, side=12,
        readable=48, split="all",
    )  # fmt: skip
    assert [row["epoch"] for row in fitted.run.read_metrics()] == [0]
    assert fitted.run.read_assignments().clusters.tolist() == fitted.assignments.clusters.tolist()


def test_the_fingerprint_is_of_the_data(tmp_path: Path) -> None:
    def fingerprint(images: np.ndarray, name: str) -> str:
        pipeline.fit(open_source(images), tiny(), tmp_path / name)
        return str(json.loads((tmp_path / name / "config.json").read_text())["data"]["fingerprint"])

    images, _ = colours()
    other = images.copy()
    other[7, 3, 3, 1] ^= 1
    assert fingerprint(images, "one") == fingerprint(images.copy(), "two") != fingerprint(other, "three")


def test_the_saved_model_is_the_one_that_was_scored(tmp_path: Path) -> None:
    listing = labelled()
    fitted = pipeline.fit(listing, tiny(), tmp_path / "run")
    again = opening.predict(Run.open(tmp_path / "run"), listing, "cpu")
    assert again.clusters.tolist() == fitted.assignments.clusters.tolist()
    np.testing.assert_allclose(again.confidence, fitted.assignments.confidence, rtol=1e-6)
    assert fitted.scores is not None
    assert fitted.scores.acc == score(listing.labels, again.clusters).acc
    assert fitted.scored_on == "all"


def test_training_is_what_the_trainer_does(tmp_path: Path) -> None:
    fitted = pipeline.fit(labelled(), tiny("seed=3"), tmp_path / "run")
    images = open_images(labelled())
    network = Trainer(fitted.config, images).run().online
    expected = Assignments.of(images, images.usable, inference.predict(network, images.pixels, images.usable))
    assert fitted.assignments.clusters.tolist() == expected.clusters.tolist()


def test_labels_change_nothing_but_the_scores(tmp_path: Path) -> None:
    plain = pipeline.fit(open_source(colours()[0]), tiny(), tmp_path / "plain")
    pipeline.fit(labelled(), tiny(), tmp_path / "labelled")
    assert plain.scores is None
    for name in ("model.safetensors", "assignments.csv"):
        assert (tmp_path / "plain" / name).read_bytes() == (tmp_path / "labelled" / name).read_bytes()


# -- parts of a set --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split,other", [("train", 1), ("test", 0)])
def test_one_part_is_trained_on_and_the_other_scored(tmp_path: Path, split: pipeline.Split, other: int) -> None:
    listing = labelled(split=True)
    assert listing.split is not None
    assert listing.labels is not None
    fitted = pipeline.fit(listing, tiny(), tmp_path / "run", split=split)
    trained, scored = listing.split != other, listing.split == other
    shape, data = fitted.run.shape, fitted.run.data
    assert (shape.n_samples, data.split, data.inputs) == (trained.sum(), split, 48)
    assert (fitted.assignments.clusters >= 0).all()  # a row for every input, trained on or not
    assert fitted.scores is not None
    assert fitted.scores.confusion.sum() == scored.sum()
    assert fitted.scores.acc == score(listing.labels[scored], fitted.assignments.clusters[scored]).acc
    assert f"on the {'test' if split == 'train' else 'train'} part" in fitted.summary()


def test_what_is_not_trained_on_does_not_matter(tmp_path: Path) -> None:
    listing = labelled(split=True)
    assert listing.array is not None
    array = listing.array.copy()
    array[listing.split == 1] = 0
    pipeline.fit(listing, tiny(), tmp_path / "one", split="train")
    pipeline.fit(dataclasses.replace(listing, array=array), tiny(), tmp_path / "two", split="train")
    models = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two")]
    assert models[0] == models[1]


def test_parts_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="array has no train and test parts: leave out --split"):
        pipeline.fit(labelled(), tiny(), tmp_path / "run", split="train")
    for part, split in ((0, "train"), (0, "test"), (1, "train"), (1, "test")):
        listing = dataclasses.replace(labelled(), split=np.full(48, part, np.int8))
        with pytest.raises(
            InputError, match=f"the {('test', 'train')[part]} part of array is empty: leave out --split"
        ):
            pipeline.fit(listing, tiny(), tmp_path / "run", split=split)
    assert not (tmp_path / "run").exists()


def test_labels_that_say_nothing_of_the_scored_part_are_no_reason_to_fail(tmp_path: Path) -> None:
    listing = labelled(split=True)
    unknown = dataclasses.replace(listing, labels=np.where(listing.split == 1, -1, listing.labels))
    assert pipeline.fit(unknown, tiny(), tmp_path / "run", split="train").scores is None


# -- files -----------------------------------------------------------------------------------------------------------


def test_unreadable_files_keep_their_rows_and_are_not_trained_on(tmp_path: Path, photo_folder: Path) -> None:
    listing = open_source(photo_folder)
    fitted = pipeline.fit(listing, tiny(), tmp_path / "run")
    rows = dict(zip(fitted.assignments.paths, fitted.assignments.status, strict=True))
    assert len(rows) == len(fitted.assignments.paths) == 62
    assert {path: status for path, status in rows.items() if status != "ok"} == {
        "blue-rings/truncated.jpg": "incomplete", "red-rows/empty.png": "unreadable: empty file",
    }  # fmt: skip
    assert fitted.run.shape.n_samples == 60
    assert sum(fitted.assignments.sizes(3)) == 60
    assert "2 inputs could not be read (1 incomplete); the status in assignments.csv says why" in fitted.summary()


def test_nothing_readable_is_bad_input(tmp_path: Path) -> None:
    for name in ("a.png", "b.jpg", "c.gif"):
        (tmp_path / "bad").mkdir(exist_ok=True)
        (tmp_path / "bad" / name).write_bytes(b"" if name == "a.png" else b"no picture")
    with pytest.raises(InputError, match=r"none of the 3 images in bad/ can be read \(a.png: empty file\)"):
        pipeline.fit(open_source(tmp_path / "bad"), tiny(), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_prediction_reads_the_store_that_training_wrote(
    tmp_path: Path, photo_folder: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a side of its own choice, too: settled or not, it asks for the same pixels."""
    monkeypatch.setattr("twincluster.data.listing.FEW", 0)  # of so few files nothing would be kept
    listing = open_source(sorted(photo_folder.glob("*/0[0-2].*")))
    fitted = pipeline.fit(listing, tiny("train.image_size=0", "train.batch_size=4"), tmp_path / "run")
    sides = [min(Image.open(file).size) for file in listing.files or ()]
    assert fitted.config.train.image_size == int(np.median(sides)) != 96
    decoded: list[int] = []
    again = opening.predict(fitted.run, listing, "cpu", lambda done, total: decoded.append(done))
    assert decoded == []
    assert len([entry for entry in own_cache.iterdir() if entry.is_dir()]) == 1
    assert again.clusters.tolist() == fitted.assignments.clusters.tolist()


@pytest.mark.parametrize(("side", "expected"), [(4, 8), (28, 28), (300, 96)])
def test_the_training_size_of_files_is_their_own_within_bounds(tmp_path: Path, side: int, expected: int) -> None:
    for number in range(3):
        Image.new("RGB", (side, side + 5 * number)).save(tmp_path / f"{number}.png")
    (tmp_path / "damaged.png").write_bytes(b"no image")
    assert deciding.with_image_size(Config(), open_source(tmp_path)).train.image_size == expected


def test_images_of_any_size_can_be_predicted(tmp_path: Path) -> None:
    fitted = pipeline.fit(labelled(), tiny(), tmp_path / "run")
    random = np.random.default_rng(0)
    for shape in ((5, 40, 25, 3), (5, 3, 9), (1, 16, 16, 1), (5, 64, 64, 4)):
        new = open_source(random.integers(0, 256, shape, dtype=np.uint8), at_least=1)
        found = opening.predict(fitted.run, new, "cpu")
        assert found.paths == tuple(str(row) for row in range(shape[0]))
        assert set(found.clusters.tolist()) <= {0, 1, 2}
        assert np.isfinite(found.confidence).all()


def test_larger_copies_of_the_same_images_get_the_same_clusters(tmp_path: Path) -> None:
    listing = labelled()
    fitted = pipeline.fit(listing, tiny("train.epochs=3"), tmp_path / "run")
    large = np.stack([np.asarray(Image.fromarray(image).resize((36, 36))) for image in listing.array])
    again = opening.predict(fitted.run, open_source(large), "cpu")
    assert (again.clusters == fitted.assignments.clusters).mean() > 0.9


def test_a_folder_without_a_readable_image_still_gets_its_rows(tmp_path: Path) -> None:
    fitted = pipeline.fit(labelled(), tiny(), tmp_path / "run")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").touch()
    (tmp_path / "bad" / "b.jpg").write_bytes(b"no picture")
    found = opening.predict(fitted.run, open_source(tmp_path / "bad"), "cpu")
    assert found.paths == ("a.png", "b.jpg")
    assert found.clusters.tolist() == [-1, -1]
    assert all(status.startswith("unreadable: ") for status in found.status)


# -- what does not fit -----------------------------------------------------------------------------------------------


def test_rows_and_images_do_not_mix(tmp_path: Path, photo_folder: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    of_rows = pipeline.fit(open_source(rows), tiny("train.backbone=mlp"), tmp_path / "rows").run
    of_images = pipeline.fit(labelled(), tiny(), tmp_path / "images").run
    assert set(opening.predict(of_rows, open_source(rows[:5]), "cpu").clusters.tolist()) <= {0, 1, 2}
    with pytest.raises(
        InputError, match="array contains rows of 3 numbers, but .*rows was trained on rows of 4 numbers"
    ):
        opening.predict(of_rows, open_source(rows[:, :3]), "cpu")
    with pytest.raises(InputError, match="photos/ contains images, but .*rows was trained on rows of 4 numbers"):
        opening.predict(of_rows, open_source(photo_folder), "cpu")
    with pytest.raises(InputError, match="array contains rows of 4 numbers, but .*images was trained on images"):
        opening.predict(of_images, open_source(rows), "cpu")


def test_a_taken_folder_is_refused_before_anything_is_decoded(tmp_path: Path, photo_folder: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "letter.txt").write_text("mine")

    def too_late(done: int, total: int) -> None:
        pytest.fail("images were decoded")

    with pytest.raises(InputError, match="run exists and is not empty"):
        pipeline.fit(open_source(photo_folder), tiny(), tmp_path / "run", decoding=too_late)
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["letter.txt"]


def test_a_number_of_clusters_that_was_not_given_is_chosen_from_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = colours(n=60)
    listing, changes = dataclasses.replace(open_source(images), labels=labels), ("n_clusters=0", "train.epochs=8")
    fitted = pipeline.fit(listing, tiny(*changes, "clusters_between=[2, 9]"), tmp_path / "run")
    chosen = fitted.config.n_clusters
    assert fitted.choice is not None
    assert chosen == fitted.choice.n_clusters
    assert set(fitted.assignments.clusters) == set(range(chosen))
    assert fitted.summary().startswith(fitted.choice.describe())
    told = json.loads((tmp_path / "run" / "clusters.json").read_text())
    assert [row["n_clusters"] for row in told["candidates"]] == [c.n_clusters for c in fitted.choice.candidates]
    assert (tmp_path / "run" / "clusters.png").stat().st_size > 1000
    again = opening.predict(fitted.run, listing, "cpu")
    assert again.clusters.tolist() == fitted.assignments.clusters.tolist()

    def interrupt(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "run", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pipeline.fit(listing, tiny(*changes, "clusters_between=[2, 9]"), tmp_path / "run", resume=True)
    assert len(opening.predict(fitted.run, listing, "cpu").paths) == 60  # the finished run is still whole
    resumed = pipeline.fit(listing, tiny(*changes, "clusters_between=[2, 9]"), tmp_path / "run", resume=True)
    assert resumed.assignments.clusters.tolist() == fitted.assignments.clusters.tolist()
    with pytest.raises(InputError, match=r"another n_clusters \(\d, now (auto|4)\): resume with the same"):
        pipeline.fit(listing, tiny(*changes, "clusters_between=[2, 8]"), tmp_path / "run", resume=True)
    with pytest.raises(InputError, match=r"another n_clusters \(\d, now (auto|4)\): resume with the same"):
        pipeline.fit(listing, tiny("n_clusters=4", "train.epochs=8"), tmp_path / "run", resume=True)


def test_headers_are_read_once(tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = decoding.header_sizes
    monkeypatch.setattr(decoding, "header_sizes", lambda files: read.append(len(files)) or real(files))
    source = open_source(photo_folder)
    deciding._beyond_a_cpu(tiny("train.image_size=0"), source)
    pipeline.fit(source, tiny("train.image_size=0"), tmp_path / "run")
    assert read == [62]


def test_sizes_of_very_many_clusters_are_summed_up() -> None:
    assert pipeline.sizes_line([3, 0, 12]) == "sizes 3 0 12"
    assert pipeline.sizes_line([2] * 60 + [5] * 60 + [1200, 0]) == "sizes from 0 to 1,200, median 3.5"


def test_a_run_says_that_it_mirrors_no_image_where_left_and_right_differ(
    tmp_path: Path, digits: tuple[np.ndarray, np.ndarray]
) -> None:
    def said(flip: float, name: str) -> bool:
        fitted = pipeline.fit(open_source(digits[0][:300]), tiny(f"augment.flip={flip}"), tmp_path / name)
        assert fitted.config.augment.flip == max(flip, 0.0)
        return "training did not flip them" in fitted.summary()

    assert said(-1, "left to the images")
    assert not said(0.5, "asked for")
    assert not said(0, "not wanted")


def test_rows_have_neither_left_nor_right(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    fitted = pipeline.fit(open_source(rows), tiny("augment.flip=-1", "train.backbone=auto"), tmp_path / "run")
    assert fitted.config.augment.flip == 0.0
    assert "mirrored" not in fitted.summary()
