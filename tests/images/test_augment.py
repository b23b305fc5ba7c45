"""Every operation against torchvision's, image by image on the same parameters; then what holds for whole views."""

import dataclasses
import math
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from twincluster.config import Augment
from twincluster.images import augment as ours

SIZES = [(8, 8, 16), (32, 32, 32), (96, 96, 64), (40, 24, 32)]  # height, width, side of the view
MEAN = torch.tensor([0.49, 0.48, 0.45])
STD = torch.tensor([0.25, 0.24, 0.26])
NO_MEAN, NO_STD = torch.zeros(3), torch.ones(3)  # standardised with these, a view keeps its pixels in [0, 1]
EVERYTHING = Augment(jitter=0.8, rotate=15.0, blur=0.5, solarise=0.3, hole=0.5)
NOTHING = Augment(crop_area=(1.0, 1.0), crop_ratio=(1.0, 1.0), grey=0.0, jitter=0.0, flip=0.0)


def photos(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Smooth colour fields with noise on top, uint8 (n,height,width,3), and a few black, white and primary pixels."""
    random = torch.Generator().manual_seed(seed)
    coarse = torch.rand(n, 3, 5, 5, generator=random) * 1.4 - 0.2
    smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic", align_corners=True)
    noisy = smooth + 0.05 * torch.randn(n, 3, height, width, generator=random)
    images = (noisy * 255).clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
    primary = torch.tensor([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [0, 255, 255]])
    images[:, 1, :6] = primary.to(torch.uint8)
    return images


def planes(images: Tensor) -> Tensor:  # uint8 (N,H,W,3) -> float32 (N,3,H,W) in [0,1]
    return images.permute(0, 3, 1, 2).float() / 255


def draws(n: int, seed: int = 0) -> Tensor:
    return torch.rand(n, ours.N_DRAWS, generator=torch.Generator().manual_seed(seed))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-5, check_stride=False)


# Parity, operation by operation


@pytest.mark.parametrize("height, width, side", SIZES)
def test_crop_agrees_with_resized_crop_on_whole_pixel_boxes(height: int, width: int, side: int) -> None:
    n = 24
    random = torch.Generator().manual_seed(1)
    tall = torch.randint(2, height + 1, (n,), generator=random)
    wide = torch.randint(2, width + 1, (n,), generator=random)
    tall[0], wide[0] = height, width
    top = (torch.rand(n, generator=random) * (height - tall + 1)).long()
    left = (torch.rand(n, generator=random) * (width - wide + 1)).long()
    flip = torch.arange(n) % 2 == 1
    images = photos(n, height, width)
    actual = ours.crop(images, torch.stack([top, left, tall, wide], 1).float(), flip, None, side)
    for i in range(n):
        at = [int(value[i]) for value in (top, left, tall, wide)]
        expected = tv.resized_crop(planes(images)[i], *at, [side, side], antialias=False)
        close(actual[i], tv.horizontal_flip(expected) if flip[i] else expected)


def test_crop_shows_nothing_beyond_its_box() -> None:
    images = torch.full((1, 12, 12, 3), 255, dtype=torch.uint8)
    images[:, 3:8, 2:9] = 0
    view = ours.crop(images, torch.tensor([[3.0, 2.0, 5.0, 7.0]]), torch.tensor([False]), None, 32)
    assert view.max() < 1e-5


@pytest.mark.parametrize("height, width, side", [(33, 33, 15), (64, 40, 20)])
def test_rotation_agrees_with_rotating_about_the_middle_of_the_box(height: int, width: int, side: int) -> None:
    # A box as large as the view needs no scaling, so torchvision's rotation followed by a cut samples the same points.
    images = photos(6, height, width)
    angle = torch.tensor([-90.0, -30.0, 0.0, 7.5, 45.0, 180.0])
    flip = torch.arange(6) % 2 == 0
    top, left = (height - side) // 2 + 3, (width - side) // 2 - 2
    box = torch.tensor([[top, left, side, side]]).float().expand(6, 4)
    actual = ours.crop(images, box, flip, angle, side)
    for i in range(6):
        middle = [left + side / 2, top + side / 2]
        turned = tv.rotate(planes(images)[i], angle[i].item(), InterpolationMode.BILINEAR, center=middle)
        expected = tv.crop(turned, top, left, side, side)
        close(actual[i], tv.horizontal_flip(expected) if flip[i] else expected)


def test_rotation_mirrors_what_lies_outside_the_image() -> None:
    images = photos(1, 16, 16)
    whole = torch.tensor([[0.0, 0.0, 16.0, 16.0]])
    view = ours.crop(images, whole, torch.tensor([False]), torch.tensor([30.0]), 16)
    mirrored = planes(images)
    for axis in (2, 3):
        mirrored = torch.cat([mirrored.flip(axis), mirrored, mirrored.flip(axis)], axis)
    expected = tv.crop(tv.rotate(mirrored, 30.0, InterpolationMode.BILINEAR), 16, 16, 16, 16)
    close(view, expected)


@pytest.mark.parametrize("height, width, side", [*SIZES, (16, 48, 16)])
def test_plain_images_are_resized_with_antialiasing_and_standardised(height: int, width: int, side: int) -> None:
    images = photos(4, height, width)
    resized = tv.resize(planes(images), [side, side], antialias=True)
    close(ours.resize(images, side), resized)
    close(ours.plain_images(images, side, MEAN, STD), tv.normalize(resized, MEAN.tolist(), STD.tolist()))


OPERATIONS = {
    "brightness": (ours.adjust_brightness, tv.adjust_brightness, [0.0, 0.6, 1.0, 1.4, 2.5]),
    "contrast": (ours.adjust_contrast, tv.adjust_contrast, [0.0, 0.6, 1.0, 1.4, 2.5]),
    "saturation": (ours.adjust_saturation, tv.adjust_saturation, [0.0, 0.6, 1.0, 1.4, 2.5]),
    "hue": (ours.adjust_hue, tv.adjust_hue, [-0.5, -0.4, -1 / 3, -0.1, 0.0, 1 / 6, 0.25, 0.4, 0.5]),
    "solarise": (ours.solarise, tv.solarize, [0.0, 0.3, 0.5, 1.0]),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("height, width", [(8, 8), (32, 32), (40, 24)])
def test_colour_operation_agrees_with_torchvision(name: str, height: int, width: int) -> None:
    batched, reference, amounts = OPERATIONS[name]
    pixels = planes(photos(len(amounts), height, width))
    actual = batched(pixels.clone(), torch.tensor(amounts))
    for i, amount in enumerate(amounts):
        close(actual[i], reference(pixels[i], amount))


def test_grey_agrees_with_torchvision_and_leaves_the_rest() -> None:
    pixels = planes(photos(4, 32, 32))
    chosen = torch.tensor([True, False, True, False])
    actual = ours.to_grey(pixels.clone(), chosen)
    close(actual[chosen], tv.rgb_to_grayscale(pixels[chosen], num_output_channels=3))
    assert torch.equal(actual[~chosen], pixels[~chosen])


@pytest.mark.parametrize("side, radius", [(8, 6), (32, 6), (40, 2)])
def test_blur_agrees_with_torchvision(side: int, radius: int) -> None:
    pixels = planes(photos(5, side, side))
    sigma = torch.tensor([0.1, 0.5, 1.0, 1.7, 2.0])
    actual = ours.blur(pixels.clone(), sigma, radius)
    for i in range(5):
        close(actual[i], tv.gaussian_blur(pixels[i], [2 * radius + 1] * 2, [sigma[i].item()]))


@pytest.mark.parametrize("side, size", [(32, 16), (32, 32), (9, 3)])
def test_hole_agrees_with_erasing_a_square(side: int, size: int) -> None:
    images = torch.randn(20, 3, side, side, generator=torch.Generator().manual_seed(2))
    corner = torch.randint(-size + 1, side, (20, 2), generator=torch.Generator().manual_seed(3))
    actual = ours.hide(images.clone(), (corner + size / 2) / side, size / side)
    for i, (top, left) in enumerate(corner.tolist()):
        bottom, right = min(top + size, side), min(left + size, side)
        top, left = max(top, 0), max(left, 0)
        expected = tv.erase(images[i], top, left, bottom - top, right - left, torch.zeros(()))
        close(actual[i], expected)


@pytest.mark.parametrize("side", [16, 32])
def test_a_whole_view_agrees_with_torchvision_step_by_step(side: int) -> None:
    settings = dataclasses.replace(EVERYTHING, rotate=0.0)
    images = photos(32, 32, 32)
    choice = ours.parameters(draws(32), settings, 32, 32)
    actual = ours.augment_images(images, draws(32), settings, side, MEAN, STD)
    cropped = ours.crop(images, choice.box, torch.zeros(32, dtype=torch.bool), None, side)  # checked above
    for i in range(32):
        view = tv.rgb_to_grayscale(cropped[i], 3) if choice.grey[i] else cropped[i]
        view = tv.adjust_brightness(view, choice.brightness[i].item())
        view = tv.adjust_contrast(view, choice.contrast[i].item())
        view = tv.adjust_saturation(view, choice.saturation[i].item())
        view = tv.adjust_hue(view, choice.hue[i].item())
        view = tv.gaussian_blur(view, [13, 13], [choice.sigma[i].item()]) if choice.sigma[i] else view
        undecided = (view - 0.5).abs() < 1e-5  # rounding may put these on either side of the threshold
        view = tv.solarize(view, 0.5) if choice.threshold[i] < 1 else view
        view = tv.horizontal_flip(view) if choice.flip[i] else view
        undecided = tv.horizontal_flip(undecided) if choice.flip[i] else undecided
        expected = tv.normalize(view, MEAN.tolist(), STD.tolist())
        expected = ours.hide(expected[None], choice.hole[i : i + 1], settings.hole)[0]  # checked above
        torch.testing.assert_close(actual[i][~undecided], expected[~undecided], rtol=0, atol=5e-5)


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
