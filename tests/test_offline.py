"""No network unless it is asked for: real processes, in which every connection to another machine is refused."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

import twincluster
from command_line import TINY
from twincluster.pages import listen

# Read by every Python process that finds it, those that decode images too. An audit hook cannot be taken off again.
REFUSE = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.bind"):
        address = arguments[1]
        outside = isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost")
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        outside = arguments[0] not in (None, "127.0.0.1", "::1", "localhost")
    else:
        return
    if outside:
        with open({log!r}, "a") as log:
            print(event, arguments, file=log)
        raise OSError("no network here")

sys.addaudithook(refuse)
with open({log!r}, "a") as log:
    print("started", file=log)
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """For processes without a network."""
    (tmp_path / "hooks").mkdir()
    (tmp_path / "hooks" / "sitecustomize.py").write_text(REFUSE.format(log=str(tmp_path / "log")))
    path = os.pathsep.join([str(tmp_path / "hooks"), str(Path(twincluster.__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path}


def said(tmp_path: Path) -> list[str]:
    """What was refused, after checking that the hook was there."""
    lines = (tmp_path / "log").read_text().splitlines()
    assert "started" in lines
    return [line for line in lines if line != "started"]


def test_the_hook_refuses_other_machines_and_names(tmp_path: Path, environment: dict[str, str]) -> None:
    for call in ("socket.create_connection(('192.0.2.1', 80))", "socket.getaddrinfo('example.org', 80)"):
        done = subprocess.run([sys.executable, "-c", f"import socket; {call}"], capture_output=True, env=environment)
        assert b"no network here" in done.stderr
    assert len(said(tmp_path)) == 2


def test_fit_report_and_serve_stay_on_this_machine(
    tmp_path: Path, environment: dict[str, str], photo_folder: Path
) -> None:
    def run(*words: object) -> None:
        command = [sys.executable, "-m", "twincluster", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, done.stderr

    folder = tmp_path / "run"
    run("fit", photo_folder, "-k", 3, "--out", folder, *TINY)
    run("report", folder)
    run("predict", folder, photo_folder, "--out", tmp_path / "new.csv")
    run("export", folder, tmp_path / "model", "--to", "huggingface")
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    words = [sys.executable, "-m", "twincluster", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment) as server:
        end = time.monotonic() + 120
        clusters = None
        while clusters is None and time.monotonic() < end:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/state", timeout=10) as answer:
                    clusters = json.load(answer)["clusters"]
            except OSError:
                time.sleep(0.1)
        server.send_signal(signal.SIGINT)
    assert clusters is not None
    assert len(clusters) == 3
    assert said(tmp_path) == []
