"""The tree in the explorer: any cut can be looked at without the server, and used and taken back as one edit."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from explorer_server import Served, cache_in, serving
from explorer_window import Window, sideways

from browsing import PHONE, Browser, expect, faults

from colour_window import colour_run  # isort: skip
from twincluster.runs import TREE_FILE, Living, read_tree


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    """A run without a tree, which the explorer makes."""
    with cache_in(tmp_path / "cache"), serving(colour_run(tmp_path)) as found:
        yield found


def tree_of(served: Served) -> dict[str, Any]:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        found: dict[str, Any] = served.get("/api/tree").json()
        if "absent" not in found:
            return found
        assert found["waiting"], found
        time.sleep(0.02)
    raise AssertionError("no tree")


def test_the_server_gives_the_tree_and_takes_groups_of_it(served: Served) -> None:
    tree = tree_of(served)
    assert (served.run.folder / TREE_FILE).is_file()
    assert sum(leaf["size"] for leaf in tree["leaves"]) == 90
    assert sorted(leaf for cluster in tree["clusters"] for leaf in cluster["leaves"]) == list(
        range(len(tree["leaves"]))
    )
    own = read_tree(served.run)[0]
    assert own is not None
    groups = [np.flatnonzero(own.members[node]).tolist() for node in own.cut(6)]
    assert served.edit("cut", groups=groups).status_code == 200
    assert len(served.state["clusters"]) == 6
    assert served.state["undo"] == "cut the tree to 6 clusters"
    after = tree_of(served)
    assert sorted(cluster["leaves"] for cluster in after["clusters"]) == sorted(groups)
    assert served.edit("undo").status_code == 200
    assert len(served.state["clusters"]) == 3


@pytest.mark.parametrize(
    ("groups", "why"),
    [
        ("all", "lists of fine clusters"),
        ([[0, "1"]], "lists of fine clusters"),
        ([[0]], "do not fit the tree"),
        ([[10**9]], "do not fit the tree"),
        ("odd", "no branch of the tree"),
        ("empty", "do not fit the tree"),
    ],
)
def test_groups_that_are_no_cut_are_refused(served: Served, groups: Any, why: str) -> None:
    count = len(tree_of(served)["leaves"])
    own = read_tree(served.run)[0]
    assert own is not None
    one = own.joins[0].tolist()
    stranger = next(leaf for leaf in range(count) if leaf not in one and leaf not in np.flatnonzero(own.members[-2]))
    odd = [[one[0], stranger], *([leaf] for leaf in range(count) if leaf not in (one[0], stranger))]
    given = {"odd": odd, "empty": [[], list(range(count))]}.get(groups, groups) if isinstance(groups, str) else groups
    said = served.edit("cut", groups=given)
    assert said.status_code == 400
    assert why in said.json()["error"]
    assert served.number == 0


def test_a_person_looks_at_levels_uses_one_and_goes_back(browser: Browser, served: Served) -> None:
    window = Window(browser, served, "#tree")
    page = window.page
    expect(page.locator(".tree .card")).to_have_count(3)
    before = len(window.requests)
    slider = page.get_by_label("Number of clusters")
    slider.fill("7")
    expect(page.locator(".tree .card")).to_have_count(7)
    assert not [
        url for url in window.requests[before:] if "/api/" in url and "thumbnail" not in url and "number" not in url
    ]
    assert served.number == 0
    page.get_by_role("button", name="Use these 7 clusters").click()
    expect(page.locator("#views a").first).to_have_text("Clusters (7)")
    assert len(served.state["clusters"]) == 7
    expect(page.get_by_role("button", name="Use these clusters")).to_be_disabled()
    page.get_by_role("button", name="Undo").click()
    expect(page.locator(".tree .card")).to_have_count(3)
    assert window.complaints == []
    page.close()


def test_branches_open_and_close(browser: Browser, served: Served) -> None:
    tree_of(served)
    window = Window(browser, served, "#tree")
    page = window.page
    page.locator(".tree .card").filter(has_text="Cluster 1").get_by_role("button", name="Open Cluster 1").click()
    expect(page.locator(".tree .card")).to_have_count(4)
    expect(page.locator(".tree .card h3").filter(has_text="Part of Cluster 1")).to_have_count(2)
    page.get_by_role("button", name="Close Part of Cluster 1").first.click()
    expect(page.locator(".tree .card")).to_have_count(3)
    expect(page.locator(".tree .card h3").filter(has_text="Part of")).to_have_count(0)
    page.get_by_role("button", name="Open Cluster 0").click()
    page.get_by_role("button", name="Use these 4 clusters").click()
    expect(page.locator("#views a").first).to_have_text("Clusters (4)")
    state = served.library.edits.state
    assert {1, 2} <= state.names.keys()  # the others are as they were
    page.close()


def test_the_page_groups_as_the_command_does(browser: Browser, served: Served) -> None:
    tree_of(served)
    served.edit("move", rows=[0, 3, 6], name="mine")
    served.edit("merge", clusters=[1, 2])
    own = read_tree(served.run)[0]
    assert own is not None
    living = Living.of(own, served.library.edits.state)
    window = Window(browser, served, "#tree")
    expect(window.page.locator(".tree .card").first).to_be_visible()
    for count in (3, 4, 6):
        found = window.page.evaluate(
            "count => { const { panel } = window.explorer.view; panel.cut(count); return panel.groups; }", count
        )
        assert sorted(map(sorted, found)) == sorted(np.flatnonzero(one).tolist() for one in living.level(count))
    expect(window.page.locator(".tree-head")).to_contain_text("2 clusters that you made")
    window.page.close()


def test_the_tree_fits_a_phone_and_is_accessible(browser: Browser, served: Served) -> None:
    tree_of(served)
    window = Window(browser, served, "#tree", **PHONE)
    expect(window.page.locator(".tree .card").first).to_be_visible()
    assert sideways(window.page) == []
    assert faults(window.page) == []
    window.page.close()
