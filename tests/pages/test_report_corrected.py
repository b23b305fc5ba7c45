"""Reports of runs that a person has corrected: names, merges, splits, moves and junk as the explorer has them."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import HOSTILE, made_run

from browsing import PHONE, Browser, faults, watch
from command_line import worked
from edited_runs import features
from small_runs import pictures
from twincluster.clustering import score
from twincluster.pages import write_report
from twincluster.pages.report.material import open_material
from twincluster.pages.report.page import gather
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run

JUNK = [1, 5]


@pytest.fixture(autouse=True)
def quick_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.clustering.neighbours.FEWEST", 10**6)  # PCA, not t-SNE


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """40 pictures with labels: 0 has a name, 2 is part of 1, 3 became 4 and 5, and two images are junk."""
    np.savez(tmp_path / "colours.npz", images=pictures(40)[0], labels=pictures(40)[1])
    found = made_run(tmp_path / "run", tmp_path / "colours.npz", 4)
    edits = Edits(found)
    edits.rename(0, HOSTILE)
    edits.merge([1, 2])
    edits.split(3, 2, features)
    edits.move([4], 1)
    edits.mark_junk(JUNK)
    return found


def test_cards_are_of_the_clusters_as_they_are_now(run: Run) -> None:
    found, state = gather(open_material(run)).data, Edits(run).state
    cards = {card["id"]: card for card in found["clusters"]}
    assert {cluster: card["size"] for cluster, card in cards.items()} == state.sizes()
    assert sorted(cards) == [0, 1, 4, 5]
    assert [cards[cluster]["name"] for cluster in (0, 1, 4)] == [HOSTILE, "Cluster 1", "3, part 1"]
    paths, members = found["images"]["path"], {cluster: state.members(cluster) for cluster in cards}
    for cluster, card in cards.items():
        shown = {int(paths[image]) for image in card["typical"] + card["doubtful"]}
        assert shown
        assert shown <= set(members[cluster].tolist())
    assert set(found["images"]["cluster"]) == set(cards)
    assert not {str(row) for row in JUNK} & set(paths)


def test_the_head_counts_corrections_and_junk(run: Run) -> None:
    found = gather(open_material(run)).data
    assert found["head"]["title"] == "38 images of colours.npz in 4 clusters"
    said = " ".join(found["head"]["sentences"])
    assert "5 corrections by hand are in them." in said
    assert "2 images marked as junk are left out." in said
    assert found["map"]["note"] == "all 38 images"
    assert found["problems"]["unreadable"]["count"] == 0
    Edits(run).undo()
    assert "junk" not in " ".join(gather(open_material(run)).data["head"]["sentences"])


def test_the_head_speaks_of_one_as_of_one(run: Run) -> None:
    Edits(run).merge([0, 1, 4, 5])
    found = gather(open_material(run)).data["head"]
    assert found["title"] == "38 images of colours.npz in 1 cluster"
    assert found["facts"][:2] == [{"value": "38", "label": "images"}, {"value": "1", "label": "cluster"}]
    Edits(run).mark_junk(set(range(39)) - set(JUNK))
    found = gather(open_material(run)).data["head"]
    assert found["title"] == "1 image of colours.npz in 1 cluster"
    assert found["facts"][0] == {"value": "1", "label": "image"}


def test_of_junk_alone_no_corrections_are_told(run: Run) -> None:
    Edits(run).mark_junk(set(range(40)) - set(JUNK))
    found = gather(open_material(run)).data["head"]
    assert found["title"].startswith("0 images of colours.npz")
    assert "in them" not in " ".join(found["sentences"])
    assert "40 images marked as junk are left out." in found["sentences"]


def test_an_edit_made_meanwhile_is_not_counted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count is of the edits that the clusters have."""
    read = RunImages.edited

    def edited(inputs: RunImages) -> Any:
        found = read(inputs)
        Edits(inputs.run).rename(1, "later")
        return found

    monkeypatch.setattr(RunImages, "edited", edited)
    found = gather(open_material(run)).data
    assert "later" not in [card["name"] for card in found["clusters"]]
    assert found["run"]["corrections"] == 5


def test_scores_are_of_the_corrected_clusters(run: Run) -> None:
    found, clusters, truth = gather(open_material(run)).data, Edits(run).state.clusters, pictures(40)[1]
    known = clusters >= 0
    _, codes = np.unique(clusters[known], return_inverse=True)
    assert found["labels"]["acc"] == pytest.approx(score(truth[known], codes).acc, abs=1e-4)
    table = found["labels"]["confusion"]
    for cluster, counts in zip(table["clusters"], table["counts"], strict=True):
        held = Counter(truth[clusters == cluster].tolist())
        assert counts == [held[code] for code in table["classes"]]


def test_edits_that_were_all_undone_leave_the_models_clusters(run: Run) -> None:
    for _ in range(5):
        Edits(run).undo()
    found = gather(open_material(run)).data
    assert [card["name"] for card in found["clusters"]] == [f"Cluster {k}" for k in range(4)]
    assert (found["run"]["corrections"], found["run"]["readable"]) == (0, 40)


def test_figures_have_the_names(run: Run) -> None:
    pytest.importorskip("matplotlib")
    worked("report", run.folder, "--figures", "--labels", "none")
    drawn = (run.folder / "figures" / "map.svg").read_text()
    for name in ("&lt;img src=x", "3, part 2"):  # matplotlib writes each text beside its shape, as a comment
        assert name in drawn


def test_the_page_shows_names_as_text_and_finds_clusters_by_them(browser: Browser, run: Run) -> None:
    watched = watch(browser, write_report(run)[0], **PHONE)
    page = watched.page
    page.get_by_role("button", name="Name", exact=True).click()
    titles = page.locator(".card h3").all_text_contents()
    assert HOSTILE in titles
    assert "3, part 1" in titles  # a name of somebody's own, not that of the commonest class
    assert page.locator(".confusion tbody th").all_text_contents().count(HOSTILE) == 1
    page.locator(".confusion tbody th button").get_by_text(HOSTILE).click()
    assert page.evaluate("document.activeElement.textContent") == HOSTILE
    page.locator(".card .thumb").first.click()
    assert page.locator("dialog[open] .note").first.is_visible()
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert faults(page) == []
    assert (page.evaluate("window.harmed"), watched.requests, watched.complaints) == (None, [], [])
    page.close()
