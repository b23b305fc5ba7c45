"""The trainer: its optimiser, one step against a plain one, and what a run may depend on and what not."""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from small_runs import KINDS, Diary, assert_equal_state, images_of, make, pictures, rows, train, without_seconds
from twincluster.data import batches as feed_module
from twincluster.methods import METHODS, Batch, Method
from twincluster.nn import draws
from twincluster.training import Trainer
from twincluster.training.trainer import make_optimiser


def take_steps(trainer: Trainer, count: int, rate: float = 0.05) -> None:
    """Steps without the loop around them, at a rate of their own."""
    for group in trainer.optimiser.param_groups:
        group["lr"] = rate
    while count > 0:
        for _ in trainer.feed.epoch(trainer.epoch):
            trainer.step()
            count -= 1
        trainer.epoch += 1
        trainer.epoch_on_device.fill_(trainer.epoch)


# -- optimiser -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_decay_spares_biases_batch_norm_and_prototypes(kind: str, method: str) -> None:
    trainer = make(kind, f"method={method}", "optimiser.weight_decay=0.5")
    wanted: dict[str, bool] = {}
    for path, module in trainer.method.named_modules():
        for name, weight in module.named_parameters(path, recurse=False):
            if weight.requires_grad:
                wanted[name] = isinstance(module, nn.Conv2d | nn.Linear) and name.endswith("weight")
    assert {name.rsplit(".", 1)[-1] for name, decayed in wanted.items() if not decayed} >= {"weight", "bias"}
    assert any(name.endswith("prototypes") for name in wanted) == (method == "tcc")
    groups = {id(weight): group for group in trainer.optimiser.param_groups for weight in group["params"]}
    names = dict(trainer.method.named_parameters())
    assert {name: groups[id(names[name])]["weight_decay"] > 0 for name in wanted} == wanted
    assert len(groups) == len(wanted)  # nothing else: no momentum network
    assert {group["weight_decay"] for group in trainer.optimiser.param_groups} == {0.0, 0.5}


@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_optimiser_state_exists_before_the_first_step_and_is_zero(name: str) -> None:
    trainer = make("images", f"optimiser.name={name}")
    before = copy.deepcopy(trainer.method.state_dict())
    optimiser = make_optimiser(trainer.config, trainer.method, trainer.device)
    assert_equal_state(trainer.method.state_dict(), before)
    trained = [weight for weight in trainer.method.parameters() if weight.requires_grad]
    slots = {"adam": {"step", "exp_avg", "exp_avg_sq"}, "sgd": {"momentum_buffer"}}[name]
    for weight in trained:
        assert optimiser.state[weight].keys() == slots
        assert not any(slot.any() for slot in optimiser.state[weight].values())
        assert weight.grad is not None
    assert len(optimiser.state) == len(trained)


@pytest.mark.parametrize("changes", [("optimiser.name=adam",), (), ("optimiser.momentum=0",)], ids=str)
def test_the_first_steps_are_those_of_a_new_optimiser(changes: tuple[str, ...]) -> None:
    """The state that was made early leaves no trace."""
    trainer = make("rows", *changes)
    twin = copy.deepcopy(trainer.method)
    settings = trainer.config.optimiser
    weights = [weight for weight in twin.online.parameters() if weight.requires_grad]
    decay = [settings.weight_decay if weight.dim() > 1 else 0.0 for weight in weights]
    groups = [{"params": [w], "weight_decay": d} for w, d in zip(weights, decay, strict=True)]
    if settings.name == "adam":
        plain: torch.optim.Optimizer = torch.optim.Adam(groups, lr=0.05)
    else:
        plain = torch.optim.SGD(groups, lr=0.05, momentum=settings.momentum, nesterov=settings.momentum > 0)
    generator = torch.Generator().manual_seed(0)
    for group in trainer.optimiser.param_groups:
        group["lr"] = 0.05
    for _ in range(3):
        for weight, other in zip(trainer.method.online.parameters(), twin.online.parameters(), strict=True):
            weight.grad = torch.randn(weight.shape, generator=generator)
            other.grad = weight.grad.clone()
        trainer.optimiser.step()
        plain.step()
    torch.testing.assert_close(trainer.method.state_dict(), twin.state_dict())


# -- a step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_a_step_is_views_losses_descent_and_memory(kind: str, method: str) -> None:
    trainer = make(kind, f"method={method}", "optimiser.momentum=0", "optimiser.weight_decay=0")
    twin = copy.deepcopy(trainer.method)
    take_steps(trainer, 3, rate=0.05)
    for position in range(3):
        samples = torch.split(trainer.feed.order(0), 8)[position]
        keys = draws.sample_keys(0, torch.tensor(0), samples)
        raw = torch.as_tensor(KINDS[kind][samples.numpy()])
        raw = raw if twin.online.side else twin.online.prepare(raw)  # views of rows start from what a network sees
        views = trainer._view(raw, keys, 0), trainer._view(raw, keys, 1)
        outcome = twin.losses(views, samples, keys)
        weights = [weight for weight in twin.parameters() if weight.requires_grad]
        slopes = torch.autograd.grad(outcome.loss, weights, allow_unused=True)
        with torch.no_grad():
            for weight, slope in zip(weights, slopes, strict=True):
                weight -= 0.05 * (torch.zeros_like(weight) if slope is None else slope)
            twin.remember(outcome.memory)
    torch.testing.assert_close(trainer.method.state_dict(), twin.state_dict(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_view_depends_on_the_sample_and_the_stream_but_not_on_the_batch(kind: str) -> None:
    trainer = make(kind)
    raw, samples = torch.as_tensor(KINDS[kind]), torch.arange(len(KINDS[kind]))

    def view(chosen: Tensor, stream: int, epoch: int = 0) -> Tensor:
        return trainer._view(raw[chosen], draws.sample_keys(0, torch.tensor(epoch), chosen), stream)

    whole = view(samples, 0)
    torch.testing.assert_close(view(samples[[20, 3, 7]], 0), whole[[20, 3, 7]])
    others = (view(samples, 1), view(samples, 0, epoch=1), whole.roll(1, 0))
    for other in others:
        assert ((whole - other).abs().flatten(1).amax(1) > 1e-3).all()


@pytest.mark.parametrize("kind", KINDS)
def test_plain_images_are_standardised(kind: str) -> None:
    trainer = make(kind)
    samples = torch.arange(len(KINDS[kind]))
    batch = trainer._batch(samples, torch.as_tensor(trainer.feed._pixels), samples)
    by_channel = batch.plain().transpose(0, 1).flatten(1)
    torch.testing.assert_close(by_channel.mean(1), torch.zeros(len(by_channel)), atol=1e-4, rtol=0)
    torch.testing.assert_close(by_channel.std(1, correction=0), torch.ones(len(by_channel)), atol=1e-3, rtol=0)


def test_all_batches_walk_all_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, walked = make("rows", "method=tcc", "train.epochs=2"), []

    def look_back(self: Method, epoch: int, batches: Any, optimiser: torch.optim.Optimizer) -> dict[str, float]:
        kept: list[Batch] = list(batches())
        walked.append(torch.cat([batch.samples for batch in kept]).tolist())
        assert all(torch.equal(batch.keys, draws.sample_keys(0, torch.tensor(epoch), batch.samples)) for batch in kept)
        assert not torch.equal(kept[0].plain(), kept[1].plain())  # a batch outlives the buffers it came in
        return {"looked_back": 1.0}

    monkeypatch.setattr(METHODS["tcc"], "after_epoch", look_back)
    trainer.run()
    assert walked == [trainer.feed.order(epoch).tolist() for epoch in range(2)]
    assert trainer.feed.steps_per_epoch == 3  # of 8 of the 28 samples


# -- what a run may depend on ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [("method=anchored",), ("method=tcc", "optimiser.name=adam")], ids=str)
def test_twenty_steps_from_one_seed_repeat_bit_for_bit(changes: tuple[str, ...]) -> None:
    first = make("images", *changes)
    torch.manual_seed(99)  # the global generator is nobody's business
    state = torch.get_rng_state()
    second = make("images", *changes)
    assert torch.equal(torch.get_rng_state(), state)
    for trainer in (first, second):
        take_steps(trainer, 20)
    assert_equal_state(first.state(), second.state())
    third = make("images", *changes, "seed=1")
    take_steps(third, 20)
    assert not torch.equal(third.method.online.head.weight, first.method.online.head.weight)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_does_not_depend_on_where_the_data_lies(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    images, diaries, methods = images_of(KINDS[kind]), (Diary(), Diary()), []
    for diary, resident in zip(diaries, (True, False), strict=True):
        monkeypatch.setattr(feed_module, "_fits", lambda images, device, resident=resident: resident)
        methods.append(train(images, reporter=diary))
    assert_equal_state(methods[0].state_dict(), methods[1].state_dict())
    assert without_seconds(diaries[0].rows) == without_seconds(diaries[1].rows)


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_labels_are_recorded_against_and_never_trained_on(method: str) -> None:
    images, (_, labels) = images_of(KINDS["images"]), pictures()
    one_known = np.where(np.arange(len(labels)) == 3, 0, -1)
    diaries, methods = [], []
    for given in (None, labels, np.arange(len(labels)) // 10, one_known):
        diaries.append(Diary())
        methods.append(train(images, f"method={method}", labels=given, reporter=diaries[-1]))
    for other in methods[1:]:
        assert_equal_state(other.state_dict(), methods[0].state_dict())
    found = [[row.pop("on_batch_acc", "absent") for row in diary.rows] for diary in diaries]
    assert found[0] == ["absent"] * 4
    assert all(1 / 3 <= acc <= 1 for acc in found[1])
    assert found[1] != found[2]
    assert set(found[3]) <= {None, 1.0}  # one label is always matched, none gives nothing to say
    assert None in found[3]
    assert all(without_seconds(diary.rows) == without_seconds(diaries[0].rows) for diary in diaries)


@pytest.mark.parametrize("kind", KINDS)
def test_unreadable_rows_have_no_influence(kind: str) -> None:
    clean = KINDS[kind]
    usable = np.flatnonzero(np.arange(2 * len(clean)) % 2)
    spoilt = np.zeros((2 * len(clean), *clean.shape[1:]), dtype=clean.dtype)
    spoilt[usable] = clean
    images = images_of(spoilt, usable)
    if images.is_rows:
        images.pixels[::2] = np.nan
    assert_equal_state(train(images).state_dict(), train(images_of(clean)).state_dict())


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains(method: str) -> None:
    diary = Diary()
    # at the rate of the others the reconstruction of one diverges, and the critic of the other
    rate = "0.001" if method in ("dec", "dccs") else "0.1"
    changes = (f"method={method}", "train.epochs=2", f"optimiser.learning_rate={rate}")
    trained = train(images_of(KINDS["rows"]), *changes, reporter=diary)
    assert not trained.training
    assert all(tensor.isfinite().all() for tensor in trained.state_dict().values())
    assert [row["epoch"] for row in diary.rows] == [0, 1]
    assert math.isfinite(diary.rows[1]["loss"])
    gathers = method in ("deepcluster_v2", "mmdc", "jule")  # which learn nothing from rows in the first epoch
    assert diary.rows[0]["loss"] is None if gathers else math.isfinite(diary.rows[0]["loss"])


def test_three_clouds_are_found() -> None:
    array = rows(90)
    method = train(images_of(array), "train.epochs=30", "train.batch_size=30")
    clusters = method.online.log_assign(method.online.prepare(torch.as_tensor(array))).argmax(1)
    assert len(set(zip(clusters.tolist(), (np.arange(90) % 3).tolist(), strict=True))) == 3
