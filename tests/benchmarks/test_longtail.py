"""The benchmark on long-tailed subsets: which images it takes, and that its table says what was found."""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from benchmarks import longtail
from benchmarks.__main__ import main
from benchmarks.longtail import long_tail, measure
from twincluster.core import InputError
from twincluster.data import from_array, open_source
from twincluster.nn import Encoder


class Pixels(nn.Module):
    """An encoder that sees pixels as they are."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1).flatten(1)


def test_sizes_fall_exponentially_and_the_seed_decides_the_rest() -> None:
    digits = open_source("digits")
    assert digits.labels is not None
    subset = long_tail(digits, 10, 500, seed=0)
    sizes = np.sort(np.bincount(subset.labels))[::-1]
    wanted = 500 * 10 ** -(np.arange(10) / 9) / sum(10 ** -(k / 9) for k in range(10))
    assert np.abs(sizes - wanted).max() <= 1
    again, other = long_tail(digits, 10, 500, seed=0), long_tail(digits, 10, 500, seed=1)
    assert np.array_equal(subset.array, again.array)
    assert not np.array_equal(np.bincount(subset.labels), np.bincount(other.labels))
    known = {image.tobytes(): label for image, label in zip(digits.array, digits.labels, strict=True)}
    assert all(known[i.tobytes()] == label for i, label in zip(subset.array, subset.labels, strict=True))
    assert np.ptp(np.bincount(long_tail(digits, 1, 500, seed=0).labels)) == 0


def test_what_cannot_be_cut_is_refused() -> None:
    with pytest.raises(InputError, match="digits has 1.. images of class ., not 4..: ask for fewer"):
        long_tail(open_source("digits"), 10, 1797, seed=0)
    with pytest.raises(InputError, match="no labelled array"):
        long_tail(from_array(np.zeros((4, 8, 8), np.uint8), "blank"), 10, 4, seed=0)


def test_the_table_has_a_line_for_kmeans_and_each_balance(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(longtail, "load_encoder", lambda name, shown: Encoder(name, "", Pixels(), side=8))
    found = measure("digits", 10, 150, 0, [-1.0, 1.0], ["train.epochs=4"])
    assert [line.name for line in found.lines] == ["k-means", "balance -1", "balance 1"]
    for line in found.lines:
        assert sum(line.sizes) == sum(found.sizes)
        assert line.scores.acc > 0.2
    even, uneven = (max(line.sizes) - min(line.sizes) for line in (found.lines[2], found.lines[1]))
    assert even < uneven
    assert torch.tensor([line.strain for line in found.lines]).argmax() == 2
    short = ["--set", "train.epochs=1"]
    assert main(["longtail", "digits", "--ratio", "10", "--images", "150", "--balance", "0", *short]) == 0
    assert "balance 0" in capsys.readouterr().out
