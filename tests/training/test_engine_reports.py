"""How long a run takes, which rate it descends at, and what it tells and writes meanwhile."""

import math
from pathlib import Path

import pytest

from small_runs import KINDS, Diary, assert_equal_state, images_of, make, pictures, train
from twincluster.core import InputError
from twincluster.runs import Run
from twincluster.training import load_checkpoint
from twincluster.training import trainer as engine
from twincluster.training.trainer import learning_rate


def test_rate_and_progress_follow_the_schedule() -> None:
    trainer = make("rows", "train.epochs=5", "optimiser.warmup=0.3")
    seen = []

    class Watch(Diary):
        def step(self, progress: float, remaining: float | None) -> None:
            super().step(progress, remaining)
            seen.extend({group["lr"] for group in trainer.optimiser.param_groups})

    trainer.reporter = watch = Watch()
    trainer.run()
    assert seen == [learning_rate(trainer.config.optimiser, step / 15) for step in range(15)]
    assert 0 == seen[0] < seen[14] < max(seen) == pytest.approx(0.1, rel=0.05)
    assert [progress for progress, _ in watch.steps] == [step / 15 for step in range(1, 16)]
    remaining = [seconds for _, seconds in watch.steps]
    assert remaining[-1] == 0
    assert all(seconds is not None and seconds > 0 for seconds in remaining[:-1])


def test_by_minutes_a_run_ends_when_it_is_told_to(tmp_path: Path) -> None:
    diary, minutes = Diary(), 0.03
    train(images_of(KINDS["rows"]), f"train.minutes={minutes}", "train.epochs=1", folder=tmp_path, reporter=diary)
    last = diary.rows[-1]
    assert last["progress"] == 1
    assert 0.8 < last["seconds"] / (60 * minutes) < 2  # what goes before the first step is taken off
    assert len(diary.rows) > 2  # epochs went by until then
    assert all(row["progress"] < 1 for row in diary.rows[:-1])
    assert last["seconds"] > diary.rows[0]["seconds"]


# -- what a run tells ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_a_row_of_metrics_per_epoch(tmp_path: Path, method: str) -> None:
    array, labels = pictures()
    diary = Diary()
    train(images_of(array), f"method={method}", folder=tmp_path, labels=labels, reporter=diary)
    assert Run(tmp_path).read_metrics() == diary.rows
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 4
    own = {"anchored": {"commit_loss", "relabelled"}, "tcc": {"entropy", "dec_loss", "norm_ratio"}}[method]
    numbers = {
        "loss",
        "instance_loss",
        "cluster_loss",
        "confidence",
        "agreement",
        "on_batch_acc",
        "progress",
        "seconds",
    }
    for position, row in enumerate(diary.rows):
        assert row.keys() >= numbers | own | {"epoch", "steps", "histogram", "mean_assignment"}
        idle = {name for name in numbers | own if row[name] is None}
        assert idle == ({"cluster_loss", "commit_loss"} if method == "anchored" and position == 0 else set())
        assert all(math.isfinite(row[name]) for name in (numbers | own) - idle)
        assert (row["epoch"], row["steps"]) == (position, 3)
        assert row["progress"] == (position + 1) / 4
        assert sum(row["histogram"]) == 24
        assert sum(row["mean_assignment"]) == pytest.approx(1, abs=1e-4)
        assert 1 / 3 <= row["confidence"] <= 1
        assert 0 <= row["agreement"] <= 1


def test_warnings_come_only_once_the_run_has_settled() -> None:
    diary = Diary()
    # at such a temperature every assignment is uniform from beginning to end
    changes = ("method=tcc", "tcc.assignment_temperature=1e6", "train.epochs=10")
    train(images_of(KINDS["rows"]), *changes, reporter=diary)
    assert all("stay uniform" in message for _, message in diary.warnings)
    wanted = [row["epoch"] for row in diary.rows if row["progress"] > engine.SETTLED]
    assert [epoch for epoch, _ in diary.warnings] == wanted
    assert 0 < len(wanted) < 10


@pytest.mark.parametrize("method", ["anchored", "tcc", "cc"])
def test_a_run_that_diverges_ends_there_and_says_so(method: str) -> None:
    diary = Diary()
    changes = (f"method={method}", "optimiser.learning_rate=1e30", "optimiser.warmup=0")
    with pytest.raises(InputError, match="training diverged .*: lower the learning rate") as refused:
        train(images_of(KINDS["rows"]), *changes, reporter=diary)
    assert "float32" not in str(refused.value)  # which it is in
    assert len(diary.rows) <= 2


def test_without_a_run_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train(images_of(KINDS["rows"]), "train.checkpoint_minutes=0")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_holds_the_state_after_the_last_step(tmp_path: Path) -> None:
    """What `finish` decides is not in it: a run that is resumed once more decides the same again."""
    method = train(images_of(KINDS["rows"]), folder=tmp_path)
    saved, progress = load_checkpoint(tmp_path / "checkpoint")
    decided = {"online.head.weight", "online.head.bias", "labels", "sure"}
    state = {name.removeprefix("method."): tensor for name, tensor in saved.items() if name.startswith("method.")}
    assert state.keys() == method.state_dict().keys() > decided
    kept = {name: tensor for name, tensor in method.state_dict().items() if name not in decided}
    assert_equal_state({name: state[name] for name in kept}, kept)
    assert (progress["epoch"], progress["step_in_epoch"], progress["step"]) == (4, 0, 12)
