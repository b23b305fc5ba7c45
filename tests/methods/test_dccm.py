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
        scores = method.online.head[0](both)
        q, plain = method.online.head[1](scores).softmax(1).chunk(2)
        edge = torch.tensor(slow.cosines(plain.numpy())) >= 0.8
        information = method.information(both[:N], scores[:N], edge | torch.eye(N).bool(), KEYS).item()
    graph = slow.pairs_by_threshold(q.numpy(), plain.numpy(), 0.8, 0.8)
    label = slow.sure_labels(q.numpy(), plain.numpy(), 0.4)
    wanted = graph + weights[0] * label + weights[1] * information
    assert step(method, views).loss.item() == pytest.approx(wanted, abs=2e-6)


def test_information_is_of_joined_images_against_others() -> None:
    """Where each image is joined to the next one: true pairs are with itself and that one, false ones with two more."""
    method = method_of("dccm")
    features, scores = views_of(method)[0], torch.randn(N, 3, dtype=torch.float64)
    edge = torch.eye(N, dtype=torch.bool)
    edge[torch.arange(N), torch.arange(N).roll(1)] = True
    seen = []
    method.discriminator = torch.nn.Module()
    method.discriminator.forward = lambda pairs: seen.append(pairs) or pairs[:, :1]
    found = method.information(features, scores, edge, KEYS)
    assert all(torch.equal(pairs[:, features.shape[1] :], scores) for pairs in seen)
    own, joined, *others = (pairs[:, : features.shape[1]] for pairs in seen)
    torch.testing.assert_close(own, features)
    torch.testing.assert_close(joined, features.roll(1, 0))
    assert not (others[0] == others[1]).all(1).any()
    assert not any((other == true).all(1).any() for other in others for true in (own, joined))
    true, false = (torch.cat(seen[start : start + 2])[:, 0].numpy() for start in (0, 2))
    assert found.item() == pytest.approx(slow.discrimination(true, false, [True] * 2 * N), abs=1e-9)


def test_one_cluster_for_all_has_no_false_pairs() -> None:
    method = method_of("dccm")
    features, q = views_of(method)[0][:, :1].repeat(1, method.online.backbone.n_features), torch.ones(N, 3).double()
    every = torch.ones(N, N, dtype=torch.bool)
    scores = method.discriminate(features[:1], q[:1]).detach()
    found = method.information(features[:1].repeat(N, 1), q, every, KEYS)
    assert found.item() == pytest.approx(slow.discrimination(scores.numpy(), scores.numpy(), [False]))


def test_images_that_give_labels_do_not_learn_them() -> None:
    method = method_of("dccm").eval()
    views = tuple(view.requires_grad_() for view in views_of(method))
    step(method, views).loss.backward()
    assert [bool(view.grad is not None and view.grad.any()) for view in views] == [True, False]
