"""MiCE: the mixture's bound against slow references, centres that move once an epoch, and prediction."""

import pytest
import torch

import reference_peers as slow
from small_peers import N, directions, method_of, step, views_of
from small_runs import make
from twincluster.core import InputError


@pytest.mark.parametrize("filled", [0, 5])
def test_the_loss_is_the_bound_of_the_mixture(filled: int) -> None:
    method = method_of("mice", "own.temperature=0.6", "own.gate_temperature=0.4", "own.shuffle_keys=false")
    method.queue.push(directions(filled, 3, 16).flatten(1))
    student, teacher, gate = views = views_of(method, 3)
    with torch.no_grad():
        experts = method.online.by_experts(method.online.backbone_features(student))
        keys = method.momentum.by_experts(method.momentum.backbone_features(teacher))
        embedded = torch.nn.functional.normalize(method.online.gate(method.online.backbone_features(gate)), dim=1)
        prior = (embedded @ method.online.gates.T / 0.4).log_softmax(1)
        mu = torch.nn.functional.normalize(method.online.prototypes, dim=1)
    likelihood = slow.expert_likelihood(
        experts.numpy(), keys.numpy(), mu.numpy(), directions(filled, 3, 16).numpy(), 0.6
    )
    outcome = step(method, views)
    assert outcome.loss.item() == pytest.approx(slow.negative_elbo(prior.numpy(), likelihood), abs=1e-9)
    joint = prior + torch.tensor(likelihood)
    torch.testing.assert_close(outcome.assignment, joint.softmax(1))


def test_gates_are_equally_far_apart() -> None:
    gates = method_of("mice").online.gates
    torch.testing.assert_close(gates @ gates.T, 1.5 * torch.eye(3).double() - 0.5, atol=1e-5, rtol=0)


def test_centres_become_the_mean_of_what_each_expert_has_taken() -> None:
    method = method_of("mice")
    outcome = step(method, views_of(method, 3))
    key, taken = outcome.memory["key"], torch.arange(N) % 2  # the third expert has none
    posterior = torch.eye(3, dtype=torch.float64)[taken]
    before = method.online.prototypes.detach().clone()
    with torch.no_grad():
        method.remember({"key": key, "posterior": posterior})
        method.remember({"key": key[:4], "posterior": posterior[:4]})
    assert method.after_epoch(0, lambda: iter(()), None) == {"idle_experts": 1.0}
    both = torch.cat([key, key[:4]])
    for expert in range(2):
        total = both[torch.cat([taken, taken[:4]]) == expert, expert].sum(0)
        torch.testing.assert_close(method.online.prototypes[expert].detach(), total / total.norm())
    assert torch.equal(method.online.prototypes[2], before[2])
    assert not method.sums.any()


def test_keys_go_to_the_queue_and_weights_to_the_teacher() -> None:
    method = method_of("mice", "own.ema=0.75")
    before = [weight.clone() for weight in method.momentum.parameters()]
    outcome = step(method, views_of(method, 3))
    with torch.no_grad():
        method.remember(outcome.memory)
    torch.testing.assert_close(method.queue.filled(), outcome.memory["key"].flatten(1))
    for old, new, now in zip(before, method.online.parameters(), method.momentum.parameters(), strict=True):
        torch.testing.assert_close(now, 0.75 * old + 0.25 * new)


def test_prediction_is_the_posterior_among_rows_that_the_queue_leaves() -> None:
    method = method_of("mice").eval()
    stored = directions(5, 3, 16)
    method.queue.push(stored.flatten(1))
    method.finish(lambda network: torch.zeros(0))
    (images,) = views_of(method, 1)
    with torch.no_grad():
        features = method.online.backbone_features(images)
        experts, mu = method.online.by_experts(features), torch.nn.functional.normalize(method.online.prototypes, dim=1)
        prior = method.online.log_prior(features)
        found = method.online.log_assign(images)
    likelihood = slow.expert_likelihood(experts.numpy(), experts.numpy(), mu.numpy(), stored.numpy(), 1.0)
    torch.testing.assert_close(found, (prior + torch.tensor(likelihood)).log_softmax(1))


def test_too_few_features_for_the_gates() -> None:
    with pytest.raises(InputError, match="own.n_features is 3: 6 experts need 5"):
        make("rows", "method=mice", "own.n_features=3", "n_clusters=6")


def test_weight_decay_moves_the_centres_too() -> None:
    trainer = make("rows", "method=mice", "own.n_features=16", "optimiser.weight_decay=0.5")
    centres, gates = trainer.method.online.prototypes, trainer.method.online.gate.bias
    decay = {
        id(weight): group["weight_decay"] for group in trainer.optimiser.param_groups for weight in group["params"]
    }
    assert (decay[id(centres)], decay[id(gates)]) == (0.5, 0.0)
    others = make("rows", "method=tcc", "optimiser.weight_decay=0.5")
    decay = {id(weight): group["weight_decay"] for group in others.optimiser.param_groups for weight in group["params"]}
    assert decay[id(others.method.online.prototypes)] == 0.0
