"""The pieces of a page by themselves: places on the map, sheets of tiles, figures, and the commands that write them."""

import io
import os
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from report_runs import made_run
from sklearn.decomposition import PCA

from benchmarks.report import find_browser, write_run
from command_line import TINY, benchmark_worked, colours_file, command, worked
from small_runs import pictures
from twincluster.clustering import neighbours as layout
from twincluster.data import open_source
from twincluster.pages import write_report
from twincluster.pages.report.material import SHEET, make_sheets, tile


def test_pca_is_that_of_scikit_learn_up_to_sign() -> None:
    features = np.random.default_rng(0).normal(size=(50, 7)) * np.arange(1, 8)
    ours, theirs = layout.principal(features, 3), PCA(3).fit_transform(features)
    for column in range(3):
        assert np.allclose(ours[:, column], theirs[:, column]) or np.allclose(ours[:, column], -theirs[:, column])


def test_tsne_keeps_groups_together_and_says_its_name() -> None:
    groups = np.arange(90) % 3
    features = 8 * np.eye(5)[groups] + np.random.default_rng(0).normal(size=(90, 5))
    found = layout.lay_out(features, seed=0)
    assert found.method == "t-SNE"
    places = found.places.astype(float)
    apart = np.hypot(*(places[:, None] - places[None]).transpose(2, 0, 1))
    np.fill_diagonal(apart, np.inf)
    assert (groups[apart.argmin(1)] == groups).mean() > 0.95
    assert np.array_equal(found.places, layout.lay_out(features, seed=0).places)


def test_without_opentsne_the_map_is_pca_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openTSNE", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = layout.lay_out(np.random.default_rng(0).normal(size=(40, 4)))
    assert found.method == "PCA"
    assert (found.places.min(), found.places.max()) == (0, layout.LARGEST)


@pytest.mark.parametrize("method", [None, "t-SNE"])
@pytest.mark.parametrize("features", [np.ones((30, 4)), np.zeros((2, 1)), np.eye(2), np.eye(15)[:, :1]])
def test_features_without_any_shape_still_have_places(features: np.ndarray, method: str | None) -> None:
    places = layout.lay_out(features, method=method).places
    assert places.shape == (len(features), 2)
    assert ((places >= 0) & (places <= layout.LARGEST)).all()


def test_tiles_lie_where_the_page_looks_for_them() -> None:
    smooth = np.zeros((200, 64, 64, 3), np.uint8)
    smooth[..., 0], smooth[..., 1] = np.arange(200)[:, None, None], 255 - np.arange(200)[:, None, None]
    wanted = np.arange(199, -1, -1)
    sheets = make_sheets(smooth, wanted, budget=10**7, largest=64)
    assert (sheets.side, sheets.columns, sheets.per_sheet, sheets.count) == (64, SHEET // 64, (SHEET // 64) ** 2, 200)
    sheet = np.asarray(Image.open(io.BytesIO(sheets.images[0])).convert("RGB")).astype(int)
    for position in (0, 31, 32, 150, 199):
        top, left = position // sheets.columns * 64, position % sheets.columns * 64
        middle = sheet[top + 32, left + 32]
        assert np.abs(middle - smooth[wanted[position], 0, 0]).max() <= 12


def test_many_tiles_spread_over_sheets_and_stay_within_the_budget() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 96, 96, 3)).astype(np.uint8)
    sheets = make_sheets(noise, np.arange(3000) % 40, budget=2_000_000, largest=96)
    assert sum(map(len, sheets.images)) < 2_200_000
    assert len(sheets.images) == -(-3000 // sheets.per_sheet)
    assert sheets.side < 96


def test_small_pictures_keep_their_pixels() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (8, 8, 3)).astype(np.uint8)
    assert np.array_equal(tile(picture, 32), picture.repeat(4, 0).repeat(4, 1))


def test_a_run_of_60000_images_stays_under_15_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.pages.report.material.CPU_FEATURES", 4000)  # the size does not depend on it,
    monkeypatch.setattr("twincluster.clustering.neighbours.FEWEST", 10**9)  # nor on whether the map is t-SNE
    path, _, gathered = write_report(write_run(tmp_path / "noise", 60_000, 1000, 16))
    assert path.stat().st_size < 15e6
    assert gathered.data["run"]["inputs"] == 60_000
    assert gathered.data["map"]["note"] == f"{layout.POINTS:,} of 60,000 images, evenly chosen"


def test_the_benchmark_prints_size_and_load_event() -> None:
    if os.environ.get("TWINCLUSTER_BROWSER") != "required" and find_browser() is None:
        pytest.skip("no Chromium")
    done = benchmark_worked("report", "--images", 60, "--clusters", 3, "--side", 8)
    assert re.search(r"^size +\d\.\d MB", done.out, re.MULTILINE)
    assert re.search(r"^load event +\d+\.\d\d s", done.out, re.MULTILINE)


def test_report_writes_the_page_and_the_figures(tmp_path: Path) -> None:
    source = tmp_path / "colours.npz"
    np.savez(source, images=pictures(30)[0], labels=np.array(["$a$", "b_{", "<c>"])[pictures(30)[1]])
    run = made_run(tmp_path / "run", source, 3)
    done = worked("report", run.folder, "--figures")
    assert str(run.folder / "report.html") in done.out
    names = {"map", "losses", "health", "dec-loss", "sizes", "confusion"}
    assert {path.name for path in (run.folder / "figures").iterdir()} == {
        f"{n}.{s}" for n in names for s in ("png", "svg")
    }
    for name in names:
        with Image.open(run.folder / "figures" / f"{name}.png") as figure:
            assert min(figure.size) > 150
            assert len(set(figure.convert("L").tobytes())) > 8  # something is drawn
        assert ElementTree.parse(run.folder / "figures" / f"{name}.svg").getroot().tag.endswith("svg")


def test_report_of_no_run_says_so(tmp_path: Path) -> None:
    assert "not a run" in command("report", tmp_path).complaint


def test_figures_without_matplotlib_say_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "twincluster[plots]" in command("report", tmp_path, "--figures").complaint


def test_fit_writes_a_report_with_the_labels_it_was_given(tmp_path: Path) -> None:
    done = worked("fit", colours_file(tmp_path), "--clusters", 3, "--out", tmp_path / "run", *TINY)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert f"open {tmp_path / 'run' / 'report.html'} in a browser" in done.out
    assert '"acc":' in page
    assert '"names":["blue","green","red"]' in page


def test_a_source_that_was_listed_just_now_is_not_listed_again(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = made_run(tmp_path / "run", photo_folder, 3)
    expected = write_report(run)[0].read_text(encoding="utf-8")
    listing = open_source(photo_folder)
    monkeypatch.setattr(
        "twincluster.run_images.images.open_source", lambda source, **_: pytest.fail(f"{source} was listed")
    )
    path, some, _ = write_report(run, source=listing)
    assert some.pictures is not None
    assert path.read_text(encoding="utf-8") == expected


def test_a_report_that_fails_costs_a_line_and_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("no such\nluck")

    monkeypatch.setattr("twincluster.pages.report.page.write_report", fail)
    done = worked("fit", colours_file(tmp_path), "--clusters", 3, "--out", tmp_path / "run", *TINY)
    (line,) = [line for line in done.err.splitlines() if "report" in line]
    assert "no such luck" in line
    assert (tmp_path / "run" / "assignments.csv").is_file()
    assert not (tmp_path / "run" / "report.html").exists()


def test_pretrained_features_come_from_the_cache_and_pictures_from_the_store(
    photo_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    worked(
        "fit", photo_folder, "--clusters", 3, "--backbone", "pretrained@64", "--epochs", 1, "--device", "cpu", "--out",
        tmp_path / "run", "--labels", "folders",
    )  # fmt: skip
    from twincluster.pages.report.material import open_material
    from twincluster.runs import Run

    some = open_material(Run.open(tmp_path / "run"), "folders")
    assert some.pictures is not None
    assert some.pictures.side == 64
    assert sum(row in some.pictures for row in range(62)) == 60
    assert len(some.features) == 60
    assert some.scores is not None
