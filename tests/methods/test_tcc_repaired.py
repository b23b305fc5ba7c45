"""`tcc-repaired`: once in a run the prototypes move to where k-means finds clusters; all else is as printed.

Shapes: n samples, K clusters, D features.
"""

import numpy as np
import torch

from reference_tcc import KEYS, SAMPLES, D, K, batches, close, fresh, three_views
from twincluster.methods import Tcc
from twincluster.methods.tcc_variants import towards_clusters

NAME = "tcc-repaired"


def end_of_epoch(method: Tcc, progress: float) -> None:
    method.schedule(0, progress)
    method.after_epoch(0, batches, torch.optim.SGD(method.parameters(), lr=0.0))


def test_prototypes_point_at_the_clusters_however_far_off_all_of_them_are() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(K, D, generator=generator)
    labels = torch.arange(200) % K
    features = centres[labels] + 0.05 * torch.randn(200, D, generator=generator) + 20.0
    prototypes = towards_clusters(features, K, seed=0)
    close(prototypes.norm(dim=1), np.ones(K))
    close(prototypes @ features.mean(0), np.zeros(K), atol=1e-4)
    found = (features @ prototypes.T).argmax(1)  # Eq. 3, which has no bias
    assert len({(int(label), int(cluster)) for label, cluster in zip(labels, found, strict=True)}) == K
    assert len(found.unique()) == K


def test_prototypes_are_set_once() -> None:
    method = fresh(NAME)
    start = method.online.prototypes.clone()
    end_of_epoch(method, 0.49)
    assert torch.equal(method.online.prototypes, start)
    with torch.no_grad():
        features = torch.cat([fresh(NAME).online.embed(batch.view(0)) for batch in batches()])
    wanted = towards_clusters(features, K, seed=0)
    end_of_epoch(method, 0.5)
    for network in (method.online, method.momentum):
        torch.testing.assert_close(network.prototypes.detach(), wanted)
    with torch.no_grad():
        method.online.prototypes += 1
    resumed = fresh(NAME)
    resumed.load_state_dict(method.state_dict())  # as from a checkpoint
    for later in (method, resumed):
        end_of_epoch(later, 0.9)
        torch.testing.assert_close(later.online.prototypes.detach(), wanted + 1)


def test_its_losses_are_those_of_the_paper() -> None:
    printed, repaired = (fresh(name).losses(three_views(), SAMPLES, KEYS) for name in ("tcc", NAME))
    assert torch.equal(printed.loss, repaired.loss)
