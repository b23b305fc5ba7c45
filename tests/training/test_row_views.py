"""Rows as networks see them: neighbours as second views, all of which draws reach, components, and runs that repeat."""

from pathlib import Path

import numpy as np
import pytest
import torch

from small_runs import images_of, make, pictures, rows, small_config, train
from twincluster import TwinContrastClustering, draws
from twincluster.engine import Trainer
from twincluster.results import Run
from twincluster.training.row_views import Neighbours, as_seen, feed_and_neighbours


def test_the_second_view_is_of_each_neighbour_at_times() -> None:
    trainer = make("rows", "augment.neighbours=3")
    neighbours, samples = trainer.neighbours, torch.tensor([4, 9])
    assert neighbours.nearest is not None
    own, seen = neighbours.rows[samples], [set(), set()]
    for epoch in range(60):
        keys = draws.sample_keys(0, torch.tensor(epoch), samples)
        torch.testing.assert_close(neighbours.shown(own, samples, keys, 0), own)
        for row, shown in enumerate(neighbours.shown(own, samples, keys, 1)):
            seen[row].add(int((neighbours.rows - shown).abs().sum(1).argmin()))
    assert seen == [set(neighbours.nearest[row].tolist()) for row in samples.tolist()]


def test_images_and_a_count_of_zero_have_no_neighbours() -> None:
    network = make("images").method.online
    assert Neighbours(images_of(pictures()[0]), 5, network).nearest is None
    assert make("rows").neighbours.nearest is None


def test_positions_are_among_the_rows_in_use() -> None:
    usable = np.arange(3, 28, 2)
    data = rows()
    method = train(images_of(data, usable), "augment.neighbours=2", "train.epochs=1")
    found = Neighbours(as_seen(images_of(data, usable), method.online), 2, method.online)
    assert found.nearest is not None
    assert int(found.nearest.max()) < len(usable)
    np.testing.assert_allclose(found.rows, method.online.prepare(torch.from_numpy(data[usable])), atol=1e-6)


def test_a_step_sees_rows_as_the_network_prepares_them() -> None:
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
    again.feed, again.neighbours = feed_and_neighbours(again.config, again.images, again.method.online)
    again.run(resume=True)
    torch.testing.assert_close(again.method.online.rotation, rotation, rtol=0, atol=0)
    assert again.neighbours.nearest is not None
    expected = again.method.online.prepare(torch.from_numpy(np.array(again.images.pixels)))
    torch.testing.assert_close(again.neighbours.rows, expected)
    assert next(again.feed.epoch(0)) is None
    torch.testing.assert_close(again.feed.images, expected[again.feed.samples])


def test_prepared_rows_are_in_memory_once() -> None:
    """They were mapped from a file before; where they are many, a second copy is what does not fit."""
    trainer = make("rows")
    held, given = trainer.feed._resident, trainer.feed._pixels
    assert held is not None
    assert np.shares_memory(held.numpy(), given)
    assert not np.shares_memory(given, trainer.images.pixels)


def test_a_resumed_run_on_images_keeps_the_feed_it_has(tmp_path: Path) -> None:
    """On a GPU a second one would find the first in its room, and stream what fits there."""
    images, run = images_of(pictures()[0]), Run(tmp_path)
    Trainer(config := small_config(images, "train.epochs=1"), images, run=run).run()
    again = Trainer(config, images, run=run)
    feed = again.feed
    again.run(resume=True)
    assert again.feed is feed


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
