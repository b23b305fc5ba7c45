"""Rows as networks see them: neighbours as second views, all of which draws reach, components, and runs that repeat."""

from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import images_of, make, pictures, rows, small_config, train
from twincluster.estimator import TwinContrastClustering
from twincluster.nn import draws
from twincluster.runs import Run
from twincluster.training import Trainer, row_views
from twincluster.training.row_views import feed_and_shown


def test_the_second_view_is_of_each_neighbour_at_times() -> None:
    shown, samples = make("rows", "augment.neighbours=3").shown, torch.tensor([4, 9])
    assert shown.nearest is not None
    own, seen = shown.pool[samples], [set(), set()]
    for epoch in range(60):
        keys = draws.sample_keys(0, torch.tensor(epoch), samples)
        torch.testing.assert_close(shown.view(own, samples, keys, 0), own)
        for row, start in enumerate(shown.view(own, samples, keys, 1)):
            seen[row].add(int((shown.pool - start).abs().sum(1).argmin()))
    assert seen == [set(shown.nearest[row].tolist()) for row in samples.tolist()]


def test_images_and_a_count_of_zero_have_no_neighbours() -> None:
    assert make("images", "augment.neighbours=5").shown.nearest is None
    assert make("rows").shown.nearest is None


@pytest.mark.parametrize("in_memory", [0, row_views.IN_MEMORY])
def test_neighbours_are_among_the_rows_in_use(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_views, "IN_MEMORY", in_memory)
    usable, data = np.arange(3, 28, 2), rows()
    images = images_of(data, usable)
    trainer = Trainer(small_config(images, "augment.neighbours=2"), images)
    assert trainer.shown.nearest is not None
    assert int(trainer.shown.nearest.max()) < len(usable)
    expected = trainer.method.online.prepare(torch.from_numpy(data[usable]))
    np.testing.assert_allclose(trainer.shown.pool, expected, atol=1e-6)


def test_of_many_rows_those_of_the_pool_alone_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make("rows", "augment.neighbours=1").shown
    monkeypatch.setattr(row_views, "pool_step", lambda n: 5)
    monkeypatch.setattr(row_views, "CHUNK", 7)
    part = make("rows", "augment.neighbours=1").shown
    torch.testing.assert_close(part.pool, whole.pool[::5])
    unit = torch.nn.functional.normalize(whole.pool, dim=1)
    cosine = (unit @ unit.T).fill_diagonal_(-1)
    assert part.nearest is not None
    assert torch.equal(part.nearest[:, 0], cosine[:, ::5].argmax(1))


@pytest.mark.parametrize("in_memory", [0, row_views.IN_MEMORY])
def test_a_step_sees_rows_as_the_network_prepares_them(in_memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_views, "IN_MEMORY", in_memory)
    trainer = make("rows", "train.components=3", "augment.neighbours=2", "augment.noise=0", "augment.dropout=0")
    next(trainer.feed.epoch(0))
    samples = trainer.feed.samples
    batch = trainer._batch(samples, trainer.feed.images, draws.sample_keys(0, torch.tensor(0), samples))
    prepared = trainer.method.online.prepare(torch.from_numpy(np.array(trainer.images.pixels)))
    torch.testing.assert_close(batch.plain(), prepared[samples])
    torch.testing.assert_close(batch.view(0), prepared[samples])
    assert (
        torch.cdist(batch.view(1), prepared).amin(1) < 1e-4
    ).all()  # rows of neighbours, prepared once and not twice


def test_a_resumed_run_goes_on_with_the_directions_it_had(tmp_path: Path) -> None:
    """Another machine may find the same directions with another sign."""
    settings = ("train.components=3", "augment.neighbours=2", "train.epochs=1")
    images, run = images_of(rows()), Run(tmp_path)
    first = Trainer(small_config(images, *settings), images, run=run)
    rotation = first.method.online.rotation
    first.run()
    again = Trainer(small_config(images, *settings), images, run=run)
    for network in (again.method.online, again.method.momentum):
        network.rotation.neg_()
    again.feed, again.shown = feed_and_shown(again.config, again.images, again.method.online)
    again.run(resume=True)
    torch.testing.assert_close(again.method.online.rotation, rotation, rtol=0, atol=0)
    expected = again.method.online.prepare(torch.from_numpy(np.array(again.images.pixels)))
    torch.testing.assert_close(again.shown.pool, expected)
    assert next(again.feed.epoch(0)) is None
    torch.testing.assert_close(again.feed.images, expected[again.feed.samples])


def test_prepared_rows_are_in_memory_once() -> None:
    """They were mapped from a file before; where they are many, a second copy is what does not fit."""
    trainer = make("rows")
    held, given = trainer.feed._resident, trainer.feed._pixels
    assert held is not None
    assert np.shares_memory(held.numpy(), given)
    assert not np.shares_memory(given, trainer.images.pixels)


def test_many_rows_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be all that memory holds, or more than that; a run on them is the same."""
    settings = ("train.epochs=2", "augment.neighbours=2")
    expected = train(images_of(rows()), *settings).state_dict()
    monkeypatch.setattr(row_views, "IN_MEMORY", rows().nbytes - 1)
    trainer = make("rows", *settings)
    assert trainer.feed._resident is None
    assert np.shares_memory(trainer.feed._pixels, trainer.images.pixels)
    found = trainer.run().state_dict()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("kind", ["images", "rows"])
def test_a_resumed_run_keeps_the_feed_it_has(kind: str, tmp_path: Path) -> None:
    """On a GPU a second one would find the first in its room, and stream what fits there. Of rows the neighbours would
    be looked for once more."""
    images, run = images_of(pictures()[0] if kind == "images" else rows()), Run(tmp_path)
    config = small_config(images, "train.epochs=1", "train.components=3", "augment.neighbours=2")
    Trainer(config, images, run=run).run()
    again = Trainer(config, images, run=run)
    feed, shown = again.feed, again.shown
    again.run(resume=True)
    assert (again.feed, again.shown) == (feed, shown)


def test_a_run_with_neighbours_repeats_and_differs_from_one_without() -> None:
    one, two = (train(images_of(rows()), "augment.neighbours=3").online.state_dict() for _ in range(2))
    without = train(images_of(rows())).online.state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert any(not torch.equal(one[name], without[name]) for name in one)


@pytest.mark.parametrize(("components", "width"), [(3, 3), (50, 5)])
def test_components_are_those_of_scikit_learn(components: int, width: int) -> None:
    from sklearn.decomposition import PCA

    data = rows(40)
    method = train(images_of(data), f"train.components={components}", "train.epochs=1")
    found = method.online.prepare(torch.from_numpy(data)).double().numpy()
    assert found.shape == (40, width)
    assert (found**2).mean() == pytest.approx(1, rel=1e-4)
    expected = PCA(width).fit_transform((data - data.mean(0)) / data.std(0))
    expected /= np.sqrt((expected**2).mean())
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-4)


def test_a_saved_network_keeps_its_components(tmp_path: Path) -> None:
    data = rows(40)
    settings = {"train.components": 3, "train.batch_size": 8, "train.backbone": "mlp_signed"}
    model = TwinContrastClustering(3, settings=settings, epochs=2, device="cpu", random_state=0).fit(data)
    model.save(tmp_path / "run")
    again = TwinContrastClustering.load(tmp_path / "run", device="cpu")
    np.testing.assert_allclose(again.transform(data), model.transform(data), rtol=1e-6)
    assert (model.transform(data) < 0).any()  # signed
