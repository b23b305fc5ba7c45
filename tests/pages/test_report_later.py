"""Reports of runs that went on: images added, changed, moved away or lost since the training."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from report_runs import made_run

from command_line import command, worked
from small_runs import pictures
from twincluster.data import open_source
from twincluster.estimator import TwinContrastClustering
from twincluster.pages.report.material import open_material
from twincluster.pages.report.page import Gathered, gather
from twincluster.runs import Run, stamps_of, write_stamps


def saved(folder: Path, count: int, value: int) -> Path:
    """Pictures of one grey each, from `value` on, called by it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(value, value + count):
        Image.new("RGB", (12, 12), (number, number, number)).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture(autouse=True)
def quick_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.clustering.neighbours.FEWEST", 10**6)  # PCA, not t-SNE


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return saved(tmp_path / "photos", 12, 20)


@pytest.fixture
def run(tmp_path: Path, photos: Path) -> Run:
    found = made_run(tmp_path / "run", photos, 2)
    listing = open_source(photos)
    write_stamps(found.folder, dict(zip(listing.paths, stamps_of(listing), strict=True)))
    worked("report", found.folder)
    return found


def greys(gathered: Gathered, run: Run) -> dict[str, int]:
    """The grey of the large tile of each image that has one, by its file's name."""
    material = open_material(run)
    assert material.pictures is not None
    images = gathered.data["images"]
    shown = {path: tile for path, tile in zip(images["path"], images["large"], strict=True) if tile >= 0}
    return {Path(path).name: int(material.pictures[gathered.large[tile]][0, 0, 0]) for path, tile in shown.items()}


def test_added_images_have_pictures_a_place_on_the_map_and_on_the_cards(run: Run, tmp_path: Path) -> None:
    later = saved(tmp_path / "later", 4, 200)
    worked("update", run.folder, later)
    material = open_material(run)
    gathered = gather(material)
    assert (gathered.data["run"]["added"], material.visible, material.unseen) == (4, 16, 0)
    assert gathered.data["map"]["note"] == "all 16 images"
    assert {path for path in gathered.data["images"]["path"] if path.startswith(str(later))}
    found = greys(gathered, run)
    assert len(found) == 16
    assert all(abs(grey - int(name[:3])) <= 1 for name, grey in found.items())
    assert "4 of them were added after the training." in gathered.data["head"]["sentences"]


def test_added_images_that_are_gone_are_counted_and_stay_off_the_cards(run: Run, tmp_path: Path) -> None:
    later = saved(tmp_path / "later", 4, 200)
    worked("update", run.folder, later)
    (later / "201.png").unlink()
    done = worked("report", run.folder)
    assert "1 image cannot be shown" in done.out
    found = gather(open_material(run)).data
    assert sum(cluster["size"] for cluster in found["clusters"]) == 16
    assert str(later / "201.png") not in found["images"]["path"]
    assert found["map"]["note"] == "15 of 16 images (the others are gone)"
    assert any("1 of them cannot be shown" in said for said in found["head"]["sentences"])


def test_a_map_of_some_says_from_which_they_were_chosen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = saved(tmp_path / "later", 12, 200)
    worked("update", run.folder, later)
    monkeypatch.setattr("twincluster.pages.report.page.POINTS", 6)
    found = gather(open_material(run)).data
    assert found["map"]["note"] == "6 of 24 images, evenly chosen"
    paths = [found["images"]["path"][image] for image in found["map"]["image"]]
    assert [run.read_assignments().paths.index(path) for path in paths] == [0, 5, 9, 14, 18, 23]
    (later / "201.png").unlink()
    assert gather(open_material(run)).data["map"]["note"] == (
        "6 of 24 images, evenly chosen from the 23 that are still there"
    )


def test_a_changed_image_is_shown_as_it_is_now_and_the_others_as_they_were(run: Run, photos: Path) -> None:
    Image.new("RGB", (12, 12), (250, 250, 250)).save(photos / "023.png")
    worked("update", run.folder, photos)
    found = greys(gather(open_material(run)), run)
    assert found.pop("023.png") == 250
    assert len(found) == 11
    assert all(abs(grey - int(name[:3])) <= 1 for name, grey in found.items())


def test_a_file_that_changed_without_an_update_is_not_shown_under_the_old_cluster(
    run: Run, photos: Path, own_cache: Path
) -> None:
    Image.new("RGB", (12, 12), (250, 250, 250)).save(photos / "023.png")
    shutil.rmtree(own_cache)  # nor is its old picture there any more
    found = greys(gather(open_material(run)), run)
    assert len(found) == 11
    assert "023.png" not in found


def test_rows_of_arrays_that_were_added_have_pictures(tmp_path: Path) -> None:
    np.save(tmp_path / "first.npy", pictures(12)[0])
    np.save(tmp_path / "second.npy", 255 - pictures(6)[0])
    run = made_run(tmp_path / "run", tmp_path / "first.npy", 2)
    worked("update", run.folder, tmp_path / "second.npy")
    material = open_material(run)
    assert material.pictures is not None
    assert np.array_equal(material.pictures[14], 255 - pictures(6)[0][2])
    assert gather(material).data["map"]["note"] == "all 18 images"


def test_files_that_were_handed_over_in_python_have_pictures(photos: Path, tmp_path: Path) -> None:
    files = sorted(photos.glob("*.png"))
    short = {"train": {"epochs": 1, "backbone": "small", "image_size": 8}}
    TwinContrastClustering(n_clusters=2, settings=short, device="cpu").fit(files).save(tmp_path / "run")
    found = greys(gather(open_material(Run.open(tmp_path / "run"))), Run.open(tmp_path / "run"))
    assert found == {file.name: int(file.stem) for file in files}


def test_a_shared_model_shows_no_file_that_is_called_like_one_of_its_rows(
    run: Run, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked("export", run.folder, "--to", "huggingface", tmp_path / "shared")
    monkeypatch.chdir(photos)
    shutil.copy(photos / "020.png", photos / "0")
    material = open_material(Run.open(tmp_path / "shared"))
    assert (material.pictures, material.visible) == (None, 0)
    assert material.no_pictures


def test_after_a_move_pictures_and_map_come_from_the_store(run: Run, photos: Path, tmp_path: Path) -> None:
    before = gather(open_material(run)).data
    worked("export", run.folder, "--to", "folders", tmp_path / "sorted", "--mode", "move")
    assert not list(photos.glob("*.png"))
    done = worked("report", run.folder)
    assert "without pictures" not in done.out
    after = gather(open_material(run)).data
    assert {name: after[name] for name in ("images", "map", "clusters")} == {
        name: before[name] for name in ("images", "map", "clusters")
    }


def test_a_page_with_pictures_is_not_replaced_by_one_without(run: Run, photos: Path, own_cache: Path) -> None:
    page = run.folder / "report.html"
    before = page.read_bytes()
    photos.rename(photos.parent / "elsewhere")
    shutil.rmtree(own_cache)
    said = command("report", run.folder).complaint
    assert "moved" in said
    assert str(page) in said
    assert page.read_bytes() == before
    os.unlink(page)
    assert "without pictures" in worked("report", run.folder).out
    assert "without pictures" in worked("report", run.folder).out  # one without may be replaced
