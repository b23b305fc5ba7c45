"""DCCM: its three terms against slow references, and the partners that its graph gives."""

import pytest
import torch

import reference_peers as slow
from small_peers import KEYS, N, method_of, step, views_of


@pytest.mark.parametrize("weights", [(0.0, 0.0), (2.0, 0.0), (0.0, 0.5)])
def test_graph_labels_and_information(weights: tuple[float, float]) -> None:
    method = method_of("dccm", f"own.label_weight={weights[0]}", f"own.information_weight={weights[1]}")
    views = views_of(method)
    with torch.no_grad():
        both = method.online.backbone_features(torch.cat(views))
        q, plain = method.online.head(both).softmax(1).chunk(2)
        edge = torch.tensor(slow.cosines(plain.numpy())) >= 0.8
        information = method.information(both[:N], q, edge, KEYS).item()
    graph = slow.pairs_by_threshold(q.numpy(), plain.numpy(), 0.8, 0.8)
    label = slow.sure_labels(q.numpy(), plain.numpy(), 0.4)
    wanted = graph + weights[0] * label + weights[1] * information
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=2e-6)


def test_information_is_of_joined_images_against_others() -> None:
    """Where each image is joined to one other, and only its own group is left out of the false pairs."""
    method = method_of("dccm")
    features, q = views_of(method)[0], torch.full((N, 3), 1 / 3, dtype=torch.float64)
    edge = torch.zeros(N, N, dtype=torch.bool)
    edge[torch.arange(N), torch.arange(N).roll(1)] = True
    seen = []
    method.discriminator = torch.nn.Module()
    method.discriminator.forward = lambda pairs: seen.append(pairs) or pairs[:, :1]
    found = method.information(features, q, edge, KEYS)
    torch.testing.assert_close(seen[0][:, : features.shape[1]], features.roll(1, 0))
    assert not (seen[1] == seen[0]).all(1).any()
    wanted = slow.discrimination(seen[0][:, 0].numpy(), seen[1][:, 0].numpy(), [True] * N)
    assert found.item() == pytest.approx(wanted, abs=1e-9)


def test_one_cluster_for_all_has_no_false_pairs() -> None:
    method = method_of("dccm")
    features, q = views_of(method)[0][:, :1].repeat(1, method.online.backbone.n_features), torch.ones(N, 3).double()
    every = torch.ones(N, N, dtype=torch.bool)
    scores = method.discriminator(torch.cat([features, q], 1)).squeeze(1).detach()
    found = method.information(features[:1].repeat(N, 1), q, every, KEYS)
    assert found.item() == pytest.approx(slow.discrimination(scores[:1].numpy(), scores[:1].numpy(), [False]))


def test_images_that_give_labels_do_not_learn_them() -> None:
    method = method_of("dccm").eval()
    views = tuple(view.requires_grad_() for view in views_of(method))
    step(method, views).loss.backward()
    assert [bool(view.grad is not None and view.grad.any()) for view in views] == [True, False]
