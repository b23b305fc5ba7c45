"""The page of a served run in a browser."""

from typing import Any

from explorer_server import Served

from browsing import Browser, Page, expect


class Window:
    """A page that notes every message on its console; `requests` are the addresses it has asked for."""

    def __init__(self, browser: Browser, served: Served, where: str = "", **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce"} | options
        self.page = browser.new_page(**options)
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(f"{served.url}/{where}")
        expect(self.page.locator("#title")).to_be_visible()


def sideways(page: Page) -> list[str]:
    """What can be scrolled sideways, or lies beyond the edge: the whole page, dialogs, lists."""
    found: list[str] = page.evaluate(
        """() => [...document.querySelectorAll('*')].filter((one) => one.scrollWidth > one.clientWidth + 1
        && (one === document.documentElement || one === document.body
            || ['auto', 'scroll'].includes(getComputedStyle(one).overflowX)))
        .map((one) => one.outerHTML.slice(0, 120))"""
    )
    return found
