"""The page in a real browser: nothing fetched, nothing broken, nothing sideways, and all it offers does its work."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from report_runs import HOSTILE, hostile_folder, made_run

from browsing import PHONE, Browser, Page, Watched, faults, watch
from twincluster.core import typed
from twincluster.pages import write_report
from twincluster.runs import provenance


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """26 pictures in three clusters, with labels, under hostile names, and one file that cannot be read."""
    folder = tmp_path_factory.mktemp("page")
    run = made_run(folder / "run", hostile_folder(folder / HOSTILE), 3)
    with typed(["fit", str(folder / HOSTILE)]):
        provenance.write(run.folder, provenance.Provenance().begin("2026-01-31T09:05:00+00:00", "cpu").end(95))
    return write_report(run, "folders")[0]


@pytest.fixture(scope="module")
def large_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,500 pictures in 300 clusters, without labels."""
    folder = tmp_path_factory.mktemp("large")
    np.save(folder / "noise.npy", np.random.default_rng(0).integers(0, 256, (1500, 8, 8, 3)).astype(np.uint8))
    return write_report(made_run(folder / "run", folder / "noise.npy", 300))[0]


@pytest.fixture
def watched(browser: Browser, report: Path) -> Iterator[Watched]:
    found = watch(browser, report)
    yield found
    assert found.requests == []
    assert found.complaints == []
    assert found.page.evaluate("window.harmed") is None
    found.page.close()


def titles(page: Page) -> list[str]:
    return [str(text) for text in page.locator("#clusters h3").all_text_contents()]


def points(page: Page) -> list[list[float]]:
    """Where the points of the map are in the window."""
    found: list[list[float]] = page.evaluate(
        """() => { const box = document.querySelector("canvas").getBoundingClientRect();
        const { map } = reportParts.panel;
        return map.points.x.map((_, i) => { const [x, y] = map.at(i); return [box.x + x, box.y + y]; }); }"""
    )
    return found


def show(page: Page, part: str) -> None:
    for _ in range(3):  # what comes into sight is drawn only then, and may change its height
        page.evaluate(f"document.getElementById('{part}').scrollIntoView()")
        page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def test_all_parts_are_there_and_markup_in_names_is_text(watched: Watched) -> None:
    page = watched.page
    assert page.locator("main > section h2").all_text_contents() == [
        "Clusters", "Map", "Labels", "Problems", "Clean up", "Training",
    ]  # fmt: skip
    assert HOSTILE in page.locator("h1").inner_text()
    assert page.locator("img").count() == 0
    page.get_by_text("1 file could not be read").click()
    assert page.get_by_text(f"{HOSTILE}/broken {HOSTILE}.png").is_visible()
    assert page.locator(".confusion tbody tr").count() == 3


def test_the_foot_says_how_the_run_came_about(watched: Watched, report: Path) -> None:
    said = watched.page.locator("footer").inner_text()
    assert "begun 2026-01-31 09:05 UTC · hardware " in said
    assert said.count("training time 1 min 35 s") == 1
    assert f"made by twincluster fit '{HOSTILE}'" in said
    assert str(report.parents[1]) not in said


def test_sorting_changes_the_order_and_turns_it_round(watched: Watched) -> None:
    page = watched.page
    ids = "[...document.querySelectorAll('.card')].map((card) => card.id)"
    size = page.evaluate("reportParts.data.clusters.map(({id, confidence}) => [confidence, `cluster-${id}`])")
    page.get_by_role("button", name="Confidence", exact=True).click()
    assert page.evaluate(ids) == [name for _, name in sorted(size)]
    assert "least certain first" in page.locator("#clusters [role=status]").inner_text()
    page.get_by_role("button", name="Confidence", exact=True).click()
    assert page.evaluate(ids) == [name for _, name in sorted(size, reverse=True)]


def test_empty_clusters_come_last_whichever_way_confidence_is_sorted(watched: Watched) -> None:
    page = watched.page
    page.evaluate("Object.assign(reportParts.data.clusters[0], { size: 0, confidence: null })")
    for said in ("least certain first", "most certain first"):
        page.get_by_role("button", name="Confidence", exact=True).click()
        assert said in page.locator("#clusters [role=status]").inner_text()
        assert page.locator(".card").last.get_attribute("id") == "cluster-0"


def test_an_image_opens_enlarged_and_arrows_go_on(watched: Watched) -> None:
    page = watched.page
    page.locator(".card .thumb").first.focus()
    page.keyboard.press("Enter")
    first = page.locator("#viewer-path").inner_text()
    assert page.locator("dialog[open] [role=img]").get_attribute("aria-label") == first
    page.keyboard.press("ArrowRight")
    assert page.locator("#viewer-path").inner_text() != first
    page.keyboard.press("ArrowLeft")
    assert page.locator("#viewer-path").inner_text() == first
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_pointing_at_the_map_shows_the_image(watched: Watched) -> None:
    page = watched.page
    show(page, "map")
    x, y = points(page)[5]
    page.mouse.move(x - 1, y)
    page.mouse.move(x, y)
    assert page.locator(".tip").is_visible()
    assert page.locator(".tip .picture").count() == 1
    page.mouse.move(5, 5)
    assert not page.locator(".tip").is_visible()


def test_a_lasso_lists_what_is_inside_it_and_nothing_else(watched: Watched) -> None:
    page = watched.page
    show(page, "map")
    page.get_by_role("button", name="Select", exact=True).click()
    places = np.array(points(page))
    middle = (places[:, 0].min() + places[:, 0].max()) / 2
    top, bottom = places[:, 1].min() - 8, places[:, 1].max() + 8
    left = places[:, 0].min() - 8
    page.mouse.move(left, top)
    page.mouse.down()
    for x, y in ((middle, top), (middle, bottom), (left, bottom)):
        page.mouse.move(x, y, steps=6)
    page.mouse.up()
    expected = page.evaluate("reportParts.data.map.image.map((image) => reportParts.data.images.path[image])")
    inside = {expected[i] for i in np.flatnonzero(places[:, 0] < middle)}
    assert set(page.locator(".found textarea").input_value().split("\n")) == inside
    assert page.locator(".found .thumb").count() == len(inside)
    page.get_by_role("button", name="Clear").click()
    assert not page.locator(".found").is_visible()


def test_the_map_zooms_and_moves_by_wheel_buttons_and_keys(watched: Watched) -> None:
    page = watched.page
    show(page, "map")

    def spread() -> float:
        places = np.array(points(page))
        return float(np.ptp(places[:, 0]))

    before = spread()
    page.get_by_role("button", name="Zoom in").click()
    closer = spread()
    assert closer > 1.3 * before
    box = page.locator("canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 300, box["y"] + 200)
    page.mouse.wheel(0, -300)
    patience = time.monotonic() + 20  # not wait_for_function: it evaluates text in the page, which forbids that
    while spread() <= closer and time.monotonic() < patience:
        page.wait_for_timeout(50)
    assert spread() > closer
    page.locator("canvas").focus()
    page.keyboard.press("0")
    assert spread() == pytest.approx(before)
    place = points(page)[0][0]
    page.keyboard.press("ArrowRight")
    assert points(page)[0][0] < place


def test_what_is_in_view_can_be_listed_without_a_mouse(watched: Watched) -> None:
    page = watched.page
    page.get_by_role("button", name="List what is in view").focus()
    page.keyboard.press("Enter")
    assert len(page.locator(".found textarea").input_value().split("\n")) == len(points(page))


def test_a_card_leads_to_the_map_and_the_map_shows_its_cluster_alone(watched: Watched) -> None:
    page = watched.page
    page.locator(".card").first.get_by_role("button", name="on the map").click()
    focus = page.evaluate("reportParts.panel.map.focus")
    assert page.locator(".card").first.get_attribute("id") == f"cluster-{focus}"
    assert page.locator(f".legend button[data-id='{focus}']").get_attribute("aria-pressed") == "true"


def test_a_link_ends_where_it_leads_past_cards_that_were_never_drawn(browser: Browser, large_report: Path) -> None:
    page = watch(browser, large_report, reduced_motion="no-preference", **PHONE).page
    settled = """async () => { for (let still = 0, last; still < 30; still = scrollY === last ? still + 1 : 0) {
        last = scrollY; await new Promise(requestAnimationFrame); } }"""
    for leader, goal in (
        (page.get_by_role("link", name="Map"), "document.getElementById('map').getBoundingClientRect().top - 64"),
        (page.locator(".strip button").last, "document.activeElement.getBoundingClientRect().top - innerHeight / 2"),
    ):
        page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
        leader.evaluate("one => one.click()")
        page.evaluate(settled)
        assert abs(page.evaluate(goal)) < 25
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("which", ["report", "large_report"])
def test_no_accessibility_fault_in_either_theme(
    browser: Browser, which: str, theme: str, request: pytest.FixtureRequest
) -> None:
    page = watch(browser, request.getfixturevalue(which), color_scheme=theme).page
    for part in page.locator("details summary").all():
        part.click()
    assert faults(page) == []
    page.close()


def test_dark_mode_is_dark_and_light_is_light(browser: Browser, report: Path) -> None:
    for theme, is_dark in (("light", False), ("dark", True)):
        page = watch(browser, report, color_scheme=theme).page
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
        ink = page.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
        assert (sum(paper) < sum(ink)) is is_dark
        page.close()


@pytest.mark.parametrize("which", ["report", "large_report"])
def test_nothing_scrolls_sideways_on_a_phone(browser: Browser, which: str, request: pytest.FixtureRequest) -> None:
    page = watch(browser, request.getfixturevalue(which), **PHONE).page
    for part in page.locator("details summary").all():
        part.click()
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    wide = "[...document.querySelectorAll('main *')].filter((e) => e.scrollWidth > e.clientWidth + 1 && "
    wide += "['auto', 'scroll'].includes(getComputedStyle(e).overflowX)).map((e) => e.outerHTML.slice(0, 120))"
    assert page.evaluate(wide) == []
    page.close()


@pytest.mark.parametrize("width", [320, 390, 760, 1280])
@pytest.mark.parametrize("which", ["report", "large_report"])
def test_the_images_at_the_top_are_of_one_size(
    browser: Browser, which: str, width: int, request: pytest.FixtureRequest
) -> None:
    """The last row too, however few are left for it; and rows are filled before another one begins."""
    page = watch(browser, request.getfixturevalue(which), viewport={"width": width, "height": 900}).page
    boxes = page.evaluate(
        "[...document.querySelectorAll('#strip .picture')].map((e) => e.getBoundingClientRect().toJSON())"
    )
    assert len(boxes) == (3 if which == "report" else 12)
    assert max(box["width"] for box in boxes) - min(box["width"] for box in boxes) < 1
    assert 54 <= boxes[0]["width"] <= 116
    per_row = [sum(box["y"] == y for box in boxes) for y in sorted({box["y"] for box in boxes})]
    assert len(set(per_row[:-1])) <= 1
    assert width < 1280 or len(per_row) == 1
    page.close()


def test_a_tap_on_the_map_shows_the_image(browser: Browser, report: Path) -> None:
    page = watch(browser, report, **PHONE).page
    show(page, "map")
    x, y = points(page)[3]
    page.touchscreen.tap(x, y)
    assert page.locator(".tip").is_visible()
    page.close()


def test_print_leaves_out_what_paper_cannot_do(browser: Browser, report: Path, tmp_path: Path) -> None:
    page = watch(browser, report, color_scheme="dark").page
    page.emulate_media(media="print")
    assert not page.locator("nav").is_visible()
    assert not page.locator("#clusters .tools").is_visible()
    assert page.locator(".card").first.is_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 10_000
    page.close()


def test_an_address_with_a_section_opens_at_that_section(browser: Browser, report: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(f"{report.as_uri()}#problems")
    page.wait_for_function("Math.abs(document.getElementById('problems').getBoundingClientRect().top - 64) < 10")
    page.close()


def test_curves_are_broken_where_an_epoch_has_no_value(browser: Browser, tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", hostile_folder(tmp_path / "images"), 3)
    losses = [None, 3, 2, None, 1]
    rows = [json.dumps({"epoch": epoch, "loss": loss}) for epoch, loss in enumerate(losses)]
    (run.folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    page = watch(browser, write_report(run)[0]).page
    chart = page.locator("figure", has_text="Losses").locator("svg[role=img]")
    (line,) = chart.locator("polyline").all()
    start, end = str(line.get_attribute("points")).split(" ")
    assert float(start.split(",")[0]) > 100 > float(start.split(",")[1])
    assert float(end.split(",")[0]) < 200
    assert chart.locator("circle").count() == 1  # a dot for the last one
    page.close()


def test_hundreds_of_clusters_come_a_few_at_a_time_and_can_be_found(browser: Browser, large_report: Path) -> None:
    watched = watch(browser, large_report)
    page = watched.page
    assert page.locator(".card").count() == 24
    page.get_by_role("button", name="more of 300").press(
        "Enter"
    )  # a click may miss while cards above take their height
    assert page.locator(".card").count() == 72
    page.get_by_role("searchbox").fill("cluster 271")
    assert titles(page) == ["Cluster 271"]
    assert page.locator(".legend button").count() == 36
    assert (watched.requests, watched.complaints) == ([], [])
    page.close()


def test_a_run_without_pictures_still_has_a_page(browser: Browser, tmp_path: Path) -> None:
    np.save(tmp_path / "noise.npy", np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3)).astype(np.uint8))
    run = made_run(tmp_path / "run", tmp_path / "noise.npy", 2)
    (tmp_path / "noise.npy").unlink()
    watched = watch(browser, write_report(run)[0])
    assert "moved or changed" in watched.page.locator("#lead").inner_text()
    assert "moved or changed" in watched.page.locator("#map").inner_text()
    assert watched.page.locator(".card .named").count() > 0
    assert watched.complaints == []
    watched.page.close()
