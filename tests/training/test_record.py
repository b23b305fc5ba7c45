"""The sums of an epoch against averages of lists, and the health that a row of metrics describes."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from twincluster.clustering import health
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.methods import Anchored, Outcome
from twincluster.training import health_of
from twincluster.training.trainer import Record, refuse_divergence

N, K, STEPS = 6, 4, 5


def outcomes() -> list[Outcome]:
    """Steps with assignments that are neither sure nor balanced."""
    generator = torch.Generator().manual_seed(0)

    def assignment() -> Tensor:
        return (2 * torch.randn(N, K, generator=generator) + torch.tensor([2.0, 0, 0, -9])).softmax(1)

    return [
        Outcome(
            loss=torch.randn((), generator=generator).requires_grad_(),
            assignment=assignment(),
            key_assignment=assignment(),
            memory={},
            metrics={"entropy": torch.rand((), generator=generator)},
        )
        for _ in range(STEPS)
    ]


def filled(steps: list[Outcome]) -> Record:
    record = Record()
    for outcome in steps:
        record.add(outcome)
    return record


def test_a_row_holds_the_averages_of_the_steps_and_counts_clusters() -> None:
    steps = outcomes()
    row = filled(steps).read(STEPS)
    assert list(row) == ["loss", "entropy", "confidence", "agreement", "mean_assignment", "histogram"]
    samples = [(q, other) for step in steps for q, other in zip(step.assignment, step.key_assignment, strict=True)]
    assert row["loss"] == pytest.approx(np.mean([step.loss.item() for step in steps]))
    assert row["entropy"] == pytest.approx(np.mean([step.metrics["entropy"].item() for step in steps]))
    assert row["confidence"] == pytest.approx(np.mean([max(q.tolist()) for q, _ in samples]))
    assert row["agreement"] == pytest.approx(np.mean([q.argmax().item() == p.argmax().item() for q, p in samples]))
    assert row["mean_assignment"] == pytest.approx(np.mean([q.tolist() for q, _ in samples], axis=0).tolist())
    clusters = [q.argmax().item() for q, _ in samples]
    assert row["histogram"] == [clusters.count(k) for k in range(K)]
    assert 0 in row["histogram"]


def test_a_loss_that_compared_nothing_in_a_whole_epoch_is_none() -> None:
    """The first epoch of a method that still gathers its features, or a term that has not begun."""
    steps = outcomes()
    idle, zero = torch.zeros(()), {"cluster_loss": torch.zeros(()), "empty": torch.zeros(())}
    row = filled([replace(step, loss=idle, metrics=zero) for step in steps]).read(STEPS)
    assert (row["loss"], row["cluster_loss"], row["empty"]) == (None, None, 0.0)
    row = filled([*(replace(step, loss=idle) for step in steps[1:]), steps[0]]).read(STEPS)
    assert row["loss"] == pytest.approx(steps[0].loss.item() / STEPS)


def test_a_row_is_plain_json() -> None:
    row = filled(outcomes()).read(STEPS)
    assert json.loads(json.dumps(row)) == row
    assert all(isinstance(count, int) for count in row["histogram"])


def test_reading_starts_again_in_the_same_buffers() -> None:
    steps = outcomes()
    record = filled(steps[:2])
    places = {name: total.data_ptr() for name, total in record.totals.items()}
    record.read(2)
    assert not any(total.any() for total in record.totals.values())
    for outcome in steps[2:]:
        record.add(outcome)
    assert record.read(3) == filled(steps[2:]).read(3)
    assert {name: total.data_ptr() for name, total in record.totals.items()} == places


def test_sums_carry_no_gradient() -> None:
    record = filled(outcomes())
    assert not any(total.requires_grad for total in record.totals.values())


def test_on_batch_accuracy_is_of_the_newest_batch() -> None:
    steps = outcomes()
    record = filled(steps)
    newest = steps[-1].assignment.argmax(1).numpy()
    assert record.on_batch_accuracy((newest + 1) % K) == 1.0  # whatever the numbers of the clusters
    wrong = newest.copy()
    wrong[0] = K + 1
    assert record.on_batch_accuracy(wrong) == pytest.approx((N - 1) / N)
    assert record.on_batch_accuracy(np.where(np.arange(N) < 2, newest, -1)) == 1.0


def test_a_batch_without_any_label_has_no_accuracy() -> None:
    assert filled(outcomes()).on_batch_accuracy(np.full(N, -1)) is None
    assert filled(outcomes()).on_batch_accuracy(np.full(N, 0)) is not None  # they are all of the first class


def test_health_of_a_row_equals_the_health_of_all_its_assignments() -> None:
    steps = outcomes()
    found = health_of(filled(steps).read(STEPS))
    wanted = health(torch.cat([s.assignment for s in steps]), torch.cat([s.key_assignment for s in steps]))
    assert found.sizes == wanted.sizes
    assert found.confidence == pytest.approx(wanted.confidence)
    assert found.marginal_entropy == pytest.approx(wanted.marginal_entropy)
    assert found.agreement == pytest.approx(wanted.agreement)


def test_health_of_one_cluster_that_takes_all_is_a_number() -> None:
    row = {"mean_assignment": [1.0, 0.0], "histogram": [9, 0], "confidence": 1.0, "agreement": 1.0}
    found = health_of(row)
    assert found.marginal_entropy == pytest.approx(0)
    assert "collapsed" in (found.warning("anchored", Anchored.advice) or "")


@pytest.mark.parametrize("nothing", [math.nan, None])
def test_health_of_a_run_that_diverged_is_told_also_from_a_file(nothing: float | None) -> None:
    """Which has None where there was no number."""
    row = {"mean_assignment": [nothing, nothing], "histogram": [9, 0], "confidence": nothing, "agreement": 1.0}
    assert "training diverged" in (health_of(row).warning("anchored", Anchored.advice) or "")


def test_a_run_in_bf16_that_diverged_may_try_float32() -> None:
    config = make_config({"train": {"precision": "bf16"}})
    with pytest.raises(InputError, match=r"or train in float32 \(--precision float32\)$"):
        refuse_divergence({"loss": math.nan}, config)
    refuse_divergence({"loss": None}, config)


def test_a_strained_prior_is_warned_of_once_training_has_ended() -> None:
    """Its strain wavers from epoch to epoch, so that some epoch of many would always be above the bound."""
    row = {"mean_assignment": [0.5, 0.5], "histogram": [9, 9], "confidence": 1.0, "agreement": 1.0, "strain": 0.9}
    assert health_of(row | {"progress": 0.99}).warning("anchored", Anchored.advice) is None
    assert "the prior on sizes" in (health_of(row | {"progress": 1.0}).warning("anchored", Anchored.advice) or "")
