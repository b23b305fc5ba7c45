"""RUC: its losses against slow references, and the refinement of a finished run from the command line."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.autograd import gradcheck

import reference_named as slow
from command_line import TINY, command, worked
from reference_losses import arrays, close, softmax, tensor
from small_peers import KEYS, SAMPLES, N, method_of, step, views_of
from small_runs import KINDS, assert_equal_state, pictures
from twincluster import TwinContrastClustering
from twincluster.core import InputError
from twincluster.methods.peers import peer_losses
from twincluster.nn import draws
from twincluster.runs import Edits, Run

CLEAN = [True, False, True, True, False]
COUNT = 48


def assignments(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.array([softmax(row) for row in 2 * arrays((n, k), seed=seed)[0]])


def test_sharpened_targets() -> None:
    given = assignments(5, 3)
    close(peer_losses.sharpened(tensor(given), 0.5), slow.sharpened(given, 0.5), torch.float64)


@pytest.mark.parametrize("clean", [CLEAN, [False] * 5, [True] * 5])
def test_losses_of_mixed_and_of_strong_views(clean: list[bool]) -> None:
    q, target, label, mask = assignments(5, 3), assignments(5, 3, seed=1), [0, 1, 2, 2, 1], torch.tensor(clean)
    found = peer_losses.mixed_losses(tensor(q).log(), tensor(target), mask)
    assert [loss.item() for loss in found] == pytest.approx(slow.mixed_losses(q, target, clean))
    smooth = peer_losses.smooth_label_loss(tensor(q).log(), torch.tensor(label), mask, 0.5)
    assert smooth.item() == pytest.approx(slow.smooth_label_loss(q, label, clean, 0.5))


def test_gradients() -> None:
    logits, mask, label = tensor(arrays((5, 3))[0]).requires_grad_(), torch.tensor(CLEAN), torch.tensor([0, 1, 2, 2, 1])

    def losses(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        q = logits.log_softmax(1)
        smooth = peer_losses.smooth_label_loss(q, label, mask, 0.5)
        return *peer_losses.mixed_losses(q, tensor(assignments(5, 3)), mask), smooth

    assert gradcheck(losses, (logits,))


def test_majority_of_neighbours() -> None:
    labels, nearest = torch.tensor([0, 0, 1, 1, 0]), torch.tensor([[1, 2], [0, 4], [0, 1], [2, 4], [2, 3]])
    assert peer_losses.majority(labels, nearest, 3).tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("clean", "expected"), [
    ("confidence", [0, 1, 2, 4, 5, 7]), ("neighbours", [0, 1, 3, 4, 5, 6]), ("both", [0, 1, 4, 5]),
])  # fmt: skip
def test_what_makes_a_label_clean(clean: str, expected: list[int]) -> None:
    """Rows 2 and 7 are among rows of the other cluster; rows 3 and 6 are not sure."""
    count = len(KINDS["rows"])
    changes = ("n_clusters=2", f"own.clean={clean}", "own.confidence=0.9", "own.neighbours=3")
    method = method_of("ruc", *changes)
    angle = torch.tensor([0.0, 0.1, 1.55, 0.2, 1.5, 1.6, 1.7, 0.05] + [3.0] * (count - 8))
    label = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1] + [0] * (count - 8))
    sure = torch.tensor([0.95, 0.95, 0.95, 0.6, 0.95, 0.95, 0.6, 0.95] + [0.6] * (count - 8))
    probabilities = torch.where(torch.arange(2) == label[:, None], sure[:, None], 1 - sure[:, None])
    method.refine(method.online, probabilities, torch.stack([angle.cos(), angle.sin()], 1))
    assert method.clean[:8].nonzero().flatten().tolist() == expected
    assert torch.equal(method.labels, label)


def test_the_backbone_of_the_run_is_that_of_both_networks() -> None:
    method, earlier = method_of("ruc"), method_of("moco").online
    count = len(method.labels)
    probabilities = torch.eye(3)[torch.arange(count) % 3]
    method.refine(earlier, probabilities, probabilities)
    for half in method.online.halves:
        assert_equal_state(half.backbone.state_dict(), earlier.backbone.state_dict())
    assert not torch.equal(method.online.head.weight, method.online.other.head.weight)


def test_a_cluster_without_clean_labels_is_refused() -> None:
    method = method_of("ruc", "own.clean=confidence")
    probabilities = torch.eye(3)[torch.arange(len(method.labels)) % 3] * 0.98 + 0.005
    probabilities[0] = torch.tensor([1.0, 0.0, 0.0])
    with pytest.raises(InputError, match="cluster 1 of the earlier run has no clean label: .*own.confidence=0.89"):
        method.refine(method.online, probabilities, probabilities)


def test_the_loss_of_a_step() -> None:
    """As the other network refines and both guess, in plain numbers."""
    method = method_of("ruc", "own.guess_weight=8").eval()
    generator = torch.Generator().manual_seed(5)
    method.clean[SAMPLES] = torch.arange(N) % 3 > 0
    method.labels[SAMPLES] = torch.arange(N) % 3
    method.doubt.copy_(torch.rand(method.doubt.shape, generator=generator))
    method.schedule(1, 0.5)
    plain, one, two, strong = views_of(method, 4)
    label, clean = (torch.arange(N) % 3).tolist(), (torch.arange(N) % 3 > 0).tolist()

    def probabilities(half: torch.nn.Module, images: torch.Tensor) -> np.ndarray:
        return half.logits(images).softmax(1).detach().numpy()

    halves, total = method.online.halves, 0.0
    guess = slow.sharpened(sum(probabilities(half, view) for half in halves for view in (one, two)) / 4, 0.5)
    for number, half in enumerate(halves):
        other = 1 - number
        refined, target = probabilities(halves[other], plain), []
        for i in range(N):
            doubt = float(method.doubt[other, SAMPLES[i]])
            own = (1 - doubt) * np.eye(3)[label[i]] + doubt * refined[i]
            target.append(slow.sharpened([own], 0.5)[0] if clean[i] else guess[i])
        images, mixed = method._mixed(torch.cat([one, two]), tensor(np.array(target * 2)), KEYS, number)
        entropy, error = slow.mixed_losses(probabilities(half, images), mixed.numpy(), clean * 2)
        total += entropy + 4 * error + slow.smooth_label_loss(probabilities(half, strong), label, clean, 0.5)
    assert step(method, (plain, one, two, strong)).loss.item() == pytest.approx(total, rel=1e-6)


def test_images_and_targets_are_mixed_alike_by_a_beta_distribution() -> None:
    method, shares = method_of("ruc"), []
    eye = torch.eye(2 * N, dtype=torch.float64)
    for epoch in range(300):
        images, target = method._mixed(eye, eye, draws.sample_keys(0, torch.tensor(epoch), SAMPLES), 0)
        assert torch.equal(images, target)
        assert (images.sum(1) - 1).abs().max() < 1e-12
        shares.append(images.diagonal().min().item())
    larger = np.random.default_rng(0).beta(4, 4, 100_000)
    larger = np.maximum(larger, 1 - larger)
    assert min(shares) >= 0.5
    assert np.mean(shares) == pytest.approx(larger.mean(), abs=0.02)
    assert np.std(shares) == pytest.approx(larger.std(), abs=0.02)


def test_samples_that_a_network_is_sure_of_become_clean() -> None:
    method = method_of("ruc", "own.confidence=0.9")
    method.clean[0] = True
    sure = torch.tensor([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0], [0.6, 0.4, 0.0], [0.6, 0.4, 0.0]]).double()
    second = torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.4, 0.6, 0.0]]).double()
    method.remember({"samples": torch.arange(4), "plain": torch.stack([sure, second])})
    assert method.clean[:4].tolist() == [True, True, True, False]
    assert method.labels[:3].tolist() == [0, 1, 2]  # of the first network if that is sure
    method.after_epoch(0, lambda: iter(()), None)
    assert method.doubt[0, :4].tolist() == pytest.approx([1, 1, 0, 0], abs=1e-6)


# -- from the command line -------------------------------------------------------------------------------------------


def colour_folder(folder: Path, count: int, seed: int = 0) -> None:
    folder.mkdir()
    for number, pixels in enumerate(pictures(count, 16, seed)[0]):
        Image.fromarray(pixels).save(folder / f"{seed}-{number:02d}.png")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("finished")
    colour_folder(place / "images", COUNT)
    worked("fit", place / "images", "-k", 3, "--out", place / "run", "--epochs", "12", *TINY[2:])
    return place


def refined(finished: Path, out: Path, *more: object) -> str:
    few = ("--epochs", 8, "--device", "cpu", "--set", "train.batch_size=16", "--set", "own.confidence=0.4")
    return worked(
        "fit", finished / "images", "--method", "ruc", "--from", finished / "run", "--out", out, *few, *more
    ).out


def test_a_run_is_refined_and_its_corrections_come_along(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished, tmp_path / "all")
    Edits(Run.open(tmp_path / "all" / "run")).answer([0, 3], name="red")
    assert "2 examples, 1 name" in refined(tmp_path / "all", tmp_path / "out")
    old, new = Run.open(finished / "run"), Run.open(tmp_path / "out")
    assert new.config.method == "ruc"
    assert new.config.n_clusters == 3
    assert new.config.train.image_size == old.config.train.image_size
    assert new.config.augment == old.config.augment
    assert new.config.optimiser.learning_rate == 0.01
    before, after = old.read_assignments().clusters, new.read_assignments().clusters
    assert (before == after).mean() > 0.8  # clusters keep their numbers
    assert all(0 < row["clean"] <= 1 for row in new.read_metrics())
    assert "red" in Edits(new).state.names.values()


def test_what_cannot_be_refined_is_refused_before_any_training(finished: Path, tmp_path: Path) -> None:
    colour_folder(tmp_path / "others", 12, seed=9)
    fit, run = ("fit", finished / "images", "--method", "ruc", "--out", tmp_path / "out"), finished / "run"
    assert "ruc refines a finished run: name one" in command(*fit).complaint
    assert "has 3 clusters, and ruc keeps their number" in command(*fit, "--from", run, "-k", 4).complaint
    assert "whose train.backbone is 'small'" in command(*fit, "--from", run, "--backbone", "resnet18").complaint
    others = command("fit", tmp_path / "others", *fit[2:], "--from", run)
    assert "has none of the images of" in others.complaint
    unsure = command(*fit, "--from", run, "--set", "own.confidence=1.0")
    assert "has no clean label" in unsure.complaint
    assert not (tmp_path / "out").exists()


def test_the_estimator_has_no_run_to_refine() -> None:
    with pytest.raises(ValueError, match="ruc refines a finished run"):
        TwinContrastClustering(3, method="ruc", epochs=1).fit(KINDS["rows"])
