"""IDFD: both terms against slow references, and the bank."""

import pytest
import torch

import reference_peers as slow
from small_peers import SAMPLES, method_of, step, views_of


def test_instances_and_features() -> None:
    method = method_of("idfd", "own.weight=0.3", "own.temperature=0.5", "own.feature_temperature=1.5")
    views = views_of(method, 1)
    unit, bank = method.online.embed(views[0]).detach().numpy(), method.bank.numpy()
    wanted = slow.instance_discrimination(unit, bank, SAMPLES.tolist(), 0.5) + 0.3 * slow.decorrelation(unit, 1.5)
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=1e-9)


def test_rows_of_the_bank_move_towards_the_newest_features() -> None:
    method = method_of("idfd", "own.keep=0.25")
    outcome, before = step(method, views_of(method, 1)), method.bank.clone()
    method.remember(outcome.memory)
    wanted = before.clone()
    mixed = 0.25 * before[SAMPLES] + 0.75 * outcome.memory["features"]
    wanted[SAMPLES] = mixed / mixed.norm(dim=1, keepdim=True)
    torch.testing.assert_close(method.bank, wanted)
