"""What holds for every method: a run that dies goes on bit for bit, and its model predicts from a file.

Then what the contract gives: a batch in parts with the same loss. What it asks of a step on a GPU is in
test_pretend_cuda.py. The last test, of clusters of digits, is for `make stress`.
"""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from small_peers import OWN_FILES, small
from small_runs import (
    KINDS,
    AtCall,
    Diary,
    assert_equal_state,
    images_of,
    make,
    pictures,
    rows,
    small_config,
    train,
    without_seconds,
)
from twincluster.clustering import score
from twincluster.config import load_recipe, make_config, parse_overrides, recipe_names
from twincluster.fit import describe
from twincluster.methods import METHODS, REFINERS
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.resolve import data_shape, resolve
from twincluster.runs import Run
from twincluster.training import Trainer


class Death(Exception):  # noqa: N818  (nothing went wrong)
    """Stands for the end of the process."""


def die() -> None:
    raise Death


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_run_that_dies_goes_on_bit_for_bit_and_predicts(name: str, tmp_path: Path) -> None:
    images = images_of(KINDS["rows"])
    changes = (*small(name), "train.epochs=3", "train.checkpoint_minutes=0")
    whole, cut, diary = Run(tmp_path / "whole"), Run(tmp_path / "cut"), Diary()
    method = train(images, *changes, folder=whole.folder, reporter=diary)
    with pytest.raises(Death):
        train(images, *changes, folder=cut.folder, reporter=AtCall(6, die))  # the first step of the second epoch
    assert_equal_state(train(images, *changes, folder=cut.folder, resume=True).state_dict(), method.state_dict())
    assert without_seconds(cut.read_metrics()) == without_seconds(whole.read_metrics())
    assert all(math.isfinite(row["loss"]) for row in diary.rows[1:])  # the first may be there to look around

    config = small_config(images, *changes)
    whole.write_config(config, data_shape(config, images), describe(images))
    whole.save_model(method.online)
    found, wanted = (
        inference.predict(network, images.pixels, images.usable) for network in (load_network(whole), method.online)
    )
    assert torch.equal(found, wanted)
    torch.testing.assert_close(found.sum(1), torch.ones(len(images.usable)))
    assert found.std() > 1e-3  # it says something of the images


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("count", [2, 3])
def test_few_rows_are_enough(name: str, count: int) -> None:
    """Also for batch-norm, which needs two, where keys cross it in halves."""
    changes = (*small(name), "n_clusters=2", "tcc.shuffle_keys=true", "train.epochs=2")
    images = images_of(rows(count))
    method = train(images, *changes)
    assert inference.predict(method.online, images.pixels, images.usable).isfinite().all()


@pytest.mark.parametrize("name", OWN_FILES)
def test_a_batch_in_parts_has_the_same_loss(name: str) -> None:
    kept = []
    for parts in (1, 3):
        trainer = make("rows", *small(name), f"train.parts={parts}")
        trainer.method.schedule(1, 0.6)
        next(trainer.feed.epoch(0))
        trainer.step()
        kept.append([trainer.record.totals["loss"], *trainer.method.buffers()])
    torch.testing.assert_close(*kept)


@pytest.mark.parametrize("name", OWN_FILES)
def test_some_step_reaches_each_weight(name: str) -> None:
    trainer, reached = make("images", *small(name)), set()
    for epoch in range(2):
        trainer.method.schedule(epoch, 0.6)
        for _ in trainer.feed.epoch(epoch):
            trainer.step()
            reached |= {
                part
                for part, weight in trainer.method.named_parameters()
                if weight.grad is not None and weight.grad.any()
            }
        trainer.method.after_epoch(epoch, trainer._all_batches, trainer.optimiser)
    assert reached == {part for part, weight in trainer.method.named_parameters() if weight.requires_grad}
    assert not any(part.startswith("momentum.") for part in reached)


@pytest.mark.parametrize("name", OWN_FILES)
def test_every_method_has_a_recipe_with_published_numbers(name: str) -> None:
    recipe = load_recipe(f"{name.replace('_', '-')}-cifar10")
    config = resolve(make_config(recipe.settings), images_of(pictures(400, 32)[0]))
    assert config.method == name
    assert set(recipe.settings["own"]) <= set(config.groups["own"])  # the method knows them all
    assert recipe.published["acc"] > 0.2  # chance is .1
    assert "table" in recipe.published


def test_recipes_for_other_sets_have_settings_that_their_method_knows() -> None:
    recipes = [load_recipe(name) for name in recipe_names() if not name.endswith("-cifar10")]
    others = [recipe for recipe in recipes if "own" in recipe.settings]
    assert len(others) > 5
    for recipe in others:
        side = recipe.settings["train"]["image_size"]
        config = resolve(make_config(recipe.settings), images_of(pictures(400, side)[0]))
        assert set(recipe.settings["own"]) <= set(config.groups["own"])
        assert "table" in recipe.published


def test_every_method_says_what_it_is_in_a_line() -> None:
    for method in METHODS.values():
        assert (method.__doc__ or "").splitlines()[0].endswith((".", ")"))


# -- longer: make stress ---------------------------------------------------------------------------------------------

ADAM = ("optimiser.name=adam", "optimiser.learning_rate=0.001", "optimiser.weight_decay=0.0")
FEW_STEPS = {  # settings for 280 steps
    "moco": ("own.ema=0.99",),
    "mice": ("optimiser.learning_rate=1.0", "own.ema=0.99"),
    "propos": ("own.ema=0.99", "own.hidden=512"),
    "scan": ("own.cluster_start=0.4", "own.threshold=0.9"),
    "cdc": ("own.hidden=512", "own.cluster_start=0.8"),
    "iic": (
        *ADAM,
        "optimiser.learning_rate=0.002",
        "optimiser.schedule=constant",
        "train.batch_size=32",
        "own.repeats=2",
    ),
    "pica": ADAM,
    "dec": ADAM,
    "dac": ADAM,
    "dccm": ADAM,
    "adc": ADAM,
    "gatcluster": (*ADAM, "optimiser.schedule=constant", "train.batch_size=32"),
    "dccs": (
        *(*ADAM, "optimiser.learning_rate=0.0003", "optimiser.schedule=constant", "train.batch_size=32"),
        *("own.n_style=10", "own.augmentation_weight=0.2", "own.critic_pace=20", "own.hidden=256"),
        "train.epochs=80",  # after 40 it is up to the seed whether all clusters are in use
    ),
    "jule": ("own.merge_epochs=5",),
    "dcgan": ("optimiser.name=adam", "optimiser.learning_rate=0.0002"),
    "pcl": ("own.ema=0.99", "own.finest=2.0"),
    "sccl": ADAM,
    "vade": ADAM,
    "spice": ("own.ema=0.99", "own.cluster_start=0.6"),
    "scl": ("own.ema=0.99",),
    "dhog": (*ADAM, "optimiser.learning_rate=0.002", "optimiser.schedule=constant", "train.batch_size=32"),
    "ddc": ADAM,
}


LEAVES_EMPTY = {"dhog"}  # a cluster of ten, as docs/peers.md says


@pytest.mark.stress
@pytest.mark.parametrize("name", [name for name in OWN_FILES if name not in REFINERS])
def test_clusters_of_digits_are_better_than_chance(
    name: str, digits: tuple[NDArray[np.uint8], NDArray[np.int64]]
) -> None:
    images = images_of(digits[0])
    changes = parse_overrides([f"method={name}", "train.epochs=20", "train.device=cpu", *FEW_STEPS.get(name, ())])
    config = resolve(make_config(changes, make_config(load_recipe("digits").settings)), images)
    method = Trainer(config, images).run()
    clusters = inference.predict(method.online, images.pixels, images.usable).argmax(1).numpy()
    assert score(digits[1], clusters).acc > 0.4  # chance is .1
    sizes = np.bincount(clusters, minlength=10) / len(clusters)
    assert sizes.min() > 0.005 or name in LEAVES_EMPTY
    assert sizes.max() < 0.4
