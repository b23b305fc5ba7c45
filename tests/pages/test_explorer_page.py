"""The explorer in a real browser: browse, select, correct, undo, by mouse and by keyboard, in two windows at once."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from explorer_server import Served, cache_in, serving
from explorer_window import Window, sideways

from browsing import PHONE, Browser, Page, expect, faults

from report_runs import HOSTILE, hostile_folder, made_run  # isort: skip
from benchmarks.explorer import JUMP, SCROLL, SELECT
from twincluster.runs import Edits, Run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("explored")
    with cache_in(folder / "cache"):
        yield made_run(folder / "run", hostile_folder(folder / HOSTILE), 3)


@pytest.fixture
def window(browser: Browser, served: Served) -> Iterator[Window]:
    found = Window(browser, served)
    yield found
    assert [said for said in found.complaints if "409" not in said] == []
    assert found.page.evaluate("window.harmed") is None
    assert all(url.startswith((served.url, "data:")) for url in found.requests)
    found.page.close()


def open_cluster(page: Page, cluster: int) -> None:
    page.locator(f"#cluster-{cluster} h3 a").click()
    expect(page.locator(".tile").first).to_be_visible()


def answer(page: Page, label: str, text: str, action: str) -> None:
    page.locator("dialog").get_by_label(label).fill(text)
    page.locator("dialog").get_by_role("button", name=action, exact=True).click()
    expect(page.locator("dialog")).to_have_count(0)


def selected(page: Page) -> int:
    return page.locator(".tile[aria-selected=true]").count()


def test_clusters_are_shown_and_found_by_name(window: Window) -> None:
    page = window.page
    expect(page.locator(".card")).to_have_count(3)
    expect(page.locator(".card img").first).to_have_js_property("complete", True)
    assert page.locator(".card img").first.evaluate("image => image.naturalWidth") > 0
    page.get_by_label("Find a cluster by name or number").fill("cluster 2")
    expect(page.locator(".card")).to_have_count(1)


def test_rename_is_kept_over_a_reload_and_markup_stays_text(window: Window, served: Served) -> None:
    page = window.page
    page.locator("#cluster-1 h3 a").focus()
    page.keyboard.press("r")
    answer(page, "Name", HOSTILE, "Rename")
    expect(page.locator("#cluster-1 h3")).to_have_text(HOSTILE)
    assert Edits(served.run).state.names[1] == HOSTILE
    page.reload()
    expect(page.locator("#cluster-1 h3")).to_have_text(HOSTILE)
    open_cluster(page, 1)
    expect(page.locator("#title")).to_have_text(HOSTILE)
    page.keyboard.press("u")
    expect(page.locator("#title")).to_have_text("Cluster 1")


def test_merge_by_choosing_cards_then_undo_and_redo(window: Window, served: Served) -> None:
    page = window.page
    page.get_by_label("Choose Cluster 0").check()
    page.get_by_label("Choose Cluster 2").check()
    page.keyboard.press("m")
    answer(page, "Name", "both", "Merge")
    expect(page.locator(".card")).to_have_count(2)
    assert "both" in Edits(served.run).state.names.values()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".card")).to_have_count(3)
    page.get_by_role("button", name="Redo").click()
    expect(page.locator(".card")).to_have_count(2)


def test_split_by_k_means(window: Window, served: Served) -> None:
    page = window.page
    open_cluster(page, 0)
    page.get_by_role("button", name="Split…").click()
    answer(page, "Parts", "2", "Split")
    expect(page.locator(".card")).to_have_count(4)
    names = set(Edits(served.run).state.names.values())
    assert {"0, part 1", "0, part 2"} <= names


def test_select_by_mouse_and_keyboard(window: Window, served: Served) -> None:
    page = window.page
    open_cluster(page, 0)
    tiles = page.locator(".tile")
    everyone = len(served.rows(of="cluster", cluster=0))
    expect(tiles).to_have_count(everyone)
    tiles.nth(1).click()
    assert selected(page) == 1
    tiles.nth(4).click(modifiers=["Shift"])
    assert selected(page) == 4
    tiles.nth(6).click(modifiers=["Control"])
    assert selected(page) == 5
    tiles.nth(0).click()
    for key in ("ArrowRight", "Space", "Shift+ArrowRight"):
        page.keyboard.press(key)
    assert selected(page) == 2
    page.keyboard.press("Control+a")
    assert selected(page) == everyone
    page.keyboard.press("Escape")
    assert selected(page) == 0
    expect(page.locator(".grid")).to_have_attribute("aria-activedescendant", "tile-2")


def test_move_junk_and_split_off_what_is_selected(window: Window, served: Served) -> None:
    page = window.page
    open_cluster(page, 0)
    first, *others = served.rows(of="cluster", cluster=0)
    page.keyboard.press("Space")
    page.keyboard.press("m")
    assert "Cluster 0" not in page.locator("dialog select").inner_text()  # where they are already
    page.locator("dialog input").fill("cluster 2")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    assert first in Edits(served.run).state.members(2)
    expect(page.locator(".chosen .figure")).to_have_text("8 images")
    page.locator(".tile").first.click()
    page.keyboard.press("n")
    answer(page, "Name", "alone", "Make it")
    expect(page.locator(".chosen .figure")).to_have_text("7 images")
    page.locator(".tile").first.click()
    page.keyboard.press("j")
    expect(page.locator("#views")).to_contain_text("Junk (1)")
    expect(page.locator(".chosen .figure")).to_have_text("6 images")
    page.locator(".tile").first.click()
    page.keyboard.press("s")
    answer(page, "Name of the new cluster", "part", "Split off")
    state = Edits(served.run).state
    names = {name: cluster for cluster, name in state.names.items()}
    assert state.junk.sum() == 1
    assert set(np.flatnonzero(state.junk).tolist()) <= set(others)
    assert len(state.members(names["alone"])) == len(state.members(names["part"])) == 1
    page.get_by_role("link", name="Junk (1)").click()
    expect(page.locator(".tile")).to_have_count(1)
    page.keyboard.press("Control+a")
    page.keyboard.press("j")
    expect(page.locator("#views")).to_contain_text("Junk (0)")


def test_with_one_cluster_left_images_move_to_a_new_one(window: Window, served: Served) -> None:
    served.edit("merge", clusters=[0, 1, 2])
    page = window.page
    expect(page.locator(".card")).to_have_count(1)
    open_cluster(page, 0)
    page.keyboard.press("m")
    expect(page.locator("#told")).to_have_text("There is no other cluster to merge with.")
    expect(page.locator("dialog")).to_have_count(0)
    page.keyboard.press("Space")
    page.get_by_role("button", name="Move…").click()
    answer(page, "Name", "second", "Make it")
    expect(page.locator("#told")).to_have_text("A new cluster has 1 image.")
    assert sorted(Edits(served.run).state.names.values()) == ["0", "second"]


def test_an_image_opens_with_its_neighbours(window: Window, served: Served) -> None:
    page = window.page
    open_cluster(page, 0)
    rows = served.rows(of="cluster", cluster=0)
    page.keyboard.press("Enter")
    expect(page.locator("#viewer-path")).to_have_text(served.library.assignments.paths[rows[0]])
    expect(page.locator("dialog .near .thumb")).to_have_count(24)
    page.keyboard.press("ArrowRight")
    expect(page.locator("#viewer-path")).to_have_text(served.library.assignments.paths[rows[1]])
    with page.context.expect_page() as whole:  # as large as the window
        page.locator("dialog .whole").click()
    assert whole.value.evaluate("document.images[0].naturalWidth") == 24
    whole.value.close()
    assert page.locator("dialog .whole").evaluate("image => image.decode().then(() => image.naturalWidth)") == 24
    page.keyboard.press("Escape")
    expect(page.locator("dialog")).to_have_count(0)


def test_only_images_whose_path_fits_are_shown(window: Window, served: Served) -> None:
    page = window.page
    page.get_by_role("link", name="All images").click()
    expect(page.locator(".tile").first).to_be_visible()  # before, there is nothing to search in
    page.keyboard.press("/")
    page.keyboard.type("copy ")
    expect(page.locator(".tile")).to_have_count(2)


def test_two_windows_at_once_lose_nothing(browser: Browser, window: Window, served: Served) -> None:
    other = Window(browser, served)
    for page, name in ((window.page, "first"), (other.page, "second")):
        page.locator("#cluster-0 h3 a").focus()
        page.keyboard.press("r")
        page.locator("dialog").get_by_label("Name").fill(name)
    window.page.keyboard.press("Enter")
    expect(window.page.locator("#cluster-0 h3")).to_have_text("first")
    other.page.evaluate("explorer.talk.state.number = 0")  # as if it had not looked yet
    other.page.keyboard.press("Enter")
    expect(other.page.locator("dialog [role=alert]")).to_contain_text("rename cluster 0 to first")
    assert Edits(served.run).state.names[0] == "first"
    other.page.keyboard.press("Enter")  # what was typed is still there
    expect(other.page.locator("#cluster-0 h3")).to_have_text("second")
    expect(window.page.locator("#cluster-0 h3")).to_have_text("second")  # without being asked
    expect(window.page.locator("#told")).to_contain_text("another window")
    other.page.close()


def test_a_lasso_on_the_map_selects(window: Window, served: Served) -> None:
    page = window.page
    page.get_by_role("link", name="Map").click()
    expect(page.locator("canvas")).to_be_visible()
    page.get_by_role("button", name="Select", exact=True).click()
    box = page.locator("canvas").bounding_box()
    assert box is not None
    left, top, right, bottom = box["x"] + 3, box["y"] + 3, box["x"] + box["width"] - 3, box["y"] + box["height"] - 3
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((right, top), (right, bottom), (left, bottom)):
        page.mouse.move(x, y, steps=4)
    page.mouse.up()
    everyone = int((served.library.assignments.clusters >= 0).sum())
    expect(page.locator(".chosen .figure")).to_have_text(f"{everyone} of {everyone} selected")
    page.keyboard.press("n")
    answer(page, "Name", "all of them", "Make it")
    assert len(Edits(served.run).state.members(3)) == everyone


def test_a_chosen_file_is_told_its_cluster(window: Window, served: Served) -> None:
    page = window.page
    assert served.library.files is not None
    page.locator("input[type=file]").set_input_files(str(served.library.files[2]))
    expect(page.locator(".dropped h3")).to_contain_text("Cluster")
    expect(page.locator(".dropped .thumb")).to_have_count(12)


def test_ten_thousand_images_ask_only_for_pictures_in_sight(browser: Browser, tmp_path: Path) -> None:
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).integers(0, 256, (10_000, 8, 8, 3)).astype(np.uint8))
    with serving(made_run(tmp_path / "run", tmp_path / "noise.npy", 2)) as served:
        window = Window(browser, served, "#all")
        page = window.page
        page.locator(".tile img").nth(20).wait_for()
        page.locator(".grid").focus()
        page.keyboard.press("End")
        expect(page.locator("#tile-9999 img")).to_be_visible()
        asked = [url for url in window.requests if "/api/thumbnail/" in url]
        assert len(asked) < 400
        assert 70 < page.evaluate(JUMP) < 60_000  # what `python -m benchmarks explorer` measures; a tile waits 70 ms
        assert page.evaluate("document.querySelector('.tile img').naturalWidth") > 0
        assert 0 < page.evaluate(SELECT) < 60_000
        expect(page.locator(".chosen .figure")).to_have_text("10,000 of 10,000 selected")
        assert 0 < page.evaluate(SCROLL, 4) < 60_000
        assert page.locator(".tile").count() < 200
        page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("where", ["", "#cluster/0", "#map"])
def test_no_accessibility_fault(browser: Browser, served: Served, where: str, theme: str) -> None:
    page = Window(browser, served, where, color_scheme=theme).page
    if where == "#cluster/0":
        page.wait_for_selector(".tile img")
        page.keyboard.press("Space")
        assert faults(page) == []
        page.keyboard.press("m")
        assert faults(page) == []
        page.keyboard.press("Escape")
        page.keyboard.press("Enter")
        page.wait_for_selector(".near .thumb")
    elif where == "#map":
        page.wait_for_selector("canvas")
    assert faults(page) == []
    page.close()


def test_nothing_is_sideways_on_a_phone(browser: Browser, served: Served) -> None:
    Edits(served.run).rename(0, "a" * 200)
    page = Window(browser, served, **PHONE).page
    for where in ("clusters", "cluster/0", "all", "junk", "unreadable", "map"):
        page.evaluate(f"location.hash = '{where}'")
        page.wait_for_timeout(300)
        assert sideways(page) == [], where
    page.evaluate("location.hash = 'cluster/1'")
    page.locator(".tile").first.tap()
    page.locator(".tile").nth(2).tap()
    assert selected(page) == 2
    page.get_by_role("button", name="Open", exact=True).tap()
    expect(page.locator(".near .thumb").first).to_be_visible()
    assert sideways(page) == []
    page.close()
