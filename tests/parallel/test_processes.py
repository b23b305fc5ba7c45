"""Several processes: real ones, started by torchrun on the CPU, beside one process that does the same alone.

Run as a script, this file is what the processes do: every case, in the same order, each leaving its tensors behind.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from several_processes import COUNT, assert_near, end_of, torchrun
from torch import Tensor

from small_peers import SMALL_OWN, small
from small_runs import Diary, images_of, pictures, rows, small_config
from twincluster import resolve as derive
from twincluster.cli import app as cli
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.methods import Anchored
from twincluster.parallel import launch
from twincluster.training import Trainer
from twincluster.training import trainer as schedule

STEPS = 4
CASES: dict[str, tuple[str, ...]] = {  # 33 samples are 16 and 17
    "tcc": ("method=tcc", "train.batch_size=33"),
    "anchored": ("method=anchored", "train.batch_size=33"),
    "byol": ("method=anchored", "train.batch_size=33", "anchored.instance=byol", "optimiser.name=adam"),
    "no rows for one of them": ("method=tcc", "train.batch_size=2", "tcc.shuffle_keys=true"),
}
PEERS: dict[str, tuple[str, ...]] = {  # exactly alone: in float32 the rounding of some of them is larger than FAR
    **{name: (*small(name), "train.batch_size=33", "own.queue_size=99") for name in ("moco", "swav", "mice")},
    **{name: (*small(name), "train.batch_size=33") for name in ("cc", "propos", "idfd", "scan", "ae", "dae", "vae")},
    "dccs": (*small("dccs"), "train.batch_size=33"),
    "gatcluster steps": (*small("gatcluster"), "train.batch_size=33"),
}
BETWEEN_EPOCHS: dict[str, tuple[str, ...]] = {  # whole runs of methods that do much there
    name: (*(small(name) if name in SMALL_OWN else (f"method={name}",)), "train.epochs=3", "train.batch_size=9")
    for name in ("tcc-without-subsetting", "deepcluster_v2", "dec", "cdc", "adc", "gatcluster", "mmdc", "jule")
}
BETWEEN_EPOCHS["adc"] += ("optimiser.learning_rate=0.001",)  # at .1 its rows grow, and their rounding with them
BETWEEN_EPOCHS["gatcluster"] += ("optimiser.learning_rate=0.01",)
FAR = 1e-5


# -- what the processes do -------------------------------------------------------------------------------------------


def trainer_of(case: str, *, exact: bool) -> Trainer:
    """On digits. Exactly means in float64: there, what differs is what was done, not how it was rounded."""
    from sklearn.datasets import load_digits

    images = images_of(np.round(load_digits().images[:300] * (255 / 16)).astype(np.uint8))
    queues = ("tcc.cluster_queue=20", "tcc.instance_queue=99", "anchored.instance_queue=99")
    config = small_config(images, "train.backbone=small", "n_clusters=10", *queues, *(CASES | PEERS)[case])
    trainer = Trainer(config, images)
    if exact:
        trainer.method.double()
        for name, part in trainer.method.named_modules():
            if name in ("queue", "predictor") and config.method == "anchored":
                part.float()  # the default method casts what comes to them
        if isinstance(trainer.method, Anchored):  # and to these
            for name in ("prototypes", "sums"):
                setattr(trainer.method, name, getattr(trainer.method, name).float())
        for weight, slots in trainer.optimiser.state.items():
            slots.update({name: slot.to(weight.dtype) for name, slot in slots.items()})
        view, prepare = trainer.view, trainer.method.online.prepare
        trainer.view = lambda *arguments: view(*arguments).double()
        trainer.method.online.prepare = lambda raw: prepare(raw).double()
    return trainer


def steps_of(trainer: Trainer, count: int) -> dict[str, Tensor]:
    """Losses and gradients of some steps, and all state after them."""
    kept: dict[str, Tensor] = {}
    for group in trainer.optimiser.param_groups:
        group["lr"] = 0.01
    losses = trainer.losses
    for step, _ in zip(range(count), trainer.feed.epoch(0), strict=False):

        def watched(*arguments: Any, step: int = step) -> Any:
            outcome = losses(*arguments)
            kept[f"loss.{step}"] = outcome.loss.detach().clone()
            return outcome

        trainer.losses = watched
        trainer.step()
        for name, weight in trainer.method.named_parameters():
            if weight.requires_grad and weight.grad is not None:
                kept[f"gradient.{step}.{name}"] = weight.grad.clone()
    return kept | {name: tensor.clone() for name, tensor in trainer.state().items()}


def whole_run(*changes: str) -> tuple[Trainer, Diary]:
    diary, images = Diary(), images_of(rows(60))
    trainer = Trainer(small_config(images, *changes), images, reporter=diary)
    trainer.run()
    return trainer, diary


def free_folder(here: Path) -> Path:
    """Where `fit` without --out would write. Only the first process sees that the name is taken."""
    (here / "runs" / "photos" if launch.first() else here).mkdir(parents=True)
    before = Path.cwd()
    os.chdir(here)
    try:
        with cli._reserved(None, Path("runs/photos"), make_config({"train": {"device": "cpu"}})) as folder:
            return folder
    finally:
        os.chdir(before)


class Hurried:
    """A clock that runs fast."""

    @staticmethod
    def monotonic() -> float:
        return 3 * time.monotonic()


def work(folder: Path) -> None:
    """Everything, as one of several processes."""
    rank = int(os.environ["RANK"])

    def keep(name: str, tensors: dict[str, Tensor]) -> None:
        contiguous = {key: tensor.contiguous().clone() for key, tensor in tensors.items()}
        save_file(contiguous, folder / f"{name}.{rank}.safetensors")

    for case in CASES | PEERS:
        keep(case, steps_of(trainer_of(case, exact=True), STEPS))
    for case in CASES:
        keep(f"{case} in float32", steps_of(trainer_of(case, exact=False), 1))
    told: dict[str, Any] = {}
    told["folder"] = str(free_folder(folder / f"seen by {rank}"))
    for case, changes in BETWEEN_EPOCHS.items():
        trainer, diary = whole_run(*changes)
        told[case] = diary.rows
        keep(case, trainer.method.state_dict())
    if rank == 1:
        schedule.time = Hurried  # type: ignore[assignment]
    trainer, diary = whole_run("train.minutes=0.02", "train.checkpoint_minutes=0.001")
    told["minutes"] = [trainer.clock.step, diary.rows]
    schedule.time = time  # type: ignore[assignment]
    rows_of_two = rows(40)
    model = TwinContrastClustering(3, epochs=2, random_state=0).fit(rows_of_two)
    told["estimator"] = [model.labels_.tolist(), model.n_iter_, model.predict(rows_of_two).tolist()]
    told["seed"] = TwinContrastClustering(3, epochs=1).fit(rows_of_two).config_.seed
    derive.left_differs_from_right = lambda *_: rank == 1
    told["flip"] = small_config(images_of(pictures()[0]), "augment.flip=-1").augment.flip
    trainer = trainer_of("tcc", exact=False)
    trainer._save(0)
    with torch.no_grad():
        next(trainer.method.parameters())[0] += 0.01 * rank
    try:
        trainer._save(0)
    except InputError as error:
        told["drift"] = str(error)
    for what, seen, grey in (("other data", rows(28 + rank), 0), ("other settings", rows(28), rank)):
        other = images_of(seen)
        try:
            Trainer(small_config(other, "train.batch_size=4", f"augment.grey={grey}"), other).run()
        except InputError as error:
            told[what] = str(error)
    (folder / f"told.{rank}.json").write_text(json.dumps(told))
    os._exit(0)


# -- starting them ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the processes left behind."""
    folder = tmp_path_factory.mktemp("processes")
    status, log = end_of(torchrun(__file__, folder, folder=folder), folder)
    assert status == 0, log
    return folder


def both(done: Path, name: str) -> Iterator[dict[str, Tensor]]:
    for rank in range(COUNT):
        yield load_file(done / f"{name}.{rank}.safetensors")


def told(done: Path, name: str) -> list[Any]:
    return [json.loads((done / f"told.{rank}.json").read_text())[name] for rank in range(COUNT)]


# -- the same as one -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES | PEERS)
def test_losses_gradients_queues_and_prototypes_are_those_of_one_process(done: Path, case: str) -> None:
    alone = steps_of(trainer_of(case, exact=True), STEPS)
    assert {name.split(".")[0] for name in alone} == {"loss", "gradient", "method", "optimiser", "record"}
    first_layer = next(name for name in alone if name.startswith(f"gradient.{STEPS - 1}.online.backbone."))
    assert alone[first_layer].any()
    for found in both(done, case):
        assert_near(found, alone, FAR)


@pytest.mark.parametrize("case", [case for case in CASES if case != "byol"])  # Adam makes much of a rounded zero
def test_the_first_step_in_float32_is_that_of_one_process(done: Path, case: str) -> None:
    alone = steps_of(trainer_of(case, exact=False), 1)
    for found in both(done, f"{case} in float32"):
        assert_near(found, alone, FAR)


def test_all_processes_hold_the_same_bit_for_bit(done: Path) -> None:
    for case in CASES:
        first, second = both(done, f"{case} in float32")
        assert [name for name in first if not torch.equal(first[name], second[name])] == []


@pytest.mark.parametrize("case", BETWEEN_EPOCHS)
def test_what_is_done_between_epochs_is_the_same(done: Path, case: str) -> None:
    trainer, diary = whole_run(*BETWEEN_EPOCHS[case])
    for found, told_rows in zip(both(done, case), told(done, case), strict=True):
        assert_near(found, trainer.method.state_dict(), 1e-3)
        for row, wanted in zip(told_rows, diary.rows, strict=True):
            names = [name for name, value in wanted.items() if isinstance(value, float) and name != "seconds"]
            assert {name: row[name] for name in names} == pytest.approx(
                {name: wanted[name] for name in names}, abs=1e-4
            )


# -- as one ----------------------------------------------------------------------------------------------------------


def test_the_clock_of_the_first_decides(done: Path) -> None:
    """The other's ran three times as fast, and they still left the loop at the same step."""
    (steps, first), (others, second) = told(done, "minutes")
    assert steps == others
    assert first == second
    assert first[-1]["progress"] == pytest.approx(1, abs=0.05)  # the last step may end just before the time does


def test_without_a_name_all_take_the_folder_that_the_first_finds_free(done: Path) -> None:
    """Each was in a folder of its own, and `runs/photos` was taken in that of the first."""
    assert told(done, "folder") == [str(Path("runs/photos-2"))] * COUNT


def test_an_estimator_is_fitted_by_all(done: Path) -> None:
    first, second = told(done, "estimator")
    assert first == second
    assert first[1] == 2
    assert len(set(first[0])) > 1


def test_without_a_seed_all_take_that_of_the_first(done: Path) -> None:
    first, second = told(done, "seed")
    assert first == second


def test_the_first_decides_whether_left_differs_from_right(done: Path) -> None:
    """The other one found that it does."""
    assert told(done, "flip") == [0.5] * COUNT


def test_a_process_that_went_astray_is_noticed(done: Path) -> None:
    assert all("have different weights" in message for message in told(done, "drift"))


@pytest.mark.parametrize("what", ["other data", "other settings"])
def test_others_are_refused_by_all(done: Path, what: str) -> None:
    """At once, and not when the first finds that the second is gone."""
    assert all(message.startswith("process 1 has other data or settings than") for message in told(done, what))


if __name__ == "__main__":
    work(Path(sys.argv[1]))
