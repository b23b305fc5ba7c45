"""The draws are as random as they claim, and depend on their key alone. Every limit follows from the sample size."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from twincluster.nn import draws

Draw = Callable[[Tensor, int, int], Tensor]
N = 50_000
MASK = 2**32 - 1
RARE = 1e-6  # how often a test may fail for a perfect generator; the keys are fixed, so it fails always or never


def keys(seed: int = 0, epoch: int = 0, count: int = N, first: int = 0) -> Tensor:
    return draws.sample_keys(seed, torch.tensor(epoch), torch.arange(first, first + count))


def numbers(seed: int = 0, epoch: int = 0, stream: int = 0, column: int = 0, first: int = 0) -> NDArray[np.float64]:
    """One column of uniform numbers for N consecutive samples."""
    return draws.uniform(keys(seed, epoch, first=first), stream, column + 1)[:, column].double().numpy()


# -- a second implementation, one whole number at a time ---------------------------------------------------------------


def mix(value: int) -> int:
    value = (value ^ (value >> 16)) * 0x7FEB352D % 2**32
    value = (value ^ (value >> 15)) * 0x846CA68B % 2**32
    return value ^ (value >> 16)


def unmix(value: int) -> int:
    """The inverse of `mix`, which shows that it is a bijection."""
    value ^= value >> 16
    value = value * pow(0x846CA68B, -1, 2**32) % 2**32
    value ^= (value >> 15) ^ (value >> 30)
    value = value * pow(0x7FEB352D, -1, 2**32) % 2**32
    return value ^ (value >> 16)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    st.integers(-(2**40), 2**40), st.integers(0, 10**6), st.integers(0, 2**31), st.integers(0, 50), st.integers(1, 9)
)
def test_wrapping_products_lose_nothing(seed: int, epoch: int, sample: int, stream: int, count: int) -> None:
    start = mix((epoch + mix(seed & MASK)) & MASK)
    key = mix(mix((sample + start) & MASK) ^ start)
    found = draws.sample_keys(seed, torch.tensor(epoch), torch.tensor([sample]))
    assert found.tolist() == [key]
    row = mix((key + (stream + 1) * 0x85EBCA6B) & MASK)
    wanted = [((mix((row + mix(column)) & MASK) >> 9) + 0.5) / 2**23 for column in range(1, count + 1)]
    assert draws.uniform(found, stream, count).tolist() == [wanted]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(0, MASK))
def test_mix_is_a_bijection(value: int) -> None:
    assert draws._mix(torch.tensor([value])).item() == mix(value)
    assert unmix(mix(value)) == value


# -- keys ------------------------------------------------------------------------------------------------------------


def test_types_and_shapes() -> None:
    some = keys(count=7)
    assert some.dtype == torch.int64
    assert some.shape == (7,)
    assert 0 <= some.min() <= some.max() <= MASK
    for draw in (draws.uniform, draws.normal, draws.gumbel):
        assert draw(some, 3, 5).dtype == torch.float32
        assert draw(some, 3, 5).shape == (7, 5)
        assert draw(some[:0], 3, 5).shape == (0, 5)


@pytest.mark.parametrize("draw", [draws.uniform, draws.normal, draws.gumbel])
def test_a_draw_depends_on_its_key_alone(draw: Draw) -> None:
    """Not on the batch, its order, its size, what was drawn before, or how many columns are drawn beside it."""
    everyone = draw(keys(seed=3, epoch=5, count=1000), 2, 4)
    batch = torch.randperm(1000, generator=torch.Generator().manual_seed(0))[:64]
    batch_keys = draws.sample_keys(3, torch.tensor(5), batch)
    assert torch.equal(draw(batch_keys, 2, 4), everyone[batch])
    assert torch.equal(draw(batch_keys[:1], 2, 4), everyone[batch[:1]])
    assert torch.equal(draw(batch_keys, 2, 2), everyone[batch][:, :2])
    torch.manual_seed(7)
    assert torch.equal(draw(batch_keys, 2, 4), everyone[batch])


def test_no_sample_shares_a_key_within_an_epoch() -> None:
    assert len(keys(seed=1, epoch=2, count=2**20).unique()) == 2**20


def test_keys_of_epochs_and_seeds_coincide_no_more_and_no_less_than_chance() -> None:
    """Keys of 32 bits must meet now and then; as many as chance has it, and not one epoch shifted against another."""
    count = 2**18
    groups = [keys(seed, epoch, count) for seed in range(4) for epoch in range(3)]
    pairs = len(groups) * (len(groups) - 1) / 2
    coincidences = len(groups) * count - len(torch.cat(groups).unique())
    expected = pairs * count**2 / 2**32
    assert abs(coincidences - expected) < 5 * math.sqrt(expected)


# -- distributions -----------------------------------------------------------------------------------------------------


def test_uniform_is_uniform() -> None:
    found = draws.uniform(keys(), 0, 4).double().numpy().ravel()
    assert 0 < found.min() < found.max() < 1
    limit = stats.norm.isf(RARE)
    assert abs(found.mean() - 1 / 2) < limit * math.sqrt(1 / 12 / found.size)
    assert abs(found.var() - 1 / 12) < limit * math.sqrt(1 / 180 / found.size)
    assert stats.kstest(found, "uniform").pvalue > RARE


@pytest.mark.parametrize("seed,epoch,stream", [(0, 0, 0), (0, 999, 0), (12345, 1, 11), (2**31 - 1, 7, 40), (-1, 0, 1)])
def test_every_column_is_uniform(seed: int, epoch: int, stream: int) -> None:
    found = draws.uniform(keys(seed, epoch), stream, 6).double().numpy()
    for column in found.T:
        assert stats.kstest(column, "uniform").pvalue > RARE
    for row in draws.uniform(keys(seed, epoch, count=4), stream, N).double().numpy():  # one sample, many columns
        assert stats.kstest(row, "uniform").pvalue > RARE


def test_every_bit_is_fair() -> None:
    bits = (draws.uniform(keys(), 0, 1).squeeze(1).double() * 2**23 - 0.5).long()
    for place in range(23):
        ones = ((bits >> place) & 1).sum().item()
        assert abs(ones - N / 2) < stats.norm.isf(RARE) * math.sqrt(N / 4)


@pytest.mark.parametrize("bits,wanted", [(0, 2.0**-24), (MASK, 1 - 2.0**-24)], ids=["smallest", "largest"])
def test_the_ends_are_open(bits: int, wanted: float) -> None:
    """The key whose hash has no bit set, and the one with all: the two draws closest to 0 and 1."""
    stream = 3
    row = (unmix(bits) - mix(1)) & MASK
    key = torch.tensor([(unmix(row) - (stream + 1) * 0x85EBCA6B) & MASK])
    assert draws.uniform(key, stream, 1).item() == wanted
    assert draws.gumbel(key, stream, 1).item() == pytest.approx(-math.log(-math.log(wanted)), rel=1e-5)
    assert math.isfinite(draws.normal(key, stream, 1).item())


@pytest.mark.parametrize(
    "draw,law", [(draws.normal, stats.norm), (draws.gumbel, stats.gumbel_r)], ids=["normal", "gumbel"]
)
def test_normal_and_gumbel(draw: Draw, law: stats.rv_continuous) -> None:
    found = draw(keys(), 5, 4).double().numpy()
    assert stats.kstest(found.ravel(), law.cdf).pvalue > RARE
    mean, variance, kurtosis = (float(value) for value in law.stats(moments="mvk"))
    limit = stats.norm.isf(RARE)
    assert abs(found.mean() - mean) < limit * math.sqrt(variance / found.size)
    assert abs(found.var() - variance) < limit * variance * math.sqrt((kurtosis + 2) / found.size)
    tail = law.isf(1e-4)  # KS is blind there
    assert abs((found > tail).sum() - found.size * 1e-4) < limit * math.sqrt(found.size * 1e-4)
    for one, two in itertools.combinations(range(4), 2):
        independent(law.cdf(found[:, one]), law.cdf(found[:, two]))


# -- independence ------------------------------------------------------------------------------------------------------


def independent(one: NDArray[np.float64], two: NDArray[np.float64]) -> None:
    """Neither a line nor a pattern in the square: correlation, and chi-square on an 8 x 8 grid."""
    assert abs(np.corrcoef(one, two)[0, 1]) < stats.norm.isf(RARE) / math.sqrt(one.size)
    cells = np.bincount(np.int64(one * 8) * 8 + np.int64(two * 8), minlength=64)
    assert stats.chisquare(cells).pvalue > RARE


@pytest.mark.parametrize("lag", [1, 2, 3, 10, 128, 256, 1024])
def test_neighbouring_samples_are_independent(lag: int) -> None:
    independent(numbers(), numbers(first=lag))


@pytest.mark.parametrize("first,second", [(0, 1), (1, 2), (5, 6), (0, 256), (998, 999)])
def test_epochs_seeds_and_streams_are_independent(first: int, second: int) -> None:
    independent(numbers(epoch=first), numbers(epoch=second))
    independent(numbers(seed=first), numbers(seed=second))
    independent(numbers(stream=first), numbers(stream=second))
    independent(numbers(seed=first, epoch=second), numbers(seed=second, epoch=first))
    independent(numbers(epoch=first), numbers(epoch=second, first=1))


@pytest.mark.parametrize("first,second", [(0, 1), (1, 2), (3, 7), (0, 32)])
def test_columns_are_independent(first: int, second: int) -> None:
    independent(numbers(column=first), numbers(column=second))
    independent(numbers(column=first), numbers(column=second, first=1))
    independent(numbers(column=first, stream=1), numbers(column=second))


def test_columns_of_one_sample_are_independent_of_its_neighbour() -> None:
    """Along the columns instead of along the samples: the noise added to one row tells nothing about the next."""
    rows = draws.uniform(keys(count=4), 0, N).double().numpy()
    for one, two in itertools.combinations(rows, 2):
        independent(one, two)
    for lag in (1, 2, 64):
        independent(rows[0][:-lag], rows[0][lag:])
