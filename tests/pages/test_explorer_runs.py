"""The explorer of runs of every kind: from Python, without pictures, on rows, of a thousand clusters, updated."""

import shutil
from pathlib import Path

import numpy as np
from explorer_server import copied, opened, serving
from PIL import Image

from edited_runs import untrained_run

from report_runs import made_run  # isort: skip
from twincluster.data import open_source
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.pages import Library
from twincluster.runs import Edits, Run, unit
from twincluster.update import update


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


def test_images_that_came_after_a_split_are_in_the_part_they_are_most_like(original: Run, tmp_path: Path) -> None:
    run = copied(original, tmp_path / "run")
    with serving(run) as served:
        for cluster in range(3):
            assert served.edit("split", cluster=cluster, parts=2).status_code == 200
        files, paths = served.library.files, run.read_assignments().paths
        assert files is not None
    (tmp_path / "new").mkdir()
    small = [int(Edits(run).state.members(part)[0]) for part in (4, 6, 8)]  # nothing goes there without a look
    for row in small:
        shutil.copyfile(str(files[row]), tmp_path / "new" / f"{row}.png")
    update(run, open_source(tmp_path / "new", at_least=1), location=str(tmp_path / "new"), device="cpu")
    model, network = run.read_assignments(), load_network(run)
    features = inference.embed(network, Library(run).inputs.parts[-1].images.pixels, np.arange(len(small))).numpy()
    expected = Edits(run).state.route(model.clusters[len(paths) :], unit(features))
    with serving(run) as served:
        details = served.get("/api/details", params={"rows": ",".join(map(str, range(len(paths), len(paths) + 3)))})
        assert [one["cluster"] for one in details.json()] == expected.tolist()
        assert not served.library.edits.state.guessed.any()


def test_rows_and_a_thousand_clusters(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).normal(size=(3000, 4)).astype(np.float32))
    with serving(made_run(tmp_path / "run", tmp_path / "rows.npy", 1000)) as served:
        state = served.state
        assert (state["run"]["kind"], len(state["clusters"])) == ("rows", 1000)
        assert served.get("/api/neighbours/17").json()["neighbours"]
        assert served.client.post("/api/drop", content=b"x").status_code == 400
