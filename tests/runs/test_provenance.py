"""How a run came about: what a run keeps of it, over resumes and saves, and what of it is passed on."""

import json
import shlex
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from command_line import TINY, colours, colours_file, command, worked
from small_runs import AtCall, rows
from twincluster import fit as pipeline
from twincluster.config import make_config
from twincluster.core import InputError, typed
from twincluster.data import open_source
from twincluster.estimator import TwinContrastClustering
from twincluster.runs import Run, provenance
from twincluster.runs.provenance import Provenance, Sitting

QUICK = make_config({"n_clusters": 3, "train": {"epochs": 2, "batch_size": 8, "device": "cpu"}})
NEW = Provenance((Sitting("2026-01-31T09:05:00+00:00", None, "cpu", "Fast One", 8, 8, 1),))


def entry(run: Path) -> Any:
    return json.loads((run / "provenance.json").read_text())


def test_a_command_leaves_when_where_how_and_how_long(tmp_path: Path) -> None:
    run, before = tmp_path / "a run's", datetime.now(UTC) - timedelta(seconds=1)
    words = ["fit", str(colours_file(tmp_path)), "-k", "3", "--out", str(run), *TINY]
    worked(*words)
    (sitting,) = entry(run)["sittings"]
    assert shlex.split(sitting["command"]) == ["twincluster", *words]
    started, ended = (datetime.fromisoformat(sitting[name]) for name in ("started", "ended"))
    assert started.utcoffset() == timedelta(0)
    assert before <= started <= ended <= datetime.now(UTC)
    assert (sitting["device"], sitting["threads"], sitting["processes"]) == ("cpu", torch.get_num_threads(), 1)
    assert sitting["count"] >= 1
    assert sitting["hardware"]
    assert Run(run).read_metrics()[-1]["seconds"] < entry(run)["seconds"] + 0.001 < (ended - started).seconds + 2


def test_runs_that_are_the_same_have_the_same_settings_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        pipeline.fit(open_source(rows()), QUICK, tmp_path / name)
    one, two = ((tmp_path / name / "config.json").read_bytes() for name in ("one", "two"))
    assert one == two


def test_a_resumed_run_keeps_its_first_start_and_what_was_broken_off_has_no_end(tmp_path: Path) -> None:
    class Stop(Exception):  # noqa: N818  (nothing went wrong)
        pass

    def stop() -> None:
        raise Stop

    listing, often = open_source(rows()), make_config({"train": {"checkpoint_minutes": 0}}, QUICK)
    with pytest.raises(Stop):
        pipeline.fit(listing, often, tmp_path / "run", reporter=AtCall(2, stop))
    (first,) = entry(tmp_path / "run")["sittings"]
    assert (first["ended"], entry(tmp_path / "run")["seconds"]) == (None, None)
    for _ in range(2):
        pipeline.fit(listing, often, tmp_path / "run", resume=True)
    kept, *later = entry(tmp_path / "run")["sittings"]
    assert kept == first
    assert len(later) == 2
    assert all(sitting["ended"] for sitting in later)
    assert provenance.read(tmp_path / "run").facts()["begun"].endswith("UTC, resumed twice")


def test_a_run_ends_well_though_the_file_was_deleted_meanwhile(tmp_path: Path) -> None:
    file = tmp_path / "run" / "provenance.json"
    pipeline.fit(open_source(rows()), QUICK, tmp_path / "run", reporter=AtCall(2, file.unlink))
    (sitting,) = entry(tmp_path / "run")["sittings"]
    assert (sitting["started"], bool(sitting["ended"])) == (None, True)


def test_a_run_whose_number_of_clusters_was_chosen_has_it_too(tmp_path: Path) -> None:
    config = make_config({"n_clusters": 0, "clusters_between": [2, 5]}, QUICK)
    for resume in (False, True):
        pipeline.fit(open_source(rows(60)), config, tmp_path / "run", resume=resume)
    assert Run(tmp_path / "run").has_choice
    assert [bool(sitting["ended"]) for sitting in entry(tmp_path / "run")["sittings"]] == [True, True]


def test_what_an_older_run_does_not_know_is_unknown(tmp_path: Path) -> None:
    listing = open_source(rows())
    pipeline.fit(listing, QUICK, tmp_path / "run")
    (tmp_path / "run" / "provenance.json").unlink()
    assert provenance.read(tmp_path / "run") == Provenance()
    pipeline.fit(listing, QUICK, tmp_path / "run", resume=True)
    first, second = provenance.read(tmp_path / "run").sittings
    assert first == Sitting()
    assert second.ended
    said = provenance.read(tmp_path / "run").facts()
    assert "begun" not in said
    assert said["hardware"].startswith("unknown, then ")


def test_the_estimator_keeps_it_and_has_no_command(tmp_path: Path) -> None:
    model = TwinContrastClustering(3, epochs=1, random_state=0, device="cpu").fit(rows())
    model.save(tmp_path / "one")
    TwinContrastClustering.load(tmp_path / "one").save(tmp_path / "two")
    assert entry(tmp_path / "one") == entry(tmp_path / "two")
    (sitting,) = entry(tmp_path / "one")["sittings"]
    assert sitting["command"] is None
    assert sitting["started"] <= sitting["ended"]


def test_gpus_and_processes_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Fast One")
    assert Provenance().begin("now", "cuda").sittings[0].hardware_text() == "Fast One"
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    sitting = Provenance().begin("now", "cuda").sittings[0]
    assert (sitting.count, sitting.processes, sitting.hardware_text()) == (4, 4, "4 x Fast One")
    assert Provenance().begin("now", "cpu").sittings[0].hardware_text().endswith(", 4 processes")


@pytest.mark.parametrize(
    "count,threads,told",
    [(8, 8, "Fast One, 8 cores"), (1, 1, "Fast One, 1 core"), (8, 1, "Fast One, 8 cores, 1 thread")],
)
def test_a_processor_is_told_with_what_was_used_of_it(count: int, threads: int, told: str) -> None:
    assert Sitting(device="cpu", hardware="Fast One", count=count, threads=threads, processes=1).hardware_text() == told


def test_it_is_told_in_words() -> None:
    assert NEW.end(95.2).facts() == {
        "begun": "2026-01-31 09:05 UTC", "hardware": "Fast One, 8 cores", "training time": "1 min 35 s",
    }  # fmt: skip
    assert NEW.begin("2026-02-01T00:00:00+00:00", "cpu").facts()["begun"] == "2026-01-31 09:05 UTC, resumed once"


@pytest.mark.parametrize(
    "word,told",
    [
        ("/home/ann/photos/", "photos/"),
        ("photos/beach", "photos/beach"),
        ("--out=/home/ann/runs/one", "--out=one"),
        ("train.encoder=resnet50:/home/ann/my weights.safetensors", "train.encoder=resnet50:my weights.safetensors"),
        ("hf:org/name", "hf:org/name"),
        ("/", "/"),
    ],
)
def test_of_a_whole_path_the_last_part_is_passed_on(word: str, told: str) -> None:
    with typed(["fit", word]):
        made = Provenance().begin("now", "cpu")
    assert shlex.split(made.sittings[0].command or "") == ["twincluster", "fit", word]
    assert shlex.split(made.command() or "") == ["twincluster", "fit", told]
    assert Provenance().begin("now", "cpu").sittings[0].command is None  # the command is over


def damaged() -> list[Any]:
    odd = asdict(NEW.sittings[0]) | {"started": 5, "hardware": [], "count": "x", "command": "'unclosed"}
    odder = odd | {"device": "cuda", "count": 1, "command": 5}
    ends = [{"sittings": [odd], "seconds": "long"}, {"sittings": [odder], "seconds": float("nan")}]
    return [None, [], "text", {"sittings": 3}, {"sittings": ["x"]}, *ends]


def test_a_damaged_file_is_an_error_until_it_is_deleted(tmp_path: Path) -> None:
    run = tmp_path / "run"
    pipeline.fit(open_source(colours()[0]), make_config({"train": {"backbone": "small"}}, QUICK), run)
    for content in damaged():
        (run / "provenance.json").write_text(json.dumps(content))
        complaint = command("report", run).complaint
        assert "provenance.json is damaged (provenance.json" in complaint
        assert complaint.endswith("delete it to continue without it")
        with pytest.raises(InputError, match="provenance.json is damaged"):
            TwinContrastClustering.load(run)
    (run / "provenance.json").unlink()
    worked("report", run)
    worked("export", run, tmp_path / "shared", "--to", "huggingface")
    TwinContrastClustering.load(run).save(tmp_path / "saved")
    for folder in (tmp_path / "shared", tmp_path / "saved"):
        assert Run.open(folder).read_assignments().clusters.shape == (48,)
