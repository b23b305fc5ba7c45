"""What the server shows of a run: clusters, rows, pictures, neighbours, a map, and where a dropped image belongs."""

import asyncio
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from explorer_server import Served, opened, serving

from command_line import command
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.pages.explorer import library, server
from twincluster.runs import Run


def test_state_tells_of_clusters_and_of_what_could_not_be_read(served: Served) -> None:
    state, clusters = served.state, served.library.assignments.clusters
    assert [(one["id"], one["size"]) for one in state["clusters"]] == [
        (k, int((clusters == k).sum())) for k in range(3)
    ]
    assert state["unreadable"] == 1
    assert state["features"]["ready"]
    for k, one in enumerate(state["clusters"]):
        assert set(one["typical"]) <= set(np.flatnonzero(clusters == k).tolist())
    assert served.rows(of="unreadable") == np.flatnonzero(clusters < 0).tolist()


def test_rows_come_in_the_order_and_with_the_paths_asked_for(served: Served) -> None:
    known = served.library.assignments
    members = np.flatnonzero(known.clusters == 1)
    assert served.rows(of="cluster", cluster=1, order="source") == members.tolist()
    assert served.rows(of="cluster", cluster=1, order="doubtful") == members.tolist()  # confidence rises with the row
    assert sorted(served.rows(of="cluster", cluster=1)) == members.tolist()
    assert served.rows(of="all", path="COPY", order="source") == [
        row for row, path in enumerate(known.paths) if "copy" in path
    ]
    assert served.get("/api/rows", params={"of": "cluster", "cluster": 7}).status_code == 404


def test_pictures_are_small_are_whole_and_are_kept_by_the_browser(served: Served) -> None:
    row = served.library.assignments.paths.index("oblong.png")
    answer = served.get(f"/api/thumbnail/{row}")
    assert opened(answer).size == (served.library.pictures.side,) * 2  # type: ignore[union-attr]
    assert "immutable" in answer.headers["cache-control"]
    again = served.get(f"/api/thumbnail/{row}", headers={"if-none-match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert opened(served.get(f"/api/image/{row}")).size == (70, 40)
    (unreadable,) = served.rows(of="unreadable")
    assert served.get(f"/api/thumbnail/{unreadable}").status_code == 404
    assert served.get(f"/api/image/{unreadable}").status_code == 404


def test_neighbours_are_those_of_highest_cosine(served: Served) -> None:
    images = served.library.images
    assert images is not None
    features = inference.embed(load_network(served.run), images.pixels, images.usable)
    cosine = torch.nn.functional.cosine_similarity(features[3:4], features)
    order = [int(at) for at in cosine.argsort(descending=True) if at != 3]
    found = served.get(f"/api/neighbours/{images.usable[3]}").json()["neighbours"]
    assert [one["cosine"] for one in found] == pytest.approx(cosine[order][: len(found)].tolist(), abs=1e-3)
    assert int(images.usable[3]) not in [one["row"] for one in found]


def test_the_map_comes_when_it_is_made_and_shows_clusters_as_they_are_now(served: Served) -> None:
    while (found := served.get("/api/map").json()).get("waiting"):
        time.sleep(0.05)
    readable = np.flatnonzero(served.library.assignments.clusters >= 0)
    assert found["image"] == readable.tolist()
    assert found["cluster"] == served.library.assignments.clusters[readable].tolist()
    served.edit("junk", rows=[int(readable[0])])
    served.edit("merge", clusters=[2, 1])
    found = served.get("/api/map").json()
    assert found["image"] == readable[1:].tolist()
    assert set(found["cluster"]) == {0, 2}


def test_a_dropped_image_finds_its_like_and_leaves_no_trace(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    library = served.library
    assert library.files is not None
    content = Path(str(library.files[4])).read_bytes()
    found = served.client.post("/api/drop", content=content).json()
    assert found["neighbours"][0]["row"] == 4
    assert found["neighbours"][0]["cosine"] == pytest.approx(1, abs=1e-3)
    images = library.images
    assert images is not None
    expected = inference.predict(load_network(served.run), images.pixels, np.array([4]))[0]
    assert found["cluster"] == int(expected.argmax())
    assert not (served.run.folder / "edits.jsonl").exists()
    for nonsense in (b"", b"<svg onload=1>", content[: len(content) // 2]):
        assert served.client.post("/api/drop", content=nonsense).status_code == 400
    monkeypatch.setattr(server, "MOST_BYTES", 1000)
    assert served.client.post("/api/drop", content=b"x" * 2000).status_code == 413


def test_features_are_computed_once_and_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(inference, "embed", refuse)
    with serving(served.run) as again:
        assert again.library.seen is not None
        assert served.library.seen is not None
        np.testing.assert_array_equal(again.library.seen.features, served.library.seen.features)


def test_no_answer_waits_for_the_one_who_asked_to_acknowledge_its_head() -> None:
    async def at_once() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            accepted = writer.get_extra_info("socket")
            found.set_result(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listening = server.listen("127.0.0.1", 0)
        async with await asyncio.start_server(meet, sock=listening):
            _, writer = await asyncio.open_connection(*listening.getsockname())
            writer.close()
            return await found

    assert asyncio.run(at_once())


def test_a_port_that_is_taken_is_told_before_the_run_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "Library", None)  # which cannot be called
    port = served.url.rpartition(":")[2]
    complaint = command("serve", served.run.folder, "--port", port).complaint
    assert complaint == f"cannot listen on 127.0.0.1:{port} (Address already in use): --port 0 takes any free one"


def test_the_page_opens_in_the_browser_when_that_is_asked_for(original: Run, tmp_path: Path) -> None:
    browser, opened = tmp_path / "browser", tmp_path / "opened"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}.part && mv {opened}.part {opened}\n')
    browser.chmod(0o755)
    words = [sys.executable, "-m", "twincluster", "serve", str(original.folder), "--port", "0", "--open"]
    environment = os.environ | {"BROWSER": f"{browser} %s"}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split()[1]
        while not opened.exists() and process.poll() is None:
            time.sleep(0.05)
        process.kill()
    assert opened.read_text().strip() == address


def test_a_browser_that_does_not_come_back_is_answered(original: Run, tmp_path: Path) -> None:
    """As those in a terminal do not, of which webbrowser awaits the end."""
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(
        f"#!{sys.executable}\nimport pathlib, sys, urllib.request\n"
        f"page = urllib.request.urlopen(sys.argv[1], timeout=30).read()\n"
        f"pathlib.Path({str(seen)!r}).write_bytes(page)\n"
    )
    browser.chmod(0o755)
    words = [sys.executable, "-m", "twincluster", "serve", str(original.folder), "--port", "0", "--open"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | {"BROWSER": f"{browser} %s"}) as process:
        until = time.monotonic() + 30
        while not seen.exists() and time.monotonic() < until:
            time.sleep(0.05)
        process.kill()
    assert seen.exists()
