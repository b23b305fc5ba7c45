"""Ways through the explorer in a real browser: back and forth, by keyboard alone, and what must not move meanwhile."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from explorer_server import Served, cache_in
from explorer_window import Window

from browsing import PHONE, Browser, Page, expect, faults

from report_runs import made_run  # isort: skip
from twincluster.runs import Edits, Run

MANY = 40  # clusters, of which the page shows 24 at first


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("ways")
    pictures = np.random.default_rng(0).integers(0, 256, (5 * MANY, 8, 8, 3)).astype(np.uint8)
    np.save(folder / "noise.npy", pictures)
    with cache_in(folder / "cache"):
        yield made_run(folder / "run", folder / "noise.npy", MANY)


@pytest.fixture
def page(browser: Browser, served: Served) -> Iterator[Page]:
    window = Window(browser, served)
    yield window.page
    assert window.complaints == []
    window.page.close()


def focused(page: Page) -> str:
    """The beginning of what the element with the focus says."""
    return str(page.evaluate("document.activeElement.textContent.trim().slice(0, 40)"))


def place_of(page: Page, cluster: int) -> float:
    box = page.locator(f"#cluster-{cluster}").bounding_box()
    assert box is not None
    return float(box["y"])


@pytest.mark.parametrize("way", ["back", "escape", "link"])
def test_the_clusters_are_found_again_as_they_were_left(page: Page, way: str) -> None:
    page.get_by_role("button", name="Name", exact=True).click()
    page.get_by_role("button", name="Show 16 more").click()
    page.locator("#cluster-30 h3 a").scroll_into_view_if_needed()
    before = place_of(page, 30)
    page.locator("#cluster-30 h3 a").click()
    expect(page.locator(".tile").first).to_be_visible()
    {
        "back": page.go_back,
        "escape": lambda: page.keyboard.press("Escape"),
        "link": lambda: page.get_by_role("link", name="Clusters (40)").click(),
    }[way]()
    expect(page.locator("#cluster-30 h3 a")).to_be_focused()
    expect(page.get_by_role("button", name="Name", exact=True)).to_have_attribute("aria-pressed", "true")
    assert abs(place_of(page, 30) - before) < 30
    page.keyboard.press("ArrowRight")
    expect(page.locator("#cluster-31 h3 a")).to_be_focused()


def test_what_was_searched_for_stays_and_a_cluster_beyond_it_is_shown_all_the_same(page: Page) -> None:
    search = page.get_by_label("Find a cluster by name or number")
    search.fill("cluster 3")
    page.locator("#cluster-33 h3 a").click()
    expect(page.locator(".grid")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#cluster-33 h3 a")).to_be_focused()
    expect(search).to_have_value("cluster 3")
    expect(page.locator(".card")).to_have_count(11)
    page.evaluate("location.hash = 'cluster/9'")
    expect(page.locator(".grid")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.locator("#cluster-9 h3 a")).to_be_focused()
    expect(search).to_have_value("")


def test_a_question_does_not_outlive_what_it_is_about(page: Page, served: Served) -> None:
    page.evaluate("location.hash = 'cluster/3'")
    expect(page.locator("#title")).to_have_text("Cluster 3")
    page.evaluate("location.hash = 'cluster/4'")
    expect(page.locator("#title")).to_have_text("Cluster 4")
    page.keyboard.press("r")
    expect(page.locator("dialog")).to_be_visible()
    page.go_back()
    expect(page.locator("#title")).to_have_text("Cluster 3")
    expect(page.locator("dialog")).to_have_count(0)
    expect(page.locator(".grid")).to_be_focused()


def test_the_address_of_a_cluster_that_is_gone_becomes_that_of_all(page: Page, served: Served) -> None:
    served.edit("merge", clusters=[0, 1])
    expect(page.locator("#told")).to_contain_text("Changed in another window")
    page.evaluate("location.hash = 'cluster/1'")
    expect(page.locator("#told")).to_have_text("That cluster is not there any more.")
    assert page.evaluate("location.hash") == "#clusters"


def test_the_link_to_the_images_survives_a_reload(page: Page) -> None:
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.reload()
    expect(page.locator(".card").first).to_be_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_the_first_tick_moves_nothing(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    before = place_of(page, 0)
    page.get_by_label("Choose Cluster 0", exact=True).check()
    expect(page.get_by_role("button", name="Merge into…")).to_be_visible()
    assert place_of(page, 0) == before
    page.get_by_role("button", name="Choose none").click()
    expect(page.get_by_text("Tick clusters to merge them.")).to_be_visible()
    expect(page.locator("#main")).to_be_focused()
    assert place_of(page, 0) == before


def test_what_comes_of_a_correction_is_in_sight_with_the_focus(page: Page, served: Served) -> None:
    page.locator("#cluster-20 h3 a").scroll_into_view_if_needed()
    page.get_by_role("button", name="Rename Cluster 20").click()
    page.keyboard.type("twenty")
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-20 h3 a")).to_be_focused()
    assert focused(page) == "twenty"
    page.keyboard.press("s")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    sizes = {name: size for name, size in _sizes(served).items() if name.startswith("twenty")}
    (one, first), (other, second) = sizes.items()
    expect(page.locator("#told")).to_have_text(f"Split twenty: {one} ({first}); {other} ({second}).")
    expect(page.locator(".card h3 a:focus")).to_have_text(one)
    expect(page.locator(".card:focus-within")).to_be_in_viewport()
    for cluster in (2, 3):
        page.get_by_label(f"Choose Cluster {cluster}", exact=True).check()
    page.keyboard.press("m")
    page.keyboard.type("two and three")
    page.keyboard.press("Enter")
    expect(page.locator(".card h3 a:focus")).to_have_text("two and three")
    expect(page.locator(".card:focus-within")).to_be_in_viewport()


def _sizes(served: Served) -> dict[str, int]:
    return {one["name"]: one["size"] for one in served.state["clusters"]}


def test_the_keyboard_keeps_its_place(page: Page) -> None:
    page.get_by_role("link", name="Map").press("Enter")
    page.wait_for_selector("canvas")
    assert page.evaluate("document.activeElement.id") == "main"
    key = page.locator(".legend button").first
    key.press("Enter")
    expect(key).to_be_focused()
    expect(key).to_have_attribute("aria-pressed", "true")
    page.evaluate("explorer.talk.edit('rename', {cluster: 39, name: 'last'})")
    expect(page.locator("#undo, .tools [title='rename cluster 39 to last']")).to_be_visible()
    expect(key).to_be_focused()
    undo = page.get_by_role("button", name="Undo")
    undo.press("Enter")
    expect(undo).to_have_attribute("aria-disabled", "true")
    expect(undo).to_be_focused()
    undo.press("Enter")
    expect(page.locator("#told")).to_have_text("There is nothing to undo.")


def test_more_clusters_than_the_legend_names_are_counted(page: Page) -> None:
    page.get_by_role("link", name="Map").click()
    page.wait_for_selector("canvas")
    expect(page.locator(".legend button")).to_have_count(36)
    expect(page.locator(".legend")).to_contain_text("and 4 more clusters; find them among the clusters")


def test_a_key_that_needs_a_selection_says_so(page: Page) -> None:
    page.evaluate("location.hash = 'all'")
    expect(page.locator(".tile").first).to_be_visible()
    page.keyboard.press("m")
    expect(page.locator("#told")).to_have_text("Select images first: click them, or press space.")
    page.evaluate("location.hash = 'cluster/0'")
    expect(page.locator("#title")).to_have_text("Cluster 0")
    page.keyboard.press("m")  # of the cluster itself
    expect(page.locator("dialog h2")).to_have_text("Merge Cluster 0 into another")


def test_ones_own_edit_is_not_told_as_somebody_elses(page: Page, served: Served) -> None:
    page.evaluate("location.hash = 'cluster/0'")
    expect(page.locator(".tile").first).to_be_visible()
    page.evaluate(
        """() => { window.said = []; new MutationObserver(() => said.push(document.getElementById('told').textContent))
        .observe(document.getElementById('told'), {childList: true}); }"""
    )

    def slowly(route: Any) -> None:
        answer = route.fetch()
        time.sleep(4)  # two looks at whether somebody has edited, at the least
        route.fulfill(response=answer)

    page.route("**/api/edit", slowly)
    page.keyboard.press("Space")
    page.keyboard.press("j")
    expect(page.locator("#views")).to_contain_text("Junk (1)")
    page.wait_for_timeout(2000)
    assert page.evaluate("said") == ["1 image marked as junk. U takes it back."]
    Edits(served.run).rename(0, "elsewhere")
    expect(page.locator("#told")).to_have_text("Changed in another window: rename cluster 0 to elsewhere.")


def test_edits_in_quick_succession_are_all_made(page: Page, served: Served) -> None:
    for cluster in range(3):
        served.edit("rename", cluster=cluster, name=f"name {cluster}")
    expect(page.locator("#cluster-2 h3")).to_have_text("name 2")
    page.evaluate("for (const time of [1, 2, 3, 4]) explorer.corrections.undo()")
    expect(page.locator("#told")).to_have_text("There is nothing to undo.")
    assert not any(name.startswith("name") for name in Edits(served.run).state.names.values())


def test_an_undo_of_what_came_too_late_leaves_the_edits_of_others(browser: Browser, served: Served) -> None:
    page = Window(browser, served).page
    Edits(served.run).rename(0, "elsewhere")  # which the page has not noticed yet
    page.evaluate(
        """() => { explorer.talk.state.number = 0;
        explorer.corrections.now('rename', {cluster: 1, name: 'mine'}, ''); explorer.corrections.undo(); }"""
    )
    expect(page.locator("#told")).to_contain_text("Yours were not made")
    assert Edits(served.run).state.names[0] == "elsewhere"
    page.close()


def test_a_list_that_was_empty_for_a_while_has_the_focus_again(page: Page) -> None:
    page.evaluate("location.hash = 'cluster/0'")
    expect(page.locator(".tile")).to_have_count(5)
    page.keyboard.press("Control+a")
    page.keyboard.press("j")
    expect(page.get_by_text("Nothing is here.")).to_be_visible()
    page.keyboard.press("u")
    expect(page.locator(".grid")).to_be_focused()


def test_a_list_that_becomes_empty_asks_for_no_pictures_any_more(page: Page) -> None:
    page.evaluate("location.hash = 'cluster/0'")
    expect(page.locator(".tile")).to_have_count(5)
    page.evaluate("const { grid } = explorer.view; grid.show([...grid.rows]); grid.show([])")
    page.wait_for_timeout(500)  # longer than pictures wait for scrolling to calm down; the fixture sees what is refused
    expect(page.locator(".tile")).to_have_count(0)


def test_enter_leads_from_a_search_to_what_it_has_found(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("cluster 17")
    page.keyboard.press("Enter")
    expect(page.locator("#cluster-17 h3 a")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator(".grid")).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.type("no such")
    expect(page.get_by_text("No path here has this in it.")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".tile")).to_have_count(5)
    expect(page.locator(".grid")).to_be_focused()
    expect(page.get_by_label("Show only images whose path has this in it")).to_have_value("")


def test_enter_that_ends_a_word_of_an_input_method_stays_in_the_search(page: Page) -> None:
    page.keyboard.press("/")
    page.evaluate(
        """document.activeElement.dispatchEvent(
        new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, bubbles: true, cancelable: true}))"""
    )
    expect(page.get_by_label("Find a cluster by name or number")).to_be_focused()


def test_a_fault_of_the_server_is_told_in_words(browser: Browser, served: Served) -> None:
    page = Window(browser, served, "#cluster/0").page
    page.route("**/api/edit", lambda route: route.fulfill(status=500, body="Internal Server Error"))
    page.keyboard.press("r")
    page.keyboard.type("new")
    page.keyboard.press("Enter")
    expect(page.locator("dialog [role=alert]")).to_have_text("The server has failed (500): its terminal says why.")
    page.close()


def test_a_finger_on_the_map_leads_to_the_image(browser: Browser, served: Served) -> None:
    page = Window(browser, served, "#map", **PHONE, is_mobile=True).page
    page.wait_for_selector("canvas")
    page.wait_for_function("explorer.view.panel?.map.width > 0")
    box = page.locator("canvas").bounding_box()
    assert box is not None
    x, y = page.evaluate("explorer.view.panel?.map.at(0)")
    page.touchscreen.tap(box["x"] + x, box["y"] + y)
    page.locator(".tip").get_by_role("button", name="Open").tap()
    expect(page.locator("dialog .whole")).to_be_visible()
    assert faults(page) == []
    page.close()
