"""Means and deviations of the data, which its network is built with."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from small_runs import images_of, pictures, rows
from twincluster import resolve as derive
from twincluster.config import make_config
from twincluster.core import InputError
from twincluster.data import listing
from twincluster.resolve import data_shape, resolve


def shape_of(array: NDArray[Any], usable: NDArray[np.int64] | None = None) -> derive.DataShape:
    images = images_of(array, usable)
    return data_shape(resolve(make_config({"n_clusters": 2}), images), images)


def test_statistics_of_images_are_per_channel_and_from_0_to_1() -> None:
    array, _ = pictures(30)
    shape = shape_of(array)
    assert (shape.n_samples, shape.side, shape.n_inputs) == (30, 8, 3)
    for channel in range(3):
        values = [value / 255 for value in array[..., channel].ravel().tolist()]
        mean = sum(values) / len(values)
        assert shape.mean[channel] == pytest.approx(mean, rel=1e-6)
        variance = sum((value - mean) ** 2 for value in values) / len(values)
        assert shape.std[channel] == pytest.approx(variance**0.5, rel=1e-6)


def test_statistics_of_rows_are_per_feature() -> None:
    array = rows(40, 7)
    array[:, 3] += 30_000  # far from 0, where float32 sums are coarse
    shape = shape_of(array)
    assert (shape.n_samples, shape.side, shape.n_inputs) == (40, 0, 7)
    assert shape.mean == pytest.approx(array.astype(float).mean(0).tolist(), rel=1e-6)
    assert shape.std == pytest.approx(array.astype(float).std(0).tolist(), rel=1e-6)


def test_a_constant_channel_or_feature_is_not_divided_by_zero() -> None:
    array, _ = pictures(30)
    array[..., 1] = 77
    shape = shape_of(array)
    assert shape.std[1] == 1
    assert shape.mean[1] == pytest.approx(77 / 255)
    assert max(shape.std[0], shape.std[2]) < 0.5
    table = rows(30)
    table[:, 2] = -0.3
    shape = shape_of(table)
    assert shape.std[2] == 1
    assert shape.mean[2] == pytest.approx(-0.3)


@pytest.mark.parametrize("unit", [1e-3, 1e-9, 1e-20])
def test_rows_of_small_numbers_are_standardised_too(unit: float) -> None:
    array = rows(40, 7).astype(float) * unit
    array[:, 3] = 5 * unit
    array[:, 5] *= 1e-14  # beside the others rounding errors
    array[:, 6] *= 1e-8  # in another unit, as capacitances beside lengths
    std = shape_of(array.astype(np.float32)).std
    assert (std[3], std[5]) == (1, 1)
    assert [std[at] for at in (0, 1, 2, 4, 6)] == pytest.approx(array.std(0)[[0, 1, 2, 4, 6]].tolist(), rel=1e-5)


def test_small_features_of_an_encoder_count_as_constant() -> None:
    """A unit that hardly ever answers is no smaller unit of measurement."""
    array = rows(40, 7)
    array[:, 5] *= 1e-9
    images = images_of(array)
    config = resolve(make_config({"n_clusters": 2}), images)
    encoded = dataclasses.replace(config, train=dataclasses.replace(config.train, encoder="pretrained"))
    assert data_shape(config, images).std[5] != 1
    assert data_shape(encoded, images).std[5] == 1


SECONDS = 1_700_000_000 + 10 * (np.arange(40) % 2)  # since 1970


@pytest.mark.parametrize("kind", [np.float64, np.int64, np.int32])
def test_a_column_that_single_precision_would_blur_is_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "CELLS_AT_ONCE", 14)  # seven rows
    array = np.stack([np.arange(40), SECONDS], axis=1).astype(kind)
    with pytest.raises(InputError, match=r"column 1 \(1700000000 to 1700000010\) differ too little"):
        shape_of(array)
    array[:, 1] -= array[:, 1].min()
    assert shape_of(array).std[1] == 5


@pytest.mark.parametrize(
    "column",
    [
        100_000 * SECONDS.astype(np.float64) % 3e9,  # over decades
        SECONDS.astype(np.float32).astype(np.float64),  # blurred by whoever made it
        1 / 3 + 1e-16 * (np.arange(40) % 3),  # rounding errors of float64 ...
        np.float32(1 / 3) + np.float32(1e-7) * (np.arange(40) % 3).astype(np.float32),  # ... and of float32
        np.full(40, 1.7e9 + 0.1),
    ],
)
def test_a_column_in_which_nothing_is_lost_is_taken(column: np.ndarray) -> None:
    shape_of(np.stack([np.arange(40), column], axis=1).astype(np.float64))


def test_only_usable_rows_count() -> None:
    array, _ = pictures(30)
    usable = np.arange(0, 30, 3)
    array[1::3] = 255
    shape, wanted = shape_of(array, usable), shape_of(array[usable])
    assert shape == wanted
    assert shape.n_samples == 10


def test_sums_over_many_pixels_lose_no_digits() -> None:
    """A float32 sum of millions of pixels is off, and of hundreds of millions no longer grows at all."""
    array = np.random.default_rng(0).integers(0, 256, (400, 64, 64, 3), dtype=np.uint8)
    shape = shape_of(array)
    assert shape.mean == pytest.approx(
        (array.sum((0, 1, 2), dtype=np.int64) / (400 * 64 * 64) / 255).tolist(), rel=1e-9
    )
    assert shape.std == pytest.approx((array / 255).std((0, 1, 2)).tolist(), rel=1e-9)


def test_large_data_is_sampled_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive, "STATISTICS_SAMPLE", 50)
    monkeypatch.setattr(derive, "STATISTICS_PIXELS", 500)
    array = np.zeros((1000, 4, 4, 3), dtype=np.uint8)
    array[500:] = 200  # a sample of the first rows alone would be black
    shape = shape_of(array)
    assert shape.n_samples == 1000
    assert shape.mean == pytest.approx((100 / 255,) * 3)
    assert shape.std == pytest.approx((100 / 255,) * 3)
