"""Drift: bounds that one in twenty training images lies beyond, how many new ones do, and what that means."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from twincluster.core import InputError
from twincluster.runs import FEWEST, Drift, Reference
from twincluster.runs.inputs import REFERENCE_FILE as FILE
from twincluster.runs.inputs import TAIL, _verdict


def cloud(n: int, seed: int, spread: float = 0.2) -> tuple[torch.Tensor, torch.Tensor]:
    """Features around three directions of eight, and probabilities by how near they lie to each."""
    random = torch.Generator().manual_seed(seed)
    features = torch.eye(3, 8)[torch.arange(n) % 3] + spread * torch.randn(n, 8, generator=random)
    return features, (4 * features[:, :3]).softmax(1)


def slow_bounds(features: torch.Tensor, probabilities: torch.Tensor) -> list[tuple[float, float, float]]:
    """Lowest usual confidence, largest usual and median distance of each cluster, image by image."""
    members: dict[int, list[int]] = {}
    for row, q in enumerate(probabilities.tolist()):
        members.setdefault(q.index(max(q)), []).append(row)
    bounds = []
    for cluster in range(probabilities.shape[1]):
        units = [[x / math.hypot(*row) for x in row] for row in features[members[cluster]].tolist()]
        centre = [sum(column) / len(units) for column in zip(*units, strict=True)]
        distances = [math.dist(unit, centre) for unit in units]
        confidence = [max(q) for q in probabilities[members[cluster]].tolist()]
        bounds.append((np.quantile(confidence, 0.05), np.quantile(distances, 0.95), np.median(distances)))
    return bounds


def test_bounds_are_those_of_each_cluster() -> None:
    features, probabilities = cloud(300, seed=0)
    found = Reference.of(features * 7, probabilities)  # lengths do not matter
    for cluster, (low, far, typical) in enumerate(slow_bounds(features, probabilities)):
        assert found.confidence[cluster] == pytest.approx(low, abs=1e-5)
        assert found.distance[cluster] == pytest.approx(far, abs=1e-5)
        assert found.typical[cluster] == pytest.approx(typical, abs=1e-5)


def test_the_training_images_themselves_are_as_expected() -> None:
    features, probabilities = cloud(2000, seed=0)
    drift = Drift.between(Reference.of(features, probabilities), features, probabilities)
    assert drift is not None
    assert drift.low_confidence == pytest.approx(TAIL, abs=0.01)
    assert drift.far == pytest.approx(TAIL, abs=0.01)
    assert drift.distance == pytest.approx(1, abs=0.01)
    assert drift.verdict == "alike"


@pytest.mark.parametrize("spread,verdict", [(0.2, "alike"), (0.26, "somewhat different"), (0.5, "different")])
def test_new_images_are_told_apart_by_how_far_they_stray(spread: float, verdict: str) -> None:
    drift = Drift.between(Reference.of(*cloud(2000, seed=0)), *cloud(500, seed=1, spread=spread))
    assert drift is not None
    assert drift.verdict == verdict, drift
    assert (drift.distance > 1.2) == (spread > 0.25)


def test_another_mix_of_the_same_kinds_is_no_drift() -> None:
    features, probabilities = cloud(900, seed=1)
    features, probabilities = features[::3], probabilities[::3]  # one kind alone
    wide = torch.cat([cloud(900, seed=0)[0], cloud(900, seed=2, spread=0.3)[0][1::3]])  # another kind strays more
    drift = Drift.between(Reference.of(wide, (4 * wide[:, :3]).softmax(1)), features, probabilities)
    assert drift is not None
    assert drift.verdict == "alike"


def test_a_small_cluster_takes_the_bounds_of_all() -> None:
    features, probabilities = cloud(300, seed=0)
    few = torch.cat([torch.arange(0, 300, 3)[: FEWEST - 1], torch.arange(1, 300, 3), torch.arange(2, 300, 3)])
    found = Reference.of(features[few], probabilities[few])
    everyone = np.quantile(probabilities[few].max(1).values.numpy(), TAIL)
    size = int((probabilities[few].argmax(1) == 0).sum())
    assert (found.confidence[0] == pytest.approx(everyone, abs=1e-6)) == (size < FEWEST)
    assert found.confidence[1] != pytest.approx(everyone, abs=1e-6)


def test_what_falls_into_an_empty_cluster_is_far() -> None:
    features, probabilities = cloud(300, seed=0)
    wider = torch.cat([probabilities, torch.zeros(300, 1)], dim=1)
    reference = Reference.of(features, wider)
    new = torch.zeros(10, 4)
    new[:, 3] = 1
    drift = Drift.between(reference, features[:10], new)
    assert drift is not None
    assert drift.far == 1


@pytest.mark.parametrize("beyond,count,verdict", [
    (0, 1, "too few to tell"), (1, 1, "too few to tell"), (0, 19, "too few to tell"), (3, 3, "somewhat different"),
    (5, 5, "different"), (2, 20, "alike"), (7, 20, "somewhat different"), (11, 20, "different"), (100, 1000, "alike"),
    (130, 1000, "somewhat different"), (250, 1000, "somewhat different"), (300, 1000, "different"),
])  # fmt: skip
def test_a_verdict_takes_luck_into_account(beyond: int, count: int, verdict: str) -> None:
    assert _verdict(beyond, count) == verdict


def test_nobody_is_alarmed_by_rounding() -> None:
    """Assignments that are all but certain: what differs in the fifth digit is not drift."""
    features, probabilities = torch.eye(3)[torch.arange(300) % 3], torch.eye(3)[torch.arange(300) % 3]
    reference = Reference.of(features, probabilities)
    drift = Drift.between(reference, features + 1e-5, 0.9999 * probabilities + 1e-4 / 3)
    assert drift is not None
    assert (drift.low_confidence, drift.far) == (0, 0)


def test_a_reference_survives_the_disk(tmp_path: Path) -> None:
    reference = Reference.of(*cloud(300, seed=0))
    assert Reference.read(tmp_path, 3) is None
    reference.write(tmp_path)
    again = Reference.read(tmp_path, 3)
    assert again is not None
    for field in dataclasses.fields(Reference):
        np.testing.assert_array_equal(getattr(again, field.name), getattr(reference, field.name))
    with pytest.raises(InputError, match="damaged or from another run .*: delete it to continue without it"):
        Reference.read(tmp_path, 4)
    (tmp_path / FILE).write_bytes(b"noise" * 20)
    with pytest.raises(InputError, match="damaged or from another run"):
        Reference.read(tmp_path, 3)


def test_figures_are_plain_numbers() -> None:
    drift = Drift.between(Reference.of(*cloud(300, seed=0)), *cloud(30, seed=1))
    assert drift is not None
    said = json.loads(json.dumps(drift.to_dict()))
    assert set(said) == {"images", "low_confidence", "far", "distance", "verdict", "expected"}
    assert drift.lines()[-1].startswith("the new images look like the training images")
    features, probabilities = cloud(30, seed=1)
    assert Drift.between(Reference.of(*cloud(300, seed=0)), features[:0], probabilities[:0]) is None
