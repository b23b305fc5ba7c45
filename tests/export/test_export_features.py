"""What the network makes of the images of a run, found again for edits that divide a cluster."""

from pathlib import Path

import numpy as np
import pytest

from twincluster.core import InputError
from twincluster.methods import base as inference
from twincluster.model import load_network
from twincluster.run_images import RunImages
from twincluster.runs import Edits, Run


def largest(edits: Edits) -> int:
    sizes = edits.state.sizes()
    return max(sizes, key=lambda cluster: sizes[cluster])


def test_features_are_the_networks_in_the_order_of_the_rows(run: Run) -> None:
    images = RunImages(run).training
    assert images is not None
    rows = images.usable[[4, 0, 2]]
    expected = inference.embed(load_network(run), images.pixels, rows).numpy()
    assert np.allclose(RunImages(run).features_of(rows), expected, atol=1e-6)


def test_a_cluster_can_be_split_without_knowing_of_features(run: Run, tmp_path: Path) -> None:
    images = RunImages(run)
    edits = images.edits
    cluster = largest(edits)
    state = edits.split(cluster, 2)
    parts = sorted(set(state.names) - set(range(3)))[-2:]
    assert cluster not in state.names
    assert state.is_split
    edits.undo()
    asked: list[int] = []

    def features(rows: np.ndarray) -> np.ndarray:
        asked.extend(rows.tolist())
        return images.features_of(rows)

    again = edits.split(cluster, 2, features)
    assert asked
    assert [len(again.members(part)) for part in sorted(again.names)[-2:]] == [
        len(state.members(part)) for part in parts
    ]
    chosen = again.members(sorted(again.names)[-2])[:1]
    assert edits.split_off(sorted(again.names)[-2], chosen.tolist(), images.features_of).is_split


def test_images_that_are_gone_are_named(run: Run, own_photos: Path, own_cache: Path) -> None:
    images = RunImages(run)
    lost = own_photos / "b" / "3.png"
    row = run.read_assignments().paths.index("b/3.png")
    lost.unlink()
    with pytest.raises(InputError, match=r"b/3\.png cannot be read again"):
        images.features_of(np.array([row]))
