"""What the server answers, to whom, and what it refuses; every edit through it, and edits that come too late."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from explorer_server import Served, cache_in, copied, serving
from PIL import Image
from report_runs import HOSTILE, hostile_folder, made_run

from edited_runs import untrained_run
from twincluster import inference
from twincluster.edits import Edits
from twincluster.explorer import server
from twincluster.images.sources import open_source
from twincluster.results import Run
from twincluster.update import update


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """26 pictures in three clusters under names that try to be markup, an oblong one, and a file that is no picture."""
    folder = tmp_path_factory.mktemp("served")
    with cache_in(folder / "cache"):
        source = hostile_folder(folder / "images")
        Image.new("RGB", (70, 40), "navy").save(source / "oblong.png")
        yield made_run(folder / "run", source, 3)


@pytest.fixture
def served(original: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setenv("TWINCLUSTER_CACHE", str(original.folder.parent / "cache"))
    with serving(copied(original, tmp_path / "run")) as found:
        yield found


def opened(answer: httpx.Response) -> Image.Image:
    assert answer.status_code == 200, answer.text
    return Image.open(io.BytesIO(answer.content))


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
    features = inference.embed(served.run.load_network(), images.pixels, images.usable)
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


def test_every_correction_is_kept_in_the_run(served: Served) -> None:
    first, second = served.rows(of="cluster", cluster=0, order="source")[:2]
    for kind, fields in (
        ("rename", {"cluster": 0, "name": HOSTILE}),
        ("move", {"rows": [first], "name": "alone"}),
        ("move", {"rows": [second], "to": 3}),
        ("junk", {"rows": [second]}),
        ("unjunk", {"rows": [second]}),
        ("split", {"cluster": 1, "parts": 2}),
        ("split_off", {"cluster": 2, "rows": served.rows(of="cluster", cluster=2)[:2], "name": "pair"}),
        ("merge", {"clusters": [0, 3], "name": "both"}),
    ):
        answer = served.edit(kind, **fields)
        assert answer.status_code == 200, (kind, answer.text)
    state = Edits(served.run).state
    assert state.names[0] == "both"
    assert {first, second} <= set(state.members(0).tolist())
    assert 1 not in state.names
    assert len(state.names) == 5  # both, the parts of 1, 2 and pair
    served.edit("undo")
    assert 3 in Edits(served.run).state.names
    served.edit("redo")
    assert 3 not in Edits(served.run).state.names


def test_of_two_who_edit_at_once_the_second_is_told_and_nothing_is_lost(served: Served) -> None:
    number = served.number
    assert served.edit("rename", number, cluster=0, name="first").status_code == 200
    late = served.edit("rename", number, cluster=0, name="second")
    assert late.status_code == 409
    assert late.json()["state"]["clusters"][0]["name"] == "first"
    assert "first" in late.json()["state"]["undo"]
    assert Edits(served.run).state.names[0] == "first"
    assert served.edit("rename", cluster=0, name="second").status_code == 200


def test_edits_of_another_program_are_seen(served: Served) -> None:
    Edits(served.run).rename(2, "from Python")
    assert served.get("/api/number").json()["number"] == 1
    assert served.state["clusters"][2]["name"] == "from Python"


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:80"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_other_sites_are_turned_away(served: Served, headers: dict[str, str]) -> None:
    body = {"kind": "rename", "expected": 0, "cluster": 0, "name": "harm"}
    assert served.client.post("/api/edit", json=body, headers=headers).status_code in (403, 421)
    assert served.get("/api/state", headers=headers).status_code in (403, 421)
    assert served.get("/api/image/0", headers=headers).status_code in (403, 421)
    assert not (served.run.folder / "edits.jsonl").exists()


def test_policy_forbids_what_the_page_does_not_need(served: Served) -> None:
    for path in ("/", "/api/state", "/api/thumbnail/0", "/nothing"):
        headers = served.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cross-origin-resource-policy"] == "same-origin"


def test_beyond_this_machine_a_token_is_needed(original: Run, tmp_path: Path) -> None:
    with serving(copied(original, tmp_path / "run"), token="s3cret") as served:
        for path in ("/", "/api/state", "/api/image/0", "/page/dom.js", "/?token=wrong", "/api/state?token=s3cret"):
            assert served.get(path).status_code == 401
        assert served.client.post("/api/edit", json={}).status_code == 401
        entered = served.get("/?token=s3cret")
        assert entered.status_code == 303
        assert "HttpOnly" in entered.headers["set-cookie"]
        assert "SameSite=strict" in entered.headers["set-cookie"]
        assert served.get("/api/state").status_code == 200  # the client keeps the cookie
        assert served.get("/api/state", headers={"host": "photos.local"}).status_code == 200


NONSENSE = [
    b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe", b"[" * 100_000, b"{}", b'{"kind":"rename"}',
    b'{"kind":["rename"],"expected":0}', b'{"kind":"rename","expected":"0","cluster":0,"name":"x"}',
    b'{"kind":"rename","expected":0,"cluster":true,"name":"x"}', b'{"kind":"rename","expected":0,"cluster":0,"name":7}',
    b'{"kind":"rename","expected":0,"cluster":0,"name":" "}', b'{"kind":"rename","expected":0,"cluster":99,"name":"x"}',
    b'{"kind":"rename","expected":0,"cluster":0,"name":"\\ud800"}',
    b'{"kind":"move","expected":0,"rows":[],"to":1}', b'{"kind":"move","expected":0,"rows":[[1]],"to":1}',
    b'{"kind":"move","expected":0,"rows":[1e999],"to":1}', b'{"kind":"move","expected":0,"rows":[-1],"to":1}',
    b'{"kind":"move","expected":0,"rows":[999999999999999999999],"to":1}',
    b'{"kind":"move","expected":0,"rows":{"a":1}}',
    b'{"kind":"junk","expected":0,"rows":[4000]}', b'{"kind":"junk","expected":0,"rows":[NaN]}',
    b'{"kind":"split","expected":0,"cluster":0,"parts":1}', b'{"kind":"split","expected":0,"cluster":-1,"parts":2}',
    b'{"kind":"split_off","expected":0,"cluster":0,"rows":[1]}', b'{"kind":"merge","expected":0,"clusters":[0,0]}',
    b'{"kind":"merge","expected":0,"clusters":[0,"1"]}', b'{"kind":"undo","expected":0}',
    b'{"kind":"start","expected":0}',
]  # fmt: skip


def test_nonsense_is_refused_in_a_sentence_and_writes_nothing(served: Served) -> None:
    for body in NONSENSE:
        answer = served.client.post("/api/edit", content=body, headers={"content-type": "application/json"})
        assert 400 <= answer.status_code < 500, (body[:60], answer.status_code)
        assert answer.json()["error"]
    assert served.client.post("/api/edit", content=b"{}", headers={"content-type": "text/plain"}).status_code == 415
    log = served.run.folder / "edits.jsonl"
    assert not log.exists() or log.read_bytes() == b""


@pytest.mark.parametrize(
    "path",
    [
        "/api/image/-1", "/api/image/999", "/api/image/x", "/api/image/1e3", "/api/image/99999999999999999999999",
        "/api/image/..%2f..%2fetc%2fpasswd", "/api/thumbnail/%00", "/api/neighbours/999", "/api/rows", "/api/rows?of=x",
        "/api/rows?of=cluster&cluster=x", "/api/rows?of=cluster&cluster=99999999999999999999", "/api/details?rows=",
        "/api/details?rows=1,,2", "/api/details?rows=-1", "/api/details?rows=999", "/api/details?rows=%D9%A3",
        "/api/rows?of=all&path=" + "x" * 2000,
        "/page/server.py", "/page/..%2fserver.py", "/page/", "/docs", "/openapi.json",
    ],
)  # fmt: skip
def test_odd_addresses_are_refused(served: Served, path: str) -> None:
    assert 400 <= served.get(path).status_code < 500
    assert served.client.request("TRACE", path).status_code in (400, 404, 405)


def test_a_file_that_became_a_link_to_something_else_shows_nothing_of_it(served: Served, tmp_path: Path) -> None:
    row = served.library.assignments.paths.index("oblong.png")
    (tmp_path / "secret.txt").write_text("the secret")
    assert served.library.files is not None
    file = served.library.files[row]
    assert isinstance(file, Path)
    kept = file.read_bytes()
    file.unlink()
    file.symlink_to(tmp_path / "secret.txt")
    try:
        answer = served.get(f"/api/image/{row}")
        assert b"secret" not in answer.content
        assert answer.status_code == 404 or opened(answer).size[0] == opened(answer).size[1]  # what the run keeps of it
    finally:
        file.unlink()
        file.write_bytes(kept)


def test_a_dropped_image_finds_its_like_and_leaves_no_trace(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    library = served.library
    assert library.files is not None
    content = Path(str(library.files[4])).read_bytes()
    found = served.client.post("/api/drop", content=content).json()
    assert found["neighbours"][0]["row"] == 4
    assert found["neighbours"][0]["cosine"] == pytest.approx(1, abs=1e-3)
    images = library.images
    assert images is not None
    expected = inference.predict(served.run.load_network(), images.pixels, np.array([4]))[0]
    assert found["cluster"] == int(expected.argmax())
    assert not (served.run.folder / "edits.jsonl").exists()
    for nonsense in (b"", b"<svg onload=1>", content[: len(content) // 2]):
        assert served.client.post("/api/drop", content=nonsense).status_code == 400
    monkeypatch.setattr(server, "MOST_BYTES", 1000)
    assert served.client.post("/api/drop", content=b"x" * 2000).status_code == 413


def test_a_run_from_python_is_shown_without_pictures(tmp_path: Path) -> None:
    with serving(untrained_run(tmp_path / "run", [0, 1, 2, 0, -1])) as served:
        state = served.state
        assert "Python" in state["pictures"]["absent"]
        assert served.get("/api/thumbnail/0").status_code == 404
        assert "Python" in served.get("/api/neighbours/0").json()["absent"]
        assert "Python" in served.get("/api/map").json()["absent"]
        assert served.edit("split", cluster=0, parts=2).status_code == 400
        assert served.edit("split_off", cluster=0, rows=[3]).status_code == 200
        assert served.edit("merge", clusters=[1, 2]).status_code == 200
        assert [one["size"] for one in served.state["clusters"]] == [1, 2, 1]


def test_images_that_came_by_an_update_have_pictures_and_neighbours(original: Run, tmp_path: Path) -> None:
    run = copied(original, tmp_path / "run")
    (tmp_path / "new").mkdir()
    Image.new("RGB", (50, 30), "red").save(tmp_path / "new" / "late.png")
    update(run, open_source(tmp_path / "new", at_least=1), location=str(tmp_path / "new"), device="cpu")
    with serving(run) as served:
        row = len(served.library.assignments.paths) - 1
        assert served.library.assignments.paths[row].endswith("late.png")
        assert opened(served.get(f"/api/image/{row}")).size == (50, 30)
        assert opened(served.get(f"/api/thumbnail/{row}")).width > 0
        assert served.get(f"/api/neighbours/{row}").json()["neighbours"]


def test_rows_and_a_thousand_clusters(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32))
    with serving(made_run(tmp_path / "run", tmp_path / "rows.npy", 1000)) as served:
        state = served.state
        assert (state["run"]["kind"], len(state["clusters"])) == ("rows", 1000)
        assert served.get("/api/neighbours/17").json()["neighbours"]
        assert served.client.post("/api/drop", content=b"x").status_code == 400


def test_features_are_computed_once_and_kept(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(inference, "embed", refuse)
    with serving(served.run) as again:
        assert again.library.seen is not None
        assert served.library.seen is not None
        np.testing.assert_array_equal(again.library.seen.features, served.library.seen.features)


def test_a_kill_amid_edits_loses_at_most_the_one_that_was_not_answered(original: Run, tmp_path: Path) -> None:
    run = copied(original, tmp_path / "run")
    command = [sys.executable, "-m", "twincluster", "serve", str(run.folder), "--port", "0"]
    answered = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("open http://127.0.0.1:"))
        kill = threading.Timer(0.5, os.kill, (process.pid, signal.SIGKILL))
        with httpx.Client(base_url=line.split()[1].rstrip("/"), timeout=60) as client, suppress(httpx.TransportError):
            while True:
                body = {"kind": "rename", "expected": answered, "cluster": 0, "name": f"name {answered + 1}"}
                answer = client.post("/api/edit", json=body)
                assert answer.status_code == 200, answer.text
                answered += 1
                if answered == 1:
                    kill.start()
    assert answered > 0
    state = Edits(run).state
    assert state.number in (answered, answered + 1)
    assert state.names[0] == f"name {state.number}"
    assert Edits(run).rename(0, "after").names[0] == "after"
