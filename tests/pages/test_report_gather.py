"""What a page says of a run: the right images, the right numbers, and why whatever is missing is missing."""

import json
from pathlib import Path

import numpy as np
import pytest
from report_runs import CLASSES, HOSTILE, hostile_folder, made_run, material, metrics_row

from small_runs import pictures, rows
from twincluster.clustering import score
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.pages import write_report
from twincluster.pages.report import material as problems
from twincluster.pages.report.material import centres, open_material, per_card, representatives, spread_evenly
from twincluster.pages.report.page import curves_of, gather, page_of
from twincluster.runs import Run

SHORT = {"train": {"epochs": 1, "backbone": "small", "image_size": 8}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    np.savez(tmp_path / "colours.npz", images=pictures(40)[0], labels=pictures(40)[1])
    return tmp_path / "colours.npz"


@pytest.fixture
def run(tmp_path: Path, source: Path) -> Run:
    return made_run(tmp_path / "run", source, 4)


def test_cards_hold_sizes_shares_and_mean_confidence(run: Run) -> None:
    found, assignments = gather(open_material(run)).data["clusters"], run.read_assignments()
    assert [cluster["id"] for cluster in found] == [0, 1, 2, 3]
    for cluster in found:
        mine = [c for c, k in zip(assignments.confidence, assignments.clusters, strict=True) if k == cluster["id"]]
        assert cluster["size"] == len(mine) == 10
        assert cluster["share"] == pytest.approx(0.25)
        assert cluster["confidence"] == pytest.approx(sum(mine) / len(mine), abs=1e-4)


def first_sentence(run: Run) -> str:
    return str(gather(open_material(run)).data["head"]["sentences"][0])


def test_how_firm_clusters_are_is_told_by_views_where_confidence_is_set_by_a_scale(
    tmp_path: Path, source: Path
) -> None:
    ahead = "One cluster is clearly ahead for 70% of them"
    run = made_run(tmp_path / "run", source, 4)
    assert first_sentence(run) == f"{ahead}; in training two views of an image fell into the same one in 90%."
    run.append_metrics(metrics_row(6, 5))  # the number of clusters was chosen afterwards: these were others
    assert first_sentence(run) == f"{ahead}."
    other = made_run(tmp_path / "tcc", source, 4, None, {"method": "tcc"})
    said = first_sentence(other)
    assert said.startswith(f"{ahead}; the mean confidence is .6")
    assert said.endswith(", which is low: take the clusters as a first draft.")


def test_typical_images_are_nearest_to_the_centre_and_doubtful_ones_least_certain(run: Run) -> None:
    random = np.random.default_rng(0)
    clusters = np.arange(90) % 3
    some = material(random.normal(size=(90, 24)) + 3 * np.eye(24)[clusters], clusters, run, random.random(90))
    n_typical, n_doubtful = per_card(3)
    for k, (typical, doubtful) in enumerate(representatives(some, centres(some))):
        members = [row for row in range(90) if clusters[row] == k]
        centre = sum(some.features[row] for row in members)
        nearest = sorted(members, key=lambda row: -float(some.features[row] @ centre))
        certain = sorted(members, key=lambda row: some.confidence[row])
        assert typical == nearest[:n_typical]
        assert doubtful == [row for row in certain if row not in typical][:n_doubtful]


def test_copies_of_a_typical_image_come_last(run: Run) -> None:
    features = np.eye(8)[[0] * 30 + [1, 2, 3] + [7] * 9] + 0.2
    some = material(features, np.repeat([0, 1], [33, 9]), run)
    typical, _ = representatives(some, centres(some))[0]
    assert {30, 31, 32} <= set(typical)


def test_small_clusters_show_nothing_twice(run: Run) -> None:
    some = material(np.random.default_rng(0).normal(size=(4, 5)), np.array([0, 1, 1, 1]), run)
    (one, nobody), (two, other) = representatives(some, centres(some))
    assert (one, nobody) == ([0], [])
    assert sorted(two + other) == [1, 2, 3]


@pytest.mark.parametrize("n_clusters", [2, 10, 100, 1000])
def test_a_card_has_images_however_many_cards_there_are(n_clusters: int) -> None:
    typical, doubtful = per_card(n_clusters)
    assert typical >= 2
    assert doubtful >= 1
    assert n_clusters * (typical + doubtful) <= 4000


def test_copies_are_listed_below_the_best_of_their_group(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3)).astype(np.uint8)
    images[17] = images[20] = images[3]
    images[25] = np.clip(images[8].astype(int) + 2, 0, 255)
    np.save(tmp_path / "noise.npy", images)
    found = gather(open_material(made_run(tmp_path / "run", tmp_path / "noise.npy", 2))).data
    paths, kinds = found["images"]["path"], {kind["kind"]: kind for kind in found["cleanup"]}
    groups = [
        [paths[group["best"]], *(paths[image] for image, _ in group["copies"])]
        for kind in kinds.values()
        for group in kind["groups"]
    ]
    assert groups == [["3", "17", "20"], ["8", "25"]]
    assert (kinds["exact_copy"]["count"], kinds["near_copy"]["count"]) == (2, 1)


def test_clusters_drawn_from_one_cloud_look_alike(run: Run) -> None:
    random, clusters = np.random.default_rng(1), np.arange(120) % 4
    middle = np.eye(6)[[0, 1, 2, 2]]  # the last two share a centre
    some = material(5 * middle[clusters] + random.normal(size=(120, 6)), clusters, run)
    found = problems.lookalikes(some, centres(some), problems.neighbourhood_of(some))
    assert [pair["clusters"] for pair in found] == [[2, 3]]


def test_tiny_and_empty_clusters() -> None:
    assert problems.small_clusters(np.array([100, 0, 3, 100, 97])) == ([2], [1])
    assert problems.small_clusters(np.array([5, 5])) == ([], [])


def test_labels_give_scores_purity_and_a_confusion_matrix(run: Run) -> None:
    found = gather(open_material(run)).data
    clusters, labels = run.read_assignments().clusters, pictures(40)[1]
    expected = score(labels, clusters)
    assert found["labels"]["acc"] == pytest.approx(expected.acc, abs=1e-4)
    assert found["labels"]["names"] == ["0", "1", "2"]
    table = found["labels"]["confusion"]
    for k, counts in zip(table["clusters"], table["counts"], strict=True):
        assert counts == [int(((clusters == k) & (labels == c)).sum()) for c in table["classes"]]
        assert found["clusters"][k]["purity"] == pytest.approx(max(counts) / sum(counts), abs=1e-4)
    assert "acc" not in gather(open_material(run, "none")).data["labels"]


def test_unreadable_files_are_told_with_their_reason_and_have_no_picture(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", hostile_folder(tmp_path / "photos"), 3)
    found = gather(open_material(run, "folders")).data
    ((path, why),) = found["problems"]["unreadable"]["listed"]
    assert (path, why) == (f"{HOSTILE}/broken {HOSTILE}.png", "not a known image format")
    assert path not in found["images"]["path"]
    assert set(found["labels"]["names"]) == set(CLASSES)


def test_no_name_can_leave_its_place_in_the_page(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", hostile_folder(tmp_path / "photos"), 3)
    path, _, gathered = write_report(run, "folders")
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("<script") == 3
    data = text.split('id="data">')[1].split("</script>")[0]
    assert json.loads(data)["images"]["path"] == gathered.data["images"]["path"]


def test_images_that_moved_are_said_to_have(tmp_path: Path, run: Run, source: Path) -> None:
    source.rename(tmp_path / "elsewhere.npz")
    some = open_material(run)
    assert "moved" in some.no_pictures
    found = gather(some).data
    assert "moved" in found["map"]["absent"]
    assert all(len(cluster["typical"]) for cluster in found["clusters"])  # by confidence
    assert found["images"]["large"] == [-1] * len(found["images"]["path"])
    assert "moved" in page_of(some, gather(some))


def test_a_run_made_in_python_has_a_report_without_pictures(tmp_path: Path) -> None:
    model = TwinContrastClustering(n_clusters=2, settings=SHORT, device="cpu")
    model.fit(pictures(24)[0]).save(tmp_path / "run")
    path, some, gathered = write_report(Run.open(tmp_path / "run"))
    assert "Python" in some.no_pictures
    assert sum(cluster["size"] for cluster in gathered.data["clusters"]) == 24
    assert "Python" in path.read_text(encoding="utf-8")


def test_rows_of_numbers_have_a_map_and_no_pictures(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows(40))
    some = open_material(made_run(tmp_path / "run", tmp_path / "rows.npy", 3))
    found = gather(some).data
    assert some.pictures is None
    assert found["run"]["kind"] == "rows"
    assert len(found["map"]["x"]) == 40
    assert "rows" in found["thumbnails"]["absent"]


def test_labels_that_fit_nothing_are_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        open_material(run, str(tmp_path / "none.csv"))


def test_features_are_looked_at_evenly(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.pages.report.material.FEWEST_FEATURES", 8)
    monkeypatch.setattr("twincluster.pages.report.material.CPU_FEATURES", 8)
    some = open_material(run, device="cpu")
    assert some.rows.tolist() == spread_evenly(np.arange(40), 8).tolist() == [0, 6, 11, 17, 22, 28, 33, 39]
    assert gather(some).data["map"]["note"] == "8 of 40 images, evenly chosen"


def test_curves_keep_both_ends_and_leave_out_what_was_not_recorded() -> None:
    found = curves_of([metrics_row(epoch, 10) for epoch in range(1000)])
    assert (found["epochs"][0], found["epochs"][-1], len(found["epochs"])) == (1, 1000, 200)
    assert [group["title"] for group in found["groups"]] == ["Losses", "Health", "DEC loss"]
    assert [moment["epoch"] for moment in found["histograms"]] == [1, 251, 501, 750, 1000]
    for moment in found["histograms"]:
        assert sum(moment["shares"]) == pytest.approx(1, abs=1e-3)
        assert moment["shares"] == sorted(moment["shares"], reverse=True)
    assert curves_of([])["groups"] == []


def test_an_epoch_without_a_loss_is_not_drawn_at_zero() -> None:
    """With nothing in the queue to compare with, or before a term begins, metrics.jsonl says null."""
    rows = [metrics_row(epoch, 3) | ({"loss": None, "cluster_loss": None} if epoch < 2 else {}) for epoch in range(6)]
    rows[4]["loss"] = float("nan")
    rows[3]["relabelled"] = 0.0  # which is a value
    found = {line["name"]: line["values"] for group in curves_of(rows)["groups"] for line in group["lines"]}
    assert found["loss"] == [None, None, 5.0, 4.5, None, 3.5]
    assert found["cluster track"][:3] == [None, None, 1.5]
    assert found["changed cluster"] == [None, None, None, 0.0, None, None]


def test_two_clusters(tmp_path: Path, source: Path) -> None:
    path, _, gathered = write_report(made_run(tmp_path / "run", source, 2))
    assert gathered.data["head"]["title"] == "40 images of colours.npz in 2 clusters"
    assert path.is_file()
