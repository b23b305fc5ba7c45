"""From draws to parameters, and what holds for whole views, of images and of rows."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from augmenting import EVERYTHING, MEAN, NO_MEAN, NO_STD, NOTHING, SIZES, STD, close, draws, photos
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from twincluster.config import Augment
from twincluster.data import batches as ours

# From draws to parameters


def test_probabilities_hit_their_share() -> None:
    n = 40_000
    settings = Augment(grey=0.2, jitter=0.8, flip=0.5, blur=0.3, solarise=0.1)
    choice = ours.parameters(draws(n), settings, 32, 32)
    shares = {
        "grey": (choice.grey, 0.2),
        "flip": (choice.flip, 0.5),
        "jitter": (choice.brightness != 1, 0.8),
        "blur": (choice.sigma >= 0.1, 0.3),
        "solarise": (choice.threshold < 1, 0.1),
    }
    for name, (hit, share) in shares.items():
        assert abs(hit.float().mean().item() - share) < 5 * math.sqrt(share * (1 - share) / n), name
    off = choice.brightness == 1
    assert all((values[off] == 1).all() for values in (choice.contrast, choice.saturation))
    assert (choice.hue[off] == 0).all()


@pytest.mark.parametrize("height, width", [(8, 8), (32, 32), (40, 24), (20, 100)])
def test_parameters_stay_within_their_ranges(height: int, width: int) -> None:
    settings = Augment(brightness=0.4, contrast=1.5, saturation=0.2, hue=0.4, rotate=10.0, blur=1.0)
    extremes = torch.tensor([0.0, 1 - 2**-24])[(draws(500, seed=1) < 0.5).long()]
    choice = ours.parameters(torch.cat([draws(5000), extremes]), settings, height, width)
    top, left, tall, wide = choice.box.unbind(1)
    assert min(top.min(), left.min()) >= 0
    assert min(tall.min(), wide.min()) >= 1
    assert (top + tall).max() <= height * (1 + 1e-6)
    assert (left + wide).max() <= width * (1 + 1e-6)
    bounds = [
        (choice.brightness, 0.6, 1.4),
        (choice.contrast, 0.0, 2.5),  # a factor is never negative
        (choice.saturation, 0.8, 1.2),
        (choice.hue, -0.4, 0.4),
        (choice.angle, -10.0, 10.0),
        (choice.sigma, 0.1, 2.0),
    ]
    for values, low, high in bounds:
        slack = 1e-6 * max(1.0, abs(low), abs(high))
        assert low - slack <= values.min() < low + 0.05 * (high - low)
        assert high - 0.05 * (high - low) < values.max() <= high + slack


def test_crops_have_uniform_area_and_log_uniform_ratio_where_they_fit() -> None:
    settings = Augment(crop_area=(0.2, 0.5), crop_ratio=(0.75, 4 / 3))  # up to half the area every ratio fits
    choice = ours.parameters(draws(20_000), settings, 32, 32)
    top, left, tall, wide = choice.box.unbind(1)
    uniform = {
        "area": (tall * wide / 32**2 - 0.2) / 0.3,
        "ratio": (torch.log(wide / tall) - math.log(0.75)) / math.log(16 / 9),
        "top": top / (32 - tall),
        "left": left / (32 - wide),
    }
    for name, values in uniform.items():
        distance = (values.sort().values - torch.linspace(0, 1, len(values))).abs().max()
        assert distance < 0.015, name  # Kolmogorov-Smirnov: beyond 1.95 / sqrt(20,000) at a level of .001


def test_each_draw_decides_one_thing() -> None:
    settings = dataclasses.replace(EVERYTHING, grey=0.3)
    low = torch.full((1, ours.N_DRAWS), 0.25)  # below every probability; .9 is above
    before = ours.parameters(low, settings, 32, 32)
    decided: Counter[tuple[str, ...]] = Counter()
    for column in range(ours.N_DRAWS):
        after = ours.parameters(low.index_fill(1, torch.tensor([column]), 0.9), settings, 32, 32)
        decided[
            tuple(name for name in before._fields if not torch.equal(getattr(before, name), getattr(after, name)))
        ] += 1
    jitter = ("brightness", "contrast", "saturation", "hue")
    single = {(name,): 1 for name in (*jitter, "flip", "angle", "grey", "threshold")}
    assert decided == {("box",): 4, ("sigma",): 2, ("hole",): 2, jitter: 1, **single}


# What holds for a view


@pytest.mark.parametrize("settings", [Augment(), EVERYTHING, NOTHING], ids=["paper", "everything", "nothing"])
@pytest.mark.parametrize("height, width, side", SIZES)
def test_views_are_reproducible_and_independent_of_the_batch(
    settings: Augment, height: int, width: int, side: int
) -> None:
    images, numbers = photos(12, height, width), draws(12)
    untouched = images.clone()
    view = ours.augment_images(images, numbers, settings, side, MEAN, STD)
    assert view.shape == (12, 3, side, side)
    assert view.dtype == torch.float32
    assert torch.equal(images, untouched)
    assert torch.equal(view, ours.augment_images(images, numbers, settings, side, MEAN, STD))
    order = torch.randperm(12, generator=torch.Generator().manual_seed(2))[:7]
    close(ours.augment_images(images[order], numbers[order], settings, side, MEAN, STD), view[order])


def test_different_draws_give_different_views() -> None:
    images = photos(1, 32, 32).expand(16, 32, 32, 3)
    views = ours.augment_images(images, draws(16), Augment(), 32, MEAN, STD)
    assert torch.pdist(views.flatten(1)).min() > 1


@pytest.mark.parametrize("settings", [Augment(), EVERYTHING], ids=["paper", "everything"])
@pytest.mark.parametrize("number", [0.0, 2**-24, 1 - 2**-24])
def test_extreme_draws_give_finite_pixels_within_range(settings: Augment, number: float) -> None:
    for images in (
        photos(4, 32, 32),
        photos(4, 8, 20),
        torch.zeros(2, 8, 8, 3).byte(),
        torch.full((2, 8, 8, 3), 255).byte(),
    ):
        numbers = torch.full((len(images), ours.N_DRAWS), number)
        view = ours.augment_images(images, numbers, settings, 16, NO_MEAN, NO_STD)
        assert view.isfinite().all()
        assert view.min() >= -1e-6
        assert view.max() <= 1 + 1e-6


def test_grey_images_stay_grey_through_every_step() -> None:
    settings = dataclasses.replace(EVERYTHING, grey=1.0)
    view = ours.augment_images(photos(16, 32, 32), draws(16), settings, 32, NO_MEAN, NO_STD)
    close(view, view[:, :1].expand_as(view))
    assert view.std() > 0.05


def test_nothing_switched_on_is_the_plain_image() -> None:
    images = photos(4, 32, 24)
    for side in (16, 32):
        expected = ours.plain_images(images, side, MEAN, STD)
        assert torch.equal(ours.augment_images(images, draws(4), NOTHING, side, MEAN, STD), expected)
        flipped = dataclasses.replace(NOTHING, flip=1.0)
        assert torch.equal(ours.augment_images(images, draws(4), flipped, side, MEAN, STD), expected.flip(-1))


@pytest.mark.parametrize("settings", [Augment(), EVERYTHING, NOTHING], ids=["paper", "everything", "nothing"])
def test_compiles_without_graph_breaks(settings: Augment) -> None:
    def view(images: Tensor, numbers: Tensor) -> Tensor:
        return ours.augment_images(images, numbers, settings, 16, MEAN, STD)

    images, numbers = photos(4, 16, 16), draws(4)
    compiled = torch.compile(view, fullgraph=True, backend="eager", dynamic=False)
    close(compiled(images, numbers), view(images, numbers))


@pytest.mark.parametrize("settings", [Augment(), EVERYTHING, NOTHING], ids=["paper", "everything", "nothing"])
def test_never_waits_for_the_device(settings: Augment) -> None:
    # Pretended tensors have no values: reading one on the host, or mixing devices, is an error.
    with FakeTensorMode():
        images = torch.empty(4, 24, 24, 3, dtype=torch.uint8, device="cuda")
        numbers, mean, std = (torch.empty(shape, device="cuda") for shape in [(4, ours.N_DRAWS), (3,), (3,)])
        view = ours.augment_images(images, numbers, settings, 16, mean, std)
        assert view.device.type == ours.plain_images(images, 16, mean, std).device.type == "cuda"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("settings", [Augment(), EVERYTHING, NOTHING], ids=["paper", "everything", "nothing"])
def test_cuda_graph_gives_the_views_of_the_cpu(settings: Augment) -> None:
    images, first, second = photos(16, 32, 32), draws(16, seed=0), draws(16, seed=1)
    pixels, numbers, mean, std = (value.cuda() for value in (images, first, MEAN, STD))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):  # warm up off the default stream, as a capture demands
        ours.augment_images(pixels, numbers, settings, 32, mean, std)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        view = ours.augment_images(pixels, numbers, settings, 32, mean, std)
    numbers.copy_(second)
    graph.replay()
    expected = ours.augment_images(images, second, settings, 32, MEAN, STD)
    # A pixel beside the threshold of solarise may fall on either side of it.
    assert ((view.cpu() - expected).abs() > 1e-3).float().mean() < 1e-4


# Rows


def test_rows_get_noise_of_the_chosen_size_and_lose_the_chosen_share() -> None:
    random = torch.Generator().manual_seed(3)
    rows = torch.randn(2000, 40, generator=random) + 10  # far from zero, so that a zero is a dropped feature
    normal = torch.randn(2000, 40, generator=random)
    numbers = torch.rand(2000, 40, generator=random)
    view = ours.augment_rows(rows, normal, numbers, Augment(noise=0.3, dropout=0.1))
    kept = view != 0
    assert abs((~kept).float().mean().item() - 0.1) < 0.006
    added = (view - rows)[kept]
    assert abs(added.std().item() - 0.3) < 0.005
    assert abs(added.mean().item()) < 0.005
    assert torch.equal(kept, numbers >= 0.1)


def test_rows_without_noise_and_dropout_are_unchanged() -> None:
    rows = torch.arange(15.0).view(5, 3)
    assert torch.equal(ours.augment_rows(rows, rows, torch.zeros(5, 3), Augment(noise=0.0, dropout=0.0)), rows)
