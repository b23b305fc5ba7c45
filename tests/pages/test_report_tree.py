"""The tree in a report: any cut can be looked at offline, and the page names the command that uses it."""

from pathlib import Path

import numpy as np
import pytest
from report_runs import HOSTILE, hostile_folder, made_run

from browsing import PHONE, Browser, expect, faults, watch
from twincluster.pages import write_report
from twincluster.pages.report.material import open_material
from twincluster.pages.report.page import gather
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = made_run(tmp_path / "my run", hostile_folder(tmp_path / "images", per_class=16), 3)
    Edits(run).rename(0, HOSTILE)
    RunImages(run).tree()
    return run


def test_a_reader_looks_at_cuts_and_gets_the_command(browser: Browser, run: Run) -> None:
    path = write_report(run, "none")[0]
    watched = watch(browser, path)
    page = watched.page
    cards = page.locator("#tree .card")
    expect(cards).to_have_count(3)
    assert HOSTILE in page.locator("#tree").inner_text()
    page.get_by_label("Number of clusters").fill("6")
    expect(cards).to_have_count(6)
    expect(page.locator("#tree code")).to_have_text(f"twincluster cut '{run.folder}' --clusters 6")
    page.locator("#tree").get_by_role("button", name="Open Part of").first.click()
    expect(cards).to_have_count(7)
    expect(page.locator("#tree code")).to_have_text(f"twincluster serve '{run.folder}'")
    page.locator("#tree .thumb").first.click()
    expect(page.locator("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    assert watched.requests == []
    assert watched.complaints == []
    assert page.evaluate("window.harmed") is None
    page.close()


def test_it_fits_a_phone_and_is_accessible(browser: Browser, run: Run) -> None:
    path = write_report(run, "none")[0]
    page = watch(browser, path, **PHONE).page
    expect(page.locator("#tree .card").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert faults(page) == []
    page.close()


def test_a_cut_is_said_and_is_no_correction(run: Run) -> None:
    edits = Edits(run)
    tree, _ = RunImages(run).tree()
    edits.cut(tree, 5)
    found = gather(open_material(run, "none")).data
    assert found["run"]["clusters"] == 5
    assert found["run"]["corrections"] == 1  # the name
    assert "The tree of clusters was cut anew; the fit has 3 clusters." in found["head"]["sentences"]
    assert len(found["tree"]["clusters"]) == 5
    sizes = np.array([leaf["size"] for leaf in found["tree"]["leaves"]])
    by_id = {card["id"]: card["size"] for card in found["clusters"]}
    assert all(sizes[one["leaves"]].sum() == by_id[one["id"]] for one in found["tree"]["clusters"])


def test_a_run_without_a_tree_has_a_page_without_it(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", hostile_folder(tmp_path / "images"), 3)
    assert gather(open_material(run, "none")).data["tree"] == {"absent": "the run has no tree"}
