"""The explorer and the taught model: accepting saves it, and an image dropped onto the page is placed by it."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from taught_runs import colour_folder, colour_run

from twincluster.pages import Library
from twincluster.pages.explorer.corrections import correct
from twincluster.pages.explorer.pictures import Visitors
from twincluster.runs import TAUGHT_FILE, Edits, Run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return colour_run(tmp_path)


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_accepting_on_the_page_saves_what_was_learned_for_new_images(run: Run, tmp_path: Path) -> None:
    edits = Edits(run)
    for colour in range(3):
        edits.answer(range(colour, 12, 3), (colour + 1) % 3)
    number, library = edits.state.number, Library(run)
    library.start()
    until(lambda: library.lessons.head(number))
    correct(library, {"kind": "accept", "expected": number})
    assert Edits(run).taught is not None  # from the file: nothing here can learn it
    new = sorted(colour_folder(tmp_path / "new", 6, seed=1).iterdir())
    expected = [(number % 3 + 1) % 3 for number in range(6)]
    visitors = Visitors(library)
    assert [visitors.look_at(file.read_bytes())["cluster"] for file in new] == expected
    (run.folder / TAUGHT_FILE).write_bytes(b"damaged")
    assert [visitors.look_at(file.read_bytes())["cluster"] for file in new] == expected
    library.lessons.stop()


def test_teach_opens_the_browser_at_its_page(run: Run, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    words = [sys.executable, "-m", "twincluster", "teach", str(run.folder), "--port", "0"]
    environment = os.environ | {"BROWSER": f"{browser} %s"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        until(lambda: opened.exists() or process.poll() is not None)
        process.kill()
    assert address.endswith("/#teach")
    assert opened.read_text().strip() == address
