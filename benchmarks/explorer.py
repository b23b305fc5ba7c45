"""How the explorer feels with many images: load event, pictures after a jump, frames while scrolling, time to select
all, server memory."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import peak_memory
from benchmarks.report import find_browser, write_run
from twincluster.core import InputError

SCROLLS = 240  # frames that are scrolled through
SCROLL = """async (frames) => {
  const grid = document.querySelector(".grid"), times = [];
  const step = (grid.scrollHeight - grid.clientHeight) / frames;
  let last = await new Promise(requestAnimationFrame);
  for (let at = 1; at <= frames; at++) {
    grid.scrollTop = at % 2 ? grid.scrollTop + 300 : at * step;
    const now = await new Promise(requestAnimationFrame);
    times.push(now - last);
    last = now;
  }
  return times.sort((one, other) => one - other)[Math.floor(0.95 * frames)];
}"""
JUMP = """async () => {
  const { grid } = explorer.view, start = performance.now();
  grid.body.scrollTop = grid.body.scrollHeight / 3;
  const first = Math.ceil(grid.body.scrollTop / grid.cell) * grid.columns;
  const seen = (tile) => tile.querySelector("img")?.naturalWidth;
  const there = () => grid.tiles.has(first) && [...grid.tiles.values()].every(seen);
  do await new Promise(requestAnimationFrame); while (!there());
  return performance.now() - start;
}"""
SELECT = """async () => {
  const start = performance.now();
  explorer.view.grid.selectAll();
  await new Promise(requestAnimationFrame);
  return performance.now() - start;
}"""


@dataclass(frozen=True)
class ExplorerFigures:
    images: int
    clusters: int
    load: float  # seconds to the end of the load event
    shown: float  # seconds until the first picture of all images is there
    jump: float  # ms until all pictures in sight are there, after a jump to where nobody has been
    frame: float  # 95th percentile, ms
    select: float  # ms
    memory: float  # peak of the server, MB
    busy: float  # processes that wanted a core before it began, on average over a minute

    def to_text(self) -> str:
        return "\n".join([
            f"explorer of {self.images:,} images of noise in {self.clusters:,} clusters",
            f"{'load event':24}{self.load:8.2f} s",
            f"{'first picture':24}{self.shown:8.2f} s",
            f"{'pictures after a jump':24}{self.jump:8.1f} ms",
            f"{'frame while scrolling':24}{self.frame:8.1f} ms   95th percentile of {SCROLLS}",
            f"{'selecting all':24}{self.select:8.1f} ms",
            f"{'memory of the server':24}{self.memory:8.0f} MB   peak, torch included",
            f"{'load of the machine':24}{self.busy:8.1f}      before, on {os.cpu_count()} cores",
        ])  # fmt: skip


def measure(n_images: int, n_clusters: int, side: int) -> ExplorerFigures:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        raise InputError("the page is measured in Chromium: install it, and pip install playwright") from None
    browser = find_browser()
    if browser is None:
        raise InputError("the page is measured in Chromium: install it, and pip install playwright")
    busy = os.getloadavg()[0] if hasattr(os, "getloadavg") else math.nan
    with tempfile.TemporaryDirectory() as place:
        run = write_run(Path(place) / "noise", n_images, n_clusters, side)
        with _serving(run.folder) as (address, process), sync_playwright() as playwright:
            running = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
            page = running.new_page(viewport={"width": 1280, "height": 900})
            page.goto(f"{address}#all")
            page.locator(".tile img").first.wait_for(timeout=120_000)
            shown: Any = page.evaluate("performance.now()")
            load: Any = page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd")
            while not page.evaluate("explorer.talk.state.features.ready"):  # whose computing takes the cores
                page.wait_for_timeout(1000)
            page.wait_for_timeout(1000)
            jump, frame, select = page.evaluate(JUMP), page.evaluate(SCROLL, SCROLLS), page.evaluate(SELECT)
            memory = (peak_memory(process.pid) or math.nan) / 2**20
            running.close()
    return ExplorerFigures(n_images, n_clusters, load / 1000, shown / 1000, jump, frame, select, memory, busy)


@contextmanager
def _serving(run: Path) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    command = [sys.executable, "-m", "twincluster", "serve", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            yield next(line.split()[1] for line in server.stdout if line.startswith("open http")), server
        finally:
            server.kill()
