"""Teaching in a real browser: questions, contact sheets, proposals, growing sets, in two windows at once."""

from collections.abc import Iterator

import numpy as np
import pytest
from colour_window import COUNT, colour_run, lesson, teach_some, wrong
from explorer_server import Served, cache_in
from explorer_window import Window, sideways

from browsing import PHONE, Browser, Page, expect, faults
from twincluster.runs import JUNK, Edits, Run


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("taught")
    with cache_in(folder / "cache"):
        yield colour_run(folder)


@pytest.fixture
def window(browser: Browser, served: Served) -> Iterator[Window]:
    lesson(served)
    found = Window(browser, served)
    yield found
    assert [said for said in found.complaints if "409" not in said and "400" not in said] == []
    found.page.close()


def ask(page: Page) -> int:
    """Open the questions; return the row of the first."""
    page.evaluate("location.hash = 'teach'")
    expect(page.locator(".teach-picture img")).to_be_visible()
    return asked(page)


def asked(page: Page) -> int:
    return int(page.locator(".teach-picture").get_attribute("data-row") or -1)


def offered(page: Page) -> list[int]:
    return [int(one.get_attribute("data-cluster") or -1) for one in page.locator(".offer:visible").all()]


def settled(page: Page, number: int) -> None:
    """Wait until the page has shown the edit of this number."""
    while not page.evaluate("number => explorer.talk.state.number === number && !explorer.talk.underway", number):
        page.wait_for_timeout(20)


def test_the_selected_images_are_confirmed_by_a_key_and_by_undo_no_longer(window: Window, served: Served) -> None:
    page = window.page
    page.locator("#cluster-0 h3 a").click()
    expect(page.locator(".tile").first).to_be_visible()
    rows = served.rows(of="cluster", cluster=0)[:2]
    for key in ("Space", "Shift+ArrowRight", "c"):
        page.keyboard.press(key)
    expect(page.locator("#told")).to_have_text("2 images confirmed: no computation moves them.")
    assert np.flatnonzero(Edits(served.run).state.shown).tolist() == sorted(rows)
    expect(page.locator(".tile").first).to_have_attribute("aria-label", f"{rows[0]:03d}.png, Cluster 0, placed by you")
    page.keyboard.press("u")
    expect(page.locator("#told")).to_have_text("Undone: confirm 2 images.")
    assert not Edits(served.run).state.shown.any()
    page.keyboard.press("?")
    expect(page.locator("dialog .keys")).to_contain_text("these are right")


def test_answers_by_keys_follow_each_other_and_are_saved_in_their_order(window: Window, served: Served) -> None:
    page = window.page
    ask(page)
    given = []
    for _ in range(6):
        row, best = asked(page), offered(page)[0]
        page.keyboard.press("1")
        given.append((row, best))
        assert asked(page) not in [answered for answered, _ in given], "the next question is there at once"
    settled(page, 6)
    state = Edits(served.run).state
    assert [int(state.examples[row]) for row, _ in given] == [best for _, best in given]
    lines = [line for line in Edits(served.run).history[0] if line["kind"] == "answer"]
    assert [line["rows"][0] for line in lines] == [row for row, _ in given]
    assert [bool(line["sample"]) for line in lines] == [False] * 4 + [True, False], "every fifth is a random image"
    expect(page.locator(".trust")).to_contain_text("from 1 random image")
    expect(page.locator(".trust")).to_contain_text("6 examples so far")


def test_junk_none_of_these_skip_and_another_cluster(window: Window, served: Served) -> None:
    page = window.page
    first = ask(page)
    page.keyboard.press("j")
    second, apart = asked(page), offered(page)
    page.keyboard.press("0")  # of three clusters, which are all of them
    third = asked(page)
    page.keyboard.press("Space")
    fourth = asked(page)
    page.keyboard.press("m")
    page.locator("dialog input").fill("cluster 2")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    settled(page, 3)
    state = Edits(served.run).state
    assert state.examples[[first, third, fourth]].tolist() == [JUNK, -3, 2]
    assert all(second in state.refused[cluster] for cluster in apart)
    assert len({first, second, third, fourth}) == 4


def test_none_of_five_offers_the_next_five_for_the_same_image(window: Window, served: Served) -> None:
    page = window.page
    served.edit("split", cluster=0, parts=3)
    served.edit("split", cluster=1, parts=3)
    lesson(served)
    page.reload()
    row = ask(page)
    expect(page.locator(".offer:visible")).to_have_count(5)
    before = offered(page)
    page.keyboard.press("0")
    assert asked(page) == row
    after = offered(page)
    assert len(after) == 2
    assert not set(before) & set(after)
    page.keyboard.press("u")
    assert offered(page) == before
    settled(page, 4)
    assert not Edits(served.run).state.refused


def test_a_new_cluster_gets_a_name_that_no_other_has(window: Window, served: Served) -> None:
    served.edit("rename", cluster=0, name="red")
    page = window.page
    settled(page, 1)
    row = ask(page)
    page.keyboard.press("n")
    page.locator("dialog").get_by_label("Name").fill("red")
    page.keyboard.press("Enter")
    expect(page.locator("dialog [role=alert]")).to_have_text(
        "cluster 0 is called 'red' already: choose another name, or merge them"
    )
    page.locator("dialog").get_by_label("Name").fill("violet")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    state = Edits(served.run).state
    assert state.names[int(state.examples[row])] == "violet"
    assert asked(page) != row


def test_undo_goes_back_to_the_question(window: Window, served: Served) -> None:
    page = window.page
    first = ask(page)
    page.keyboard.press("1")
    second = asked(page)
    page.keyboard.press("Space")
    page.keyboard.press("u")
    assert asked(page) == second
    page.keyboard.press("u")
    assert asked(page) == first
    settled(page, 2)
    assert not Edits(served.run).state.shown.any()
    page.keyboard.press("2")
    settled(page, 3)
    assert Edits(served.run).state.shown[first]


def test_a_reload_keeps_the_question_and_what_was_skipped(window: Window, served: Served) -> None:
    page = window.page
    first = ask(page)
    page.keyboard.press("Space")
    second = asked(page)
    page.keyboard.press("1")
    third = asked(page)
    settled(page, 1)
    page.reload()
    expect(page.locator(".teach-picture")).to_have_attribute("data-row", str(third))
    for _ in range(10):
        page.keyboard.press("Space")
        assert asked(page) not in (first, second)


def test_an_answer_on_a_stale_view_comes_back_as_the_question(window: Window, served: Served) -> None:
    page = window.page
    first = ask(page)
    served.edit("rename", cluster=2, name="blue")
    page.evaluate("explorer.talk.state.number = 0")  # as if it had not looked yet
    page.keyboard.press("1")
    expect(page.locator("#told")).to_contain_text("Somebody else made a change meanwhile (now newest: rename cluster 2")
    assert asked(page) == first
    assert not Edits(served.run).state.shown.any()
    page.keyboard.press("1")
    settled(page, 2)
    assert Edits(served.run).state.shown[first]


def test_a_question_that_another_window_answers_goes(window: Window, served: Served) -> None:
    page = window.page
    first = ask(page)
    served.edit("confirm", rows=[first])
    expect(page.locator("#told")).to_contain_text("another window")
    expect(page.locator(".teach-picture")).not_to_have_attribute("data-row", str(first))
    page.keyboard.press("u")  # takes back the newest edit, which is the other window's
    expect(page.locator("#told")).to_have_text("Undone: confirm 1 image.")


def test_a_contact_sheet_confirms_what_is_not_clicked(window: Window, served: Served) -> None:
    page = window.page
    page.evaluate("location.hash = 'teach/sheet'")
    expect(page.locator(".sheet-tile")).to_have_count(24)
    rows = [int(tile.get_attribute("data-row") or -1) for tile in page.locator(".sheet-tile").all()]
    cluster = int(served.library.edits.state.clusters[rows[0]])
    page.locator(".sheet-tile").nth(3).click()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    page.locator(".sheet-tile").nth(0).click()
    page.locator(".sheet-tile").nth(0).click()
    expect(page.locator(".sheet-tile[aria-pressed=true]")).to_have_count(2)
    page.reload()  # keeps the place
    expect(page.locator(".sheet-tile[aria-pressed=true]")).to_have_count(2)
    expect(page.get_by_role("button", name="The other 22 are right")).to_be_visible()
    page.keyboard.press("c")
    settled(page, 2)
    state = Edits(served.run).state
    apart = [rows[3], rows[4]]
    assert state.refused[cluster].tolist() == sorted(apart)
    assert np.flatnonzero(state.shown).tolist() == sorted(set(rows) - set(apart))
    expect(page.locator(".sheet-tile")).not_to_have_count(0)
    page.keyboard.press("u")
    settled(page, 4)
    expect(page.locator(".sheet-tile[aria-pressed=true]")).to_have_count(2)
    state = Edits(served.run).state
    assert not state.shown.any()
    assert not state.refused


def test_proposals_are_looked_at_accepted_and_taken_back(window: Window, served: Served) -> None:
    page = window.page
    moves = teach_some(served)["moves"]
    expect(page.locator("#proposed")).to_contain_text(f"{moves} images would move")
    before = served.library.edits.state.clusters
    page.get_by_role("link", name="Look at the proposals").click()
    expect(page.locator("#title")).to_have_text(f"{moves} images would move")
    expect(page.locator("#proposed")).to_be_hidden()
    apart = len(wrong(served))
    page.keyboard.press("a")
    expect(page.locator("#told")).to_have_text(f"Moved {moves} images as proposed. U takes it back.")
    assert len(wrong(served)) < apart
    page.keyboard.press("u")
    expect(page.locator("#told")).to_have_text(f"Undone: accept that {moves} images move.")
    assert (Edits(served.run).state.clusters == before).all()
    expect(page.locator("#title")).to_have_text(f"{moves} images would move")


def test_one_group_is_looked_through_and_accepted_without_what_does_not_belong(window: Window, served: Served) -> None:
    page = window.page
    teach_some(served)
    settled(page, 1)
    group = max(served.get("/api/proposals").json()["groups"], key=lambda one: int(one["size"]))
    page.evaluate("location.hash = 'proposals'")
    card = page.locator(f"#group-{group['source']}-{group['to']}")
    card.get_by_role("link", name="Look through").click()
    expect(page.locator(".tile")).to_have_count(group["size"])
    first = int(group["rows"][0])
    expect(page.locator(".grid")).to_be_focused()
    page.keyboard.press("Space")
    page.keyboard.press("x")
    expect(page.locator("#told")).to_contain_text("1 image will not be proposed for")
    expect(page.locator(".tile")).not_to_have_count(group["size"])
    settled(page, 2)
    lesson(served)
    expect(page.get_by_role("button", name="Accept the group")).to_have_attribute("aria-disabled", "false")
    left = page.locator(".tile").count()
    page.keyboard.press("y")
    expect(page.locator("#told")).to_contain_text("as proposed")
    state = Edits(served.run).state
    assert state.refused[group["to"]].tolist() == [first]
    assert state.clusters[first] == group["source"]
    assert len(Edits(served.run).history[0][-1]["rows"]) == left
    expect(page.locator("#title")).to_contain_text("would move")


def test_a_group_is_accepted_or_refused_by_the_keyboard(window: Window, served: Served) -> None:
    page = window.page
    teach_some(served)
    settled(page, 1)
    page.evaluate("location.hash = 'proposals'")
    cards = page.locator(".proposals .card")
    expect(cards.first).to_be_visible()
    gone = cards.first.get_attribute("id")
    page.keyboard.press("ArrowRight")
    expect(cards.first.locator("h3 a")).to_be_focused()
    page.keyboard.press("x")
    expect(page.locator("#told")).to_contain_text("will not be proposed")
    expect(page.locator(f"#{gone}")).to_have_count(0)
    lesson(served)
    accepted = cards.first.get_attribute("id")
    cards.first.locator("h3 a").focus()
    expect(page.get_by_role("button", name="Accept all")).to_have_attribute("aria-disabled", "false")
    page.keyboard.press("y")
    expect(page.locator("#told")).to_contain_text("as proposed")
    assert [line["kind"] for line in Edits(served.run).history[0]] == ["confirm", "refuse", "accept"]
    expect(page.locator(f"#{accepted}")).to_have_count(0)


def test_a_set_grows_in_steps_from_all_images(window: Window, served: Served) -> None:
    page = window.page
    page.locator("#cluster-1 h3 a").click()
    expect(page.locator(".tile").first).to_be_visible()
    first = served.rows(of="cluster", cluster=1)[0]
    page.keyboard.press("Space")
    page.keyboard.press("l")
    expect(page.locator("#title")).to_have_text("More like these")
    expect(page.locator(".list .note").first).to_contain_text(f"of all {COUNT} images, whatever their cluster")
    expect(page.locator(".chosen .figure")).to_have_text("50 of 50 selected")
    shown = page.evaluate("explorer.view.grid?.rows ?? explorer.view.list.grid.rows")
    out = shown[7]
    page.locator(".tile").nth(7).click()
    expect(page.locator(".chosen .figure")).to_have_text("49 of 50 selected")
    page.keyboard.press("l")
    expect(page.locator(".examples .note")).to_have_text("50 examples, 1 left out")
    expect(page.locator(".chosen .figure")).to_have_text("39 of 39 selected")
    page.reload()
    expect(page.locator(".examples .note")).to_have_text("50 examples, 1 left out")
    expect(page.locator(".chosen .figure")).to_have_text("39 of 39 selected")
    page.get_by_role("button", name="None", exact=True).click()
    page.keyboard.press("n")
    page.locator("dialog").get_by_label("Name").fill("grown")
    page.keyboard.press("Enter")
    expect(page.locator("dialog")).to_have_count(0)
    state = Edits(served.run).state
    grown = next(cluster for cluster, name in state.names.items() if name == "grown")
    assert set(state.members(grown).tolist()) == {first, *shown} - {out}


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("where", ["teach", "teach/sheet", "proposals", "group", "like"])
def test_no_accessibility_fault(browser: Browser, served: Served, where: str, theme: str) -> None:
    teach_some(served)
    page = Window(browser, served, color_scheme=theme).page
    show(page, served, where)
    assert faults(page) == []
    page.close()


@pytest.mark.parametrize("where", ["teach", "teach/sheet", "proposals", "group", "like"])
def test_nothing_is_sideways_on_a_phone(browser: Browser, served: Served, where: str) -> None:
    Edits(served.run).rename(0, "a" * 200)
    teach_some(served)
    page = Window(browser, served, **PHONE).page
    show(page, served, where)
    assert sideways(page) == []
    page.close()


def show(page: Page, served: Served, where: str) -> None:
    """Open a view with something on it."""
    if where == "group":
        group = served.get("/api/proposals").json()["groups"][0]
        page.evaluate(f"location.hash = 'proposals/{group['source']}/{group['to']}'")
        expect(page.locator(".tile img").first).to_be_visible()
    elif where == "like":
        page.evaluate("explorer.showLike([0, 1])")
        expect(page.locator(".tile img").first).to_be_visible()
    else:
        page.evaluate(f"location.hash = '{where}'")
        kinds = {"teach": ".teach-picture img", "teach/sheet": ".sheet-tile", "proposals": ".proposals .card"}
        expect(page.locator(kinds[where]).first).to_be_visible()
    if where == "teach":
        page.keyboard.press("1")
        expect(page.locator(".trust")).to_contain_text("13 examples")
