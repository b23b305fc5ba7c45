"""A page in a real Chromium, watched: every request, every message on the console, every error.

Tests take what they need of playwright from here: where it is not installed, importing this file skips them.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("TWINCLUSTER_BROWSER") != "required":
    pytest.importorskip("playwright")
    pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

from benchmarks.report import find_browser

__all__ = ["PHONE", "Browser", "Page", "Watched", "chromium", "expect", "faults", "watch"]

REQUIRED = os.environ.get("TWINCLUSTER_BROWSER") == "required"
expect.set_options(timeout=60_000)  # a condition that holds returns at once; t-SNE on a busy machine takes a while
PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Without a browser the tests of the page are skipped, unless TWINCLUSTER_BROWSER=required."""
    found = find_browser()
    if found is None:
        (pytest.fail if REQUIRED else pytest.skip)("no Chromium: `make browser` installs Debian's, as root")
    with sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        except Error as error:
            if REQUIRED:
                raise
            pytest.skip(f"{found} does not start: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@dataclass
class Watched:
    page: Page
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


def watch(browser: Browser, path: Path, **options: Any) -> Watched:
    """Opens a page whose every request beyond itself is stopped and noted."""
    options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
    page = browser.new_page(**options)
    page.set_default_timeout(20_000)
    watched = Watched(page)
    own = path.resolve().as_uri()

    def decide(route: Any) -> None:
        if route.request.url == own:
            route.continue_()
        else:
            watched.requests.append(route.request.url)
            route.abort()

    page.route("**/*", decide)
    page.on("console", lambda message: watched.complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    page.goto(own)
    return watched


def faults(page: Page) -> list[tuple[str, str]]:
    """What axe has to say against it: the rule, and the beginning of the first element that breaks it."""
    found: Any = Axe().run(page).response
    return [(fault["id"], fault["nodes"][0]["html"][:200]) for fault in found["violations"]]
