"""Clean up in a real browser: tables of copies and spoilt images, a threshold, junk in one edit, and what it asks."""

import time
from collections.abc import Iterator

import numpy as np
import pytest
from explorer_server import Served, cache_in
from explorer_window import Window
from PIL import Image

from browsing import PHONE, Browser, expect, faults

from report_runs import made_run  # isort: skip
from twincluster.runs import Run

BLACK = 70


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """300 pictures of noise: 3 and 4 are copies of 2, 6 of 5, and 70 are black."""
    folder, random = tmp_path_factory.mktemp("cleanup"), np.random.default_rng(0)
    (folder / "images").mkdir()
    pictures = random.integers(0, 256, (300, 16, 16, 3)).astype(np.uint8)
    pictures[3] = pictures[4] = pictures[2]
    pictures[6] = np.clip(pictures[5].astype(int) + 2, 0, 255)
    pictures[-BLACK:] = random.integers(0, 9, (BLACK, 16, 16, 3))
    for number, picture in enumerate(pictures):
        Image.fromarray(picture).save(folder / "images" / f"{number:03d}.png")
    with cache_in(folder / "cache"):
        yield made_run(folder / "run", str(folder / "images"), 3)


@pytest.fixture
def window(browser: Browser, served: Served) -> Iterator[Window]:
    window = Window(browser, served, "#cleanup")
    yield window
    assert window.complaints == []
    window.page.close()


def junk_of(served: Served) -> list[int]:
    return sorted(served.rows(of="junk"))


def test_copies_go_in_one_edit_and_come_back_with_one_undo(window: Window, served: Served) -> None:
    page = window.page
    expect(page.get_by_role("button", name="Exact copies (2)")).to_have_attribute("aria-pressed", "true")
    page.get_by_role("button", name="Keep the largest, junk the rest (2)").click()
    expect(page.get_by_role("button", name="Exact copies (2)")).to_have_count(0)
    assert junk_of(served) == [3, 4]
    page.keyboard.press("u")
    expect(page.get_by_role("button", name="Exact copies (2)")).to_be_visible()
    assert junk_of(served) == []


def test_what_is_unticked_stays(window: Window, served: Served) -> None:
    page = window.page
    page.get_by_role("button", name="Dark (70)").click()
    expect(page.locator(".suspects tr")).to_have_count(60)  # the rest on request
    page.locator(".suspects input[type=checkbox]").first.uncheck()
    expect(page.get_by_role("button", name="Junk all 69")).to_be_enabled()


def test_a_slider_leaves_the_clearest(window: Window) -> None:
    page = window.page
    page.get_by_role("button", name="Dark (70)").click()
    slider = page.get_by_label("Threshold for dark")
    slider.focus()
    page.keyboard.press("End")
    shown = page.locator(".suspects tr").count()
    assert 0 < shown < 60
    expect(page.get_by_role("button", name=f"Junk all {shown}")).to_be_visible()


def test_more_than_fifty_images_are_asked_about_once(window: Window, served: Served) -> None:
    page = window.page
    page.get_by_role("button", name="Dark (70)").click()
    page.get_by_role("button", name="Junk all 70").click()
    expect(page.get_by_role("heading", name="Mark 70 images as junk?")).to_be_visible()
    assert junk_of(served) == []
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Junk all 70").click()
    page.get_by_role("dialog").get_by_role("button", name="Junk", exact=True).click()
    expect(page.get_by_role("button", name="Dark (70)")).to_have_count(0)
    assert junk_of(served) == list(range(230, 300))


def test_copies_of_what_is_junk_are_not_suspected(served: Served) -> None:
    served.edit("junk", rows=[5])
    while (absent := served.get("/api/suspects").json()["absent"]).endswith("still being looked for"):
        time.sleep(0.05)
    assert absent == ""
    kinds = {kind["kind"]: kind["groups"] for kind in served.get("/api/suspects").json()["kinds"]}
    assert "near_copy" not in kinds
    assert [(group["best"], group["rows"]) for group in kinds["exact_copy"]] == [(2, [3, 4])]


def test_a_phone_has_three_quarters_of_its_screen_for_the_pictures(browser: Browser, served: Served) -> None:
    window = Window(browser, served, "#cluster/0", **PHONE)
    share = (
        "(() => { const box = document.querySelector('.grid').getBoundingClientRect();"
        " return (Math.min(innerHeight, box.bottom) - box.top) / innerHeight })()"
    )
    expect(window.page.locator(".tile").first).to_be_visible()
    assert window.page.evaluate(share) >= 0.74
    window.page.close()


def test_no_accessibility_fault(window: Window) -> None:
    expect(window.page.locator(".suspects tr").first).to_be_visible()
    assert faults(window.page) == []
