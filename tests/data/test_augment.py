"""Every operation against torchvision's, image by image on the same parameters."""

import dataclasses

import pytest
import torch
from augmenting import EVERYTHING, MEAN, SIZES, STD, close, draws, photos, planes
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as tv

from twincluster.data import batches as ours


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


@pytest.mark.parametrize("side,grey_last", [(16, False), (32, False), (32, True)])
def test_a_whole_view_agrees_with_torchvision_step_by_step(side: int, grey_last: bool) -> None:
    settings = dataclasses.replace(EVERYTHING, rotate=0.0, grey_last=grey_last)
    images = photos(32, 32, 32)
    choice = ours.parameters(draws(32), settings, 32, 32)
    actual = ours.augment_images(images, draws(32), settings, side, MEAN, STD)
    cropped = ours.crop(images, choice.box, torch.zeros(32, dtype=torch.bool), None, side)  # checked above
    for i in range(32):
        view = tv.rgb_to_grayscale(cropped[i], 3) if choice.grey[i] and not grey_last else cropped[i]
        view = tv.adjust_brightness(view, choice.brightness[i].item())
        view = tv.adjust_contrast(view, choice.contrast[i].item())
        view = tv.adjust_saturation(view, choice.saturation[i].item())
        view = tv.adjust_hue(view, choice.hue[i].item())
        view = tv.rgb_to_grayscale(view, 3) if choice.grey[i] and grey_last else view
        view = tv.gaussian_blur(view, [13, 13], [choice.sigma[i].item()]) if choice.sigma[i] else view
        undecided = (view - 0.5).abs() < 1e-5  # rounding may put these on either side of the threshold
        view = tv.solarize(view, 0.5) if choice.threshold[i] < 1 else view
        view = tv.horizontal_flip(view) if choice.flip[i] else view
        undecided = tv.horizontal_flip(undecided) if choice.flip[i] else undecided
        expected = tv.normalize(view, MEAN.tolist(), STD.tolist())
        expected = ours.hide(expected[None], choice.hole[i : i + 1], settings.hole)[0]  # checked above
        torch.testing.assert_close(actual[i][~undecided], expected[~undecided], rtol=0, atol=5e-5)
