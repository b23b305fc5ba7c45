"""The explorer of runs that go on while it is open, whose images have moved, or whose encoder is a pretrained one."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from explorer_server import Served, serving
from PIL import Image

from command_line import worked
from twincluster.data import open_source
from twincluster.pages.explorer import library as newest
from twincluster.runs import Run, stamps_of, write_stamps

from report_runs import made_run  # isort: skip


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(20, 32):
        Image.new("RGB", (12, 12), (number,) * 3).save(folder / f"{number:03d}.png")
    return folder


@pytest.fixture
def served(tmp_path: Path, photos: Path) -> Iterator[Served]:
    run = made_run(tmp_path / "run", photos, 2)
    listing = open_source(photos)
    write_stamps(run.folder, dict(zip(listing.paths, stamps_of(listing), strict=True)))
    with serving(run) as found:
        yield found


def until(served: Served, true: Callable[[], bool]) -> None:
    """Asks as a page does, every moment, until something holds."""
    end = time.monotonic() + 60
    while not true():
        assert time.monotonic() < end
        served.get("/api/number")
        time.sleep(0.05)


def test_an_update_is_seen_without_a_restart(served: Served, photos: Path) -> None:
    before = served.state
    assert served.edit("rename", cluster=0, name="kept").status_code == 200
    Image.new("RGB", (12, 12), (250,) * 3).save(photos / "later.png")
    Image.new("RGB", (12, 12), (200,) * 3).save(photos / "022.png")  # another picture under the same name
    worked("update", served.run.folder, photos)
    until(served, lambda: served.state["run"]["inputs"] == 13)
    after = served.state
    assert after["pictures"]["version"] != before["pictures"]["version"] == served.library.data.fingerprint[:12]
    assert "kept" in [cluster["name"] for cluster in after["clusters"]]
    assert after["features"]["ready"]
    rows = {Path(one["path"]).name: one["row"] for one in served.get("/api/details?rows=2,12").json()}
    for name, grey in (("later.png", 250), ("022.png", 200)):
        assert served.get(f"/api/neighbours/{rows[name]}").json()["neighbours"]
        with Image.open(io.BytesIO(served.get(f"/api/thumbnail/{rows[name]}").content)) as picture:
            assert abs(int(np.asarray(picture.convert("RGB"))[0, 0, 0]) - grey) <= 2
    assert served.edit("split", cluster=after["clusters"][0]["id"], parts=2).status_code == 200


def test_a_run_that_cannot_be_opened_again_is_told_once_and_opened_when_it_can(
    served: Served, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[object] = []
    real = newest.Library
    monkeypatch.setattr(newest, "Library", lambda *given: opened.append(given) or real(*given))  # type: ignore[func-returns-value]
    settings = served.run.folder / "config.json"
    whole = settings.read_text()
    Image.new("RGB", (12, 12), (250,) * 3).save(photos / "later.png")
    worked("update", served.run.folder, photos)
    settings.write_text("damaged")
    until(served, lambda: bool(opened))
    for _ in range(10):
        assert served.get("/api/number").status_code < 500
        time.sleep(0.05)
    assert "config.json cannot be read as a run's settings" in served.get("/api/number").json()["trouble"]
    assert len(opened) == 1
    said = capsys.readouterr().err
    assert said.count("the run has changed but cannot be opened again: ") == said.count("\n") == 1
    assert "config.json cannot be read as a run's settings" in said
    settings.write_text(whole)
    until(served, lambda: served.state["run"]["inputs"] == 13)
    assert served.get("/api/number").json()["trouble"] == ""


def test_a_fault_of_ours_is_told_with_where_it_happened(
    served: Served, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*given: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(newest, "Library", broken)
    Image.new("RGB", (12, 12), (250,) * 3).save(photos / "later.png")
    worked("update", served.run.folder, photos)
    until(served, lambda: bool(served.get("/api/number").json()["trouble"]))
    for _ in range(5):
        served.get("/api/number")
    said = capsys.readouterr().err
    assert said.count("Traceback") == 1
    assert "in broken" in said
    assert said.count("the run has changed but cannot be opened again: 'a fault'") == 1


def test_an_undo_while_the_run_is_looked_at(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that goes between two questions about it."""
    before = served.library.read_signature()
    monkeypatch.setattr(Path, "is_file", lambda self: True)
    assert not (served.run.folder / "updates.jsonl").exists()
    assert served.library.read_signature() == before


def test_a_run_whose_images_were_moved_is_shown_from_the_store(served: Served, tmp_path: Path) -> None:
    picture = served.get("/api/thumbnail/3").content
    near = served.get("/api/neighbours/3").json()
    worked("export", served.run.folder, "--to", "folders", tmp_path / "sorted", "--mode", "move")
    with serving(served.run) as again:
        assert again.state["pictures"]["absent"] == ""
        assert again.get("/api/thumbnail/3").content == picture
        assert again.get("/api/image/3").status_code == 200
        assert again.get("/api/neighbours/3").json() == near


def test_a_run_on_pretrained_features_is_shown_and_shared(photo_folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite_pytorch")
    worked(
        "fit", photo_folder, "--clusters", 3, "--backbone", "pretrained@64", "--epochs", 1, "--device", "cpu", "--out",
        tmp_path / "run",
    )  # fmt: skip
    with serving(Run.open(tmp_path / "run")) as served:
        state = served.state
        assert (state["run"]["kind"], state["unreadable"], state["pictures"]["absent"]) == ("images", 2, "")
        assert served.get("/api/thumbnail/0").headers["content-type"] == "image/jpeg"
        assert len(served.get("/api/neighbours/0").json()["neighbours"]) == 24
        content = Path(str(served.library.files[7])).read_bytes()  # type: ignore[index]
        found = served.client.post("/api/drop", content=content).json()
        assert found["neighbours"][0]["row"] == 7
        assert found["cluster"] == served.library.assignments.clusters[7]
        served.edit("rename", cluster=0, name="first")
    worked("export", tmp_path / "run", "--to", "huggingface", tmp_path / "shared")
    card = (tmp_path / "shared" / "README.md").read_text(encoding="utf-8")
    assert "pip install 'twincluster[pretrained]'" in card
    for model in ("run", "shared"):
        worked("predict", tmp_path / model, photo_folder, "--out", tmp_path / f"{model}.csv")
    assert (tmp_path / "run.csv").read_text() == (tmp_path / "shared.csv").read_text()


@pytest.mark.parametrize("start,length", [(2000, 4096), (3000, 1), (0, 4), (100, 10**9), (0, 10**9)])
def test_features_that_a_disk_has_damaged_are_computed_again(
    tmp_path: Path, photos: Path, own_cache: Path, start: int, length: int
) -> None:
    """A length beyond the end cuts the file."""
    run = made_run(tmp_path / "run", photos, 2)
    listing = open_source(photos)
    write_stamps(run.folder, dict(zip(listing.paths, stamps_of(listing), strict=True)))
    with serving(run) as first:
        assert first.state["features"] == {"ready": True, "absent": ""}
    (kept,) = own_cache.rglob("explorer/*.npz")
    whole = kept.read_bytes()
    rest = whole[start + length :]
    kept.write_bytes(whole[:start] + bytes(length if rest else 0) + rest)
    with serving(run) as again:
        assert again.state["features"] == {"ready": True, "absent": ""}
    assert np.array_equal(np.load(kept)["features"], np.load(io.BytesIO(whole))["features"])
