"""What comes to the open page from outside: dropped files, updates, trouble; many cards and small screens."""

import base64
import csv
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explorer_server import Served, copied, serving
from explorer_window import Window, sideways
from PIL import Image

from browsing import PHONE, Browser, expect, faults
from command_line import worked
from edited_runs import untrained_run

from report_runs import HOSTILE, hostile_folder, made_run  # isort: skip


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with serving(made_run(tmp_path / "run", hostile_folder(tmp_path / "images"), 3)) as found:
        yield found


def drop(window: Window, files: dict[str, bytes]) -> None:
    """What a browser does when files are let go over the page."""
    sent = [[name, base64.b64encode(content).decode()] for name, content in files.items()]
    held: Any = window.page.evaluate_handle(
        """files => { const held = new DataTransfer();
        for (const [name, text] of files)
          held.items.add(new File([Uint8Array.from(atob(text), c => c.charCodeAt(0))], name));
        return held; }""",
        sent,
    )
    window.page.dispatch_event("main", "dragover", {"dataTransfer": held})
    expect(window.page.locator("body")).to_have_class(re.compile("dropping"))
    window.page.dispatch_event("main", "drop", {"dataTransfer": held})
    expect(window.page.locator("body")).not_to_have_class(re.compile("dropping"))


def test_dropped_files_are_told_their_cluster_and_their_like(browser: Browser, served: Served) -> None:
    window = Window(browser, served)
    page, library = window.page, served.library
    assert library.files is not None
    drop(window, {f"{HOSTILE}.png": Path(str(library.files[2])).read_bytes(), "notes.txt": b"no picture"})
    found = page.locator(".dropped")
    expect(found).to_have_count(2)
    answer = served.client.post("/api/drop", content=Path(str(library.files[2])).read_bytes()).json()
    expect(found.first.locator("h3")).to_have_text(f"Cluster {answer['cluster']}")
    expect(found.first).to_contain_text(HOSTILE)  # as text
    expect(found.first.locator(".thumb")).to_have_count(12)
    assert found.first.locator("img.picture").first.evaluate("image => image.decode().then(() => image.naturalWidth)")
    expect(found.nth(1)).to_contain_text("notes.txt: unreadable: not a known image format")
    assert faults(page) == []
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)
    assert page.evaluate("window.harmed") is None
    assert [said for said in window.complaints if "400" not in said] == []
    assert not (served.run.folder / "edits.jsonl").exists()
    page.close()


def test_the_cluster_of_a_dropped_file_is_gone_to_even_from_itself(browser: Browser, served: Served) -> None:
    assert served.library.files is not None
    content = Path(str(served.library.files[2])).read_bytes()
    cluster = served.client.post("/api/drop", content=content).json()["cluster"]
    window = Window(browser, served, f"#cluster/{cluster}")
    drop(window, {"one.png": content})
    window.page.locator(".dropped h3 a").click()
    expect(window.page.locator("dialog")).to_have_count(0)
    window.page.close()


def test_long_names_of_dropped_files_fit_on_a_phone(browser: Browser, served: Served) -> None:
    window = Window(browser, served, **PHONE)
    assert served.library.files is not None
    drop(window, {f"{'long' * 40}.png": Path(str(served.library.files[2])).read_bytes()})
    expect(window.page.locator(".dropped .thumb")).to_have_count(12)
    assert sideways(window.page) == []
    window.page.close()


def test_what_is_dragged_and_is_no_file_is_left_alone(browser: Browser, served: Served) -> None:
    page = Window(browser, served).page
    held: Any = page.evaluate_handle(
        "() => { const held = new DataTransfer(); held.setData('text/plain', 'words'); return held; }"
    )
    page.dispatch_event("main", "dragover", {"dataTransfer": held})
    page.dispatch_event("main", "drop", {"dataTransfer": held})
    expect(page.locator("dialog")).to_have_count(0)
    page.close()


def test_the_page_shows_what_update_adds(browser: Browser, served: Served, tmp_path: Path) -> None:
    window = Window(browser, served, "#all")
    page = window.page
    before = len(served.rows(of="all"))
    expect(page.locator(".tile")).to_have_count(before)
    (tmp_path / "new").mkdir()
    Image.new("RGB", (24, 24), "red").save(tmp_path / "new" / "late.png")
    worked("update", served.run.folder, tmp_path / "new")
    expect(page.locator(".tile")).to_have_count(before + 1)
    expect(page.locator("#told")).to_contain_text("1 new image")
    expect(page.locator("#source")).to_contain_text(f"{before + 2} images")  # and one that is no picture
    assert window.complaints == []
    page.close()


def test_the_page_says_for_how_long_a_changed_run_cannot_be_opened(
    browser: Browser, served: Served, tmp_path: Path
) -> None:
    page = Window(browser, served, **PHONE).page
    expect(page.locator("#trouble")).to_be_hidden()
    settings = served.run.folder / "config.json"
    whole = settings.read_text()
    (tmp_path / "new").mkdir()
    Image.new("RGB", (24, 24), "red").save(tmp_path / "new" / "late.png")
    updated = copied(served.run, tmp_path / "updated")
    worked("update", updated.folder, tmp_path / "new")
    settings.write_text("damaged")  # before the explorer can notice the update
    shutil.copytree(updated.folder, served.run.folder, ignore=shutil.ignore_patterns("config.json"), dirs_exist_ok=True)
    expect(page.locator("#trouble")).to_contain_text("The run has changed but cannot be opened again: ")
    expect(page.locator("#trouble")).to_contain_text("What you see is how it was before.")
    expect(page.locator(".card")).to_have_count(3)
    assert faults(page) == []
    assert sideways(page) == []
    settings.write_text(whole)
    expect(page.locator("#trouble")).to_be_hidden()
    page.close()


def test_a_server_that_is_gone_is_told_until_it_is_back(browser: Browser, served: Served) -> None:
    page = Window(browser, served).page
    page.route("**/api/number", lambda route: route.abort())
    expect(page.locator("#trouble")).to_contain_text("is twincluster serve still running?")
    page.unroute("**/api/number")
    expect(page.locator("#trouble")).to_be_hidden()
    page.close()


def test_a_thousand_clusters_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (2000, 8, 8, 3)).astype(np.uint8)
    np.save(tmp_path / "noise.npy", images)
    with serving(made_run(tmp_path / "run", tmp_path / "noise.npy", 1000)) as served:
        window = Window(browser, served, **PHONE)
        page = window.page
        expect(page.locator("#views")).to_contain_text("Clusters (1,000)")
        expect(page.locator(".card")).to_have_count(24)
        page.get_by_label("Find a cluster by name or number").fill("cluster 777")
        expect(page.locator(".card")).to_have_count(1)
        page.locator(".card h3 a").tap()
        expect(page.locator(".tile")).to_have_count(2)
        assert sideways(page) == []
        assert window.complaints == []
        page.close()


def test_what_a_phone_has_little_room_for(browser: Browser, served: Served) -> None:
    page = Window(browser, served, **PHONE).page
    for cluster in range(3):
        page.get_by_label(f"Choose Cluster {cluster}").check()  # far below one another
    page.locator("#cluster-2 .deeds").scroll_into_view_if_needed()
    assert page.get_by_role("button", name="Merge", exact=True).evaluate(  # in sight, not under the head of the page
        """button => { const { x, y, width, height } = button.getBoundingClientRect();
        return button.contains(document.elementFromPoint(x + width / 2, y + height / 2)); }"""
    )
    page.get_by_role("button", name="Keys").tap()
    assert page.locator("dialog h2").evaluate("title => title.getBoundingClientRect().top") > 0  # read from the top
    page.close()


def test_without_pictures_images_are_told_apart_by_their_numbers(browser: Browser, tmp_path: Path) -> None:
    with serving(untrained_run(tmp_path / "run", [0, 1, 0, 1, 0])) as served:
        page = Window(browser, served, **PHONE).page
        expect(page.locator("#source")).to_contain_text("without pictures")
        names = page.locator("#cluster-0 .thumb").all_text_contents()
        assert sorted(names) == ["Image 0", "Image 2", "Image 4"]
        assert sideways(page) == []
        assert faults(page) == []
        page.close()


def test_what_is_corrected_on_the_page_is_exported_and_predicted(
    browser: Browser, served: Served, tmp_path: Path
) -> None:
    window = Window(browser, served)
    page = window.page
    page.locator("#cluster-0 h3 a").focus()
    page.keyboard.press("r")
    page.locator("dialog").get_by_label("Name").fill("cats")
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-0 h3")).to_have_text("cats")
    for cluster in (1, 2):
        page.get_by_label(f"Choose Cluster {cluster}").check()
    page.keyboard.press("m")
    page.locator("dialog").get_by_label("Name").fill("dogs")
    page.keyboard.press("Enter")
    expect(page.locator(".card")).to_have_count(2)
    worked("export", served.run.folder, "--to", "csv", tmp_path / "all.csv")
    worked("predict", served.run.folder, tmp_path / "images", "--out", tmp_path / "again.csv")
    model = {path: int(k) for path, k in zip(*_model(served), strict=True)}
    for table in ("all.csv", "again.csv"):
        with open(tmp_path / table, newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["cluster"]]
        assert len(rows) == len(model)
        for row in rows:
            assert row["name"] == ("dogs" if model[row["path"]] else "cats")
    page.close()


def test_pointing_at_the_map_shows_the_image(browser: Browser, served: Served) -> None:
    window = Window(browser, served, "#map")
    page = window.page
    expect(page.locator("canvas")).to_be_visible()
    while not page.evaluate("explorer.view.panel?.map.width > 0"):  # it has not been measured yet
        page.wait_for_timeout(50)
    box = page.locator("canvas").bounding_box()
    assert box is not None
    x, y = page.evaluate("explorer.view.panel?.map.at(5)")
    page.mouse.move(box["x"] + x, box["y"] + y)
    expect(page.locator(".tip img")).to_be_visible()
    assert page.locator(".tip img").evaluate("image => image.decode().then(() => image.naturalWidth)") > 0
    page.mouse.move(box["x"] - 5, box["y"] - 5)
    expect(page.locator(".tip")).to_be_hidden()
    assert window.complaints == []
    page.close()


def _model(served: Served) -> tuple[list[str], list[int]]:
    """Paths and the model's own clusters of what could be read."""
    known = served.run.read_assignments()
    rows = np.flatnonzero(known.clusters >= 0)
    return [known.paths[row] for row in rows], known.clusters[rows].tolist()
