"""The ends of what defaults have to hold for: 500 images, 1,000 clusters, and nearly as many clusters as images."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from small_runs import Diary, images_of
from twincluster.clustering import score
from twincluster.config import Config, load_recipe, make_config
from twincluster.data import from_array, open_source
from twincluster.fit import Fitted, fit
from twincluster.resolve import resolve
from twincluster.training import Trainer

N = 500
COLOURS = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200], [200, 200, 40]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """500 small files, oblong, in four colours."""
    place, random = tmp_path_factory.mktemp("pictures"), np.random.default_rng(0)
    for number in range(N):
        pixels = COLOURS[number % 4] + random.integers(-40, 40, (8, 10, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number:03}.png")
    return place


def fitted(folder: Path, out: Path, **settings: object) -> Fitted:
    config = make_config(load_recipe("default").settings)
    short = {"epochs": 2, "batch_size": 0, "device": "cpu"}
    listing = open_source(folder)
    config = make_config({"train": short, "anchored": {"hidden": 32, "n_features": 16}, **settings}, config)
    return fit(listing, config, out)


def planted(n: int, n_clusters: int, d: int = 24) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(n_clusters, d))
    labels = np.arange(n) % n_clusters
    return (centres[labels] + 0.3 * random.normal(size=(n, d))).astype(np.float32), labels


def for_rows(n_clusters: int, **settings: object) -> Config:
    config = make_config(load_recipe("rows").settings)
    return make_config({"n_clusters": n_clusters, "train": {"epochs": 2, "device": "cpu"}, **settings}, config)


def test_500_images_from_files_to_a_run_folder(folder: Path, tmp_path: Path) -> None:
    done = fitted(folder, tmp_path / "run", n_clusters=4)
    assert done.config.train.batch_size == 128
    assert 256 <= done.config.groups["anchored"]["instance_queue"] <= N
    assert len(done.assignments.clusters) == N
    assert (done.assignments.clusters >= 0).all()
    assert np.isfinite(done.assignments.confidence).all()
    assert score(np.arange(N) % 4, done.assignments.clusters).acc > 0.95


def test_500_images_of_an_unknown_number_of_kinds(folder: Path, tmp_path: Path) -> None:
    done = fitted(folder, tmp_path / "run", n_clusters=0)
    assert done.choice is not None
    assert done.config.n_clusters == 4
    assert min(done.assignments.sizes(done.config.n_clusters)) > 0
    assert json.loads((tmp_path / "run" / "clusters.json").read_text())["n_clusters"] == done.config.n_clusters


def test_nearly_as_many_clusters_as_images(folder: Path, tmp_path: Path) -> None:
    done = fitted(folder, tmp_path / "run", n_clusters=400)
    sizes = done.assignments.sizes(400)
    assert sum(sizes) == N
    assert sum(size > 0 for size in sizes) > 360  # a few images are hardly different


def test_a_thousand_planted_clusters_are_found() -> None:
    rows, labels = planted(3000, 1000)
    images = images_of(rows)
    config = resolve(for_rows(1000), images)
    assert config.train.batch_size <= 512  # most clusters are not in it
    method = Trainer(config, images).run()
    clusters = method.online.log_assign(method.online.prepare(torch.from_numpy(rows))).argmax(1)
    assert len(clusters.unique()) > 990
    assert score(labels, clusters.numpy()).acc > 0.9


def test_clusters_that_no_view_falls_into_are_not_called_empty() -> None:
    """Many have two or three rows, of which the noise of a view leads away; k-means has emptied none of them."""
    images, diary = images_of(planted(1000, 300)[0]), Diary()
    loud = {"augment": {"noise": 3.0}, "train": {"epochs": 4, "device": "cpu"}}
    Trainer(resolve(for_rows(300, **loud), images), images, reporter=diary).run()
    assert diary.rows[-1]["histogram"].count(0) > 30
    assert diary.rows[-1]["empty"] == 0
    assert not [message for _, message in diary.warnings if "empty" in message]


def test_one_large_cluster_of_a_chosen_number_is_warned_of(tmp_path: Path) -> None:
    rows, diary = np.repeat(planted(2, 2)[0], [380, 20], axis=0), Diary()  # the same image again and again
    done = fit(from_array(rows, "rows"), for_rows(0), tmp_path / "run", reporter=diary)
    assert done.choice is not None
    assert max(done.assignments.sizes(done.config.n_clusters)) == 380
    assert [message for _, message in diary.warnings if "collapsed: one of" in message]


@pytest.mark.parametrize("balance", [-1.0, 1.0])
def test_many_clusters_under_a_prior_on_sizes(balance: float) -> None:
    rows, labels = planted(1000, 200)
    images = images_of(rows)
    method = Trainer(resolve(for_rows(200, anchored={"balance": balance}), images), images).run()
    clusters = method.online.log_assign(method.online.prepare(torch.from_numpy(rows))).argmax(1)
    sizes = torch.bincount(clusters, minlength=200)
    assert sizes.min() > 0
    assert balance < 0 or sizes.max() <= 8
    assert score(labels, clusters.numpy()).acc > 0.85


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_a_step_with_a_thousand_clusters_has_finite_gradients(method: str) -> None:
    images = images_of(planted(1200, 1000, d=8)[0])
    config = resolve(for_rows(1000, method=method, train={"epochs": 1, "batch_size": 512, "device": "cpu"}), images)
    trainer = Trainer(config, images)
    if method == "tcc":
        assert len(trainer.method.cluster_queue.rows) == 16_000
    else:
        trainer.method.labels.copy_(torch.arange(1200) % 1000)
        trainer.method.cluster_weight.fill_(1.0)
    next(trainer.feed.epoch(0))
    trainer.step()
    gradients = [weight.grad for weight in trainer.method.online.parameters() if weight.grad is not None]
    assert gradients
    assert all(gradient.isfinite().all() for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)
