"""Takes the pictures of the report and of the explorer that README and docs show, in a real Chromium.

twincluster demo --out runs/demo && python docs/screenshots.py runs/demo
"""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.report import find_browser

FOLDER = Path(__file__).parent
LARGEST = 150_000  # bytes of a picture
TALL, WIDE, PHONE = {"width": 1200, "height": 1300}, {"width": 1200, "height": 840}, {"width": 390, "height": 844}


def main(run: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = (run / "report.html").resolve().as_uri()
        take(browser, page, "report.png", TALL, "light", lambda shown: None)
        take(browser, page, "report-map.png", WIDE, "dark", show_map)
        take(browser, page, "report-phone.png", PHONE, "light", show_clusters)
        with serving(run) as address:
            take(browser, address, "explorer.png", WIDE, "light", select_some)
        browser.close()


@contextmanager
def serving(run: Path) -> Iterator[str]:
    """The address of the explorer while it runs."""
    command = [sys.executable, "-m", "twincluster", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        yield next(line.split()[1] for line in server.stdout if line.startswith("open http"))
        server.terminate()


def take(
    browser: Browser, address: str, name: str, size: dict[str, int], theme: str, prepare: Callable[[Page], None]
) -> None:
    shown = browser.new_page(viewport=size, color_scheme=theme, reduced_motion="reduce")
    shown.goto(address)
    prepare(shown)
    shown.wait_for_timeout(500)
    image = Image.open(io.BytesIO(shown.screenshot())).convert("RGB")
    # by coverage, so that the small marks of the clusters keep their colours
    image = image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(FOLDER / name, optimize=True)
    bytes_ = (FOLDER / name).stat().st_size
    assert bytes_ < LARGEST, f"{name} has {bytes_} bytes"
    shown.close()


def show_map(page: Page) -> None:
    page.evaluate("document.getElementById('map').scrollIntoView()")
    page.wait_for_timeout(300)
    page.evaluate("document.getElementById('map').scrollIntoView()")
    point = page.evaluate(
        """() => { const { map } = reportParts.panel, box = map.canvas.getBoundingClientRect();
        const [x, y] = map.at(Math.floor(map.points.x.length / 2)); return [box.x + x, box.y + y]; }"""
    )
    page.mouse.move(*point)


def select_some(page: Page) -> None:
    page.locator(".card").first.wait_for()
    while not page.evaluate("explorer.talk.state.features.ready"):
        page.wait_for_timeout(200)
    page.locator(".card h3 a").first.click()
    page.locator(".tile img").first.wait_for()
    for key in ("ArrowRight", "Space", "ArrowDown", "Space"):
        page.keyboard.press(key)


def show_clusters(page: Page) -> None:
    page.evaluate("document.getElementById('clusters').scrollIntoView()")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/screenshots.py RUN")
    main(Path(sys.argv[1]))
