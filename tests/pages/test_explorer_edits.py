"""Every edit through the server, edits that come too late, and a server that is killed amid them."""

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import httpx
from explorer_server import Served, copied

from report_runs import HOSTILE  # isort: skip
from twincluster.runs import Edits, Run


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


def test_a_report_that_was_written_before_says_so(served: Served) -> None:
    page = served.run.folder / "report.html"
    for number in range(2):
        page.write_text('<p class="warning" id="since" hidden></p>')
        assert served.edit("rename", cluster=0, name=f"name {number}").status_code == 200
        assert "out of date (corrected since)" in page.read_text()
    before = page.stat()
    served.edit("undo")
    assert page.stat() == before  # once is enough


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
