"""Batches: the same samples in the same order from memory and from disk, from wherever an epoch is taken up."""

import itertools
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from small_runs import images_of, pictures, rows
from twincluster.data import Feed, Images
from twincluster.data import batches as feed_module

CPU = torch.device("cpu")
Taken = list[tuple[Tensor, Tensor]]


def make(images: Images, batch_size: int = 8, seed: int = 0, resident: bool = False) -> Feed:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_module, "_fits", lambda images, device: resident)
        return Feed(images, batch_size, seed, CPU)


def take(feed: Feed, epoch: int = 0, start: int = 0) -> Taken:
    """Copies of what the buffers held, batch after batch."""
    return [(feed.samples.clone(), feed.images.clone()) for _ in feed.epoch(epoch, start)]


def assert_same(one: Taken, two: Taken) -> None:
    assert len(one) == len(two) > 0
    for (samples, images), (others, other_images) in zip(one, two, strict=True):
        assert torch.equal(samples, others)
        assert torch.equal(images, other_images)


def strange_arrays(tmp_path: Path) -> dict[str, NDArray[Any]]:
    """Arrays that do not lie in memory as one block that may be written to."""
    colour, _ = pictures(28)
    np.save(tmp_path / "images.npy", colour)
    return {
        "memory-mapped": np.load(tmp_path / "images.npy", mmap_mode="r"),
        "grey": colour[..., 0],
        "oblong": colour[:, :6],
        "with alpha": np.concatenate([colour, colour[..., :1]], axis=-1),
        "backwards": colour[::-1],
        "transposed": colour.transpose(0, 2, 1, 3),
        "rows": rows(28),
        "backward rows": rows(28)[::-1, ::2],
    }


# -- order -----------------------------------------------------------------------------------------------------------


def test_an_epoch_shows_each_sample_once_but_for_the_rest() -> None:
    feed = make(images_of(pictures(28)[0]))
    assert feed.steps_per_epoch == 3
    seen = set()
    for epoch in range(6):
        samples = torch.cat([batch for batch, _ in take(feed, epoch)]).tolist()
        assert len(samples) == len(set(samples)) == 24
        seen |= set(samples)
    assert seen == set(range(28))  # the rest of one epoch comes in another


def test_order_depends_on_seed_and_epoch_alone() -> None:
    images = images_of(pictures(28)[0])
    orders = {(seed, epoch): make(images, seed=seed).order(epoch).tolist() for seed in (0, 1, 7) for epoch in (0, 1, 9)}
    assert all(sorted(order) == list(range(28)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 9
    torch.manual_seed(5)
    state = torch.get_rng_state()
    other = make(images, batch_size=3, seed=7, resident=True)
    take(other, 4)
    assert other.order(9).tolist() == orders[7, 9]
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("seed", [-1, 2**31 - 1, 2**63 - 1])
def test_any_seed_will_do(seed: int) -> None:
    feed = make(images_of(pictures(28)[0]), seed=seed)
    assert sorted(feed.order(3).tolist()) == list(range(28))


@pytest.mark.parametrize("resident", [False, True])
def test_an_epoch_can_be_taken_up_anywhere(resident: bool) -> None:
    feed = make(images_of(pictures(100)[0]), resident=resident)
    whole = take(feed, 2)
    assert len(whole) == 12
    for start in range(12):
        assert_same(take(feed, 2, start), whole[start:])
    assert take(feed, 2, 12) == []


@pytest.mark.parametrize("resident", [False, True])
@pytest.mark.parametrize(("n", "sizes"), [(28, [8, 8, 6, 6]), (25, [8, 8, 5, 4]), (24, [8, 8, 8]), (9, [5, 4])])
def test_the_whole_set_leaves_out_nothing(n: int, sizes: list[int], resident: bool) -> None:
    images = images_of(pictures(n)[0])
    feed = make(images, resident=resident)
    batches = list(feed.whole(3))
    assert [len(samples) for samples, _ in batches] == sizes
    assert torch.cat([samples for samples, _ in batches]).tolist() == feed.order(3).tolist()
    for samples, pixels in batches:
        assert torch.equal(pixels, torch.as_tensor(images.pixels)[samples])


# -- the two paths ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [1, 8, 28])
def test_both_paths_fill_the_same_buffers(tmp_path: Path, batch_size: int) -> None:
    for name, array in strange_arrays(tmp_path).items():
        images = images_of(array)
        resident, streamed = (make(images, batch_size, resident=path) for path in (True, False))
        buffers = [(feed.samples.data_ptr(), feed.images.data_ptr()) for feed in (resident, streamed)]
        for epoch in range(2):
            assert_same(take(resident, epoch), take(streamed, epoch))
        # a captured graph reads these very buffers
        assert [(feed.samples.data_ptr(), feed.images.data_ptr()) for feed in (resident, streamed)] == buffers, name


@pytest.mark.parametrize("resident", [False, True])
def test_images_belong_to_their_samples(tmp_path: Path, resident: bool) -> None:
    for name, array in strange_arrays(tmp_path).items():
        images = images_of(array)
        for samples, batch in take(make(images, resident=resident)):
            assert np.array_equal(batch.numpy(), images.pixels[samples.numpy()]), name
            assert batch.dtype == (torch.float32 if images.is_rows else torch.uint8)


@pytest.mark.parametrize("resident", [False, True])
def test_unusable_rows_are_never_drawn(resident: bool) -> None:
    array, _ = pictures(40)
    usable = np.flatnonzero(np.arange(40) % 4)
    array[::4] = 255
    feed = make(images_of(array, usable), resident=resident)
    assert feed.n_samples == 30
    only_usable = make(images_of(array[usable]), resident=resident)
    for epoch in range(3):
        batches = take(feed, epoch)
        assert all((batch != 255).any(dim=(1, 2, 3)) for _, images in batches for batch in images.split(1))
        assert_same(batches, take(only_usable, epoch))  # samples count the usable rows


def test_a_cpu_reads_the_map_itself() -> None:
    assert not feed_module._fits(images_of(pictures(28)[0]), CPU)


def test_a_gpu_takes_what_fits_into_half_of_its_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    images = images_of(pictures(28)[0])
    for free, fits in ((2 * images.pixels.nbytes + 2, True), (2 * images.pixels.nbytes, False)):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, free=free: (free, 10**12))
        assert feed_module._fits(images, torch.device("cuda")) is fits


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_cuda_device_sees_what_the_cpu_sees() -> None:
    images = images_of(pictures(60)[0])
    on_device = Feed(images, 8, 0, torch.device("cuda"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feed_module, "_fits", lambda images, device: False)
        pinned = Feed(images, 8, 0, torch.device("cuda"))
    wanted = take(make(images))
    for feed in (on_device, pinned):
        assert feed.images.is_cuda
        assert_same([(samples.cpu(), batch.cpu()) for samples, batch in take(feed)], wanted)


# -- reading ahead ---------------------------------------------------------------------------------------------------


def test_only_a_few_batches_are_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = make(images_of(pictures(200)[0]))
    fill, counter = feed_module._Buffer.fill, itertools.count(1)
    started = 0

    def counted(buffer: feed_module._Buffer, pixels: NDArray[Any], part: NDArray[np.int64]) -> Tensor:
        nonlocal started
        started = next(counter)
        return fill(buffer, pixels, part)

    monkeypatch.setattr(feed_module._Buffer, "fill", counted)
    for taken, _ in enumerate(feed.epoch(0), start=1):
        assert taken <= started <= taken + feed_module.READ_AHEAD
    assert started == feed.steps_per_epoch == 25


def test_an_epoch_that_is_broken_off_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    feed = make(images_of(pictures(100)[0]))
    for _ in feed.epoch(0):
        break
    assert set(threading.enumerate()) <= before
    assert len(take(feed, 1)) == 12


def test_a_failure_to_read_reaches_the_trainer() -> None:
    images = images_of(pictures(28)[0])
    feed = make(replace(images, usable=np.arange(5, 33)))  # beyond the end, as if the file had been cut short
    with pytest.raises(IndexError):
        take(feed)
