"""Batches for the trainer, their augmentation, and probes that choose it.

Batches come from device memory if the data fits there, otherwise they are read ahead by threads. Both fill the same two
buffers with the same samples in the same order, so a run does not depend on which is used.

A batch is augmented as a whole, with separate parameters for every image: pure functions of pixels and uniform draws.
Nothing in a step draws, waits for the device or branches on data, so it can be compiled or captured in a CUDA graph.

Two probes look at the images before training. `left_differs_from_right` returns True if flipping could turn one kind of
object into another, as for digits, text and X-rays. `are_strokes` returns True for drawings, such as letters and
digits, on which training from scratch beats an encoder pretrained on photographs.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from twincluster.data.images import Images

if TYPE_CHECKING:
    from twincluster.config import Augment

# Shapes: N batch, H and W of the stored images, S side of a view, d features of a row.
# Between the crop and the standardisation, pixels are float32 in [0, 1] and (N,3,S,S). Each operation may overwrite its
# input: allocating memory for each would take a CPU 1.5 times as long.

DEVICE_SHARE = 0.5  # most of a GPU's free memory that the data may take
READ_AHEAD = 4  # batches


class Feed:
    """Fills `samples` (N,) and `images` (N,...) with one batch after another.

    `resident` keeps the images on the device; by default, a GPU does if they fit.
    """

    def __init__(
        self, images: Images, batch_size: int, seed: int, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.n_samples, self.batch_size, self.seed, self.device = len(images.usable), batch_size, seed, device
        self.steps_per_epoch = self.n_samples // batch_size  # the incomplete last batch is left out
        self._pixels, self._rows = images.pixels, images.usable
        self.samples = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.images = torch.zeros((batch_size, *images.pixels.shape[1:]), dtype=_dtype(images.pixels), device=device)
        resident = _fits(images, device) if resident is None else resident
        self._resident = self._to_device() if resident else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[None]:
        """Fill the buffers with each batch of an epoch, from step `start` on."""
        order = self.order(epoch)
        batches = torch.split(order.to(self.device), self.batch_size)[start : self.steps_per_epoch]
        if self._resident is not None:
            for batch in batches:
                self.samples.copy_(batch)
                torch.index_select(self._resident, 0, batch, out=self.images)
                yield
            return
        rows = [self._rows[batch.numpy()] for batch in torch.split(order, self.batch_size)]
        with closing(read_ahead(self._pixels, rows[start : self.steps_per_epoch], self.device)) as stream:
            for batch, images in zip(batches, stream, strict=True):
                self.samples.copy_(batch)
                self.images.copy_(images)
                yield

    def whole(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples and images of all data once, in the order of an epoch.

        If the last batch is incomplete, the last two are divided equally.
        """
        batches = list(torch.split(self.order(epoch), self.batch_size))
        if len(batches) > self.steps_per_epoch:
            batches[-2:] = torch.cat(batches[-2:]).chunk(2)
        if self._resident is not None:
            resident = self._resident
            yield from ((batch, resident[batch]) for batch in (batch.to(self.device) for batch in batches))
            return
        with closing(read_ahead(self._pixels, [self._rows[batch.numpy()] for batch in batches], self.device)) as stream:
            for batch, images in zip(batches, stream, strict=True):
                yield batch.to(self.device), images.clone()

    def order(self, epoch: int) -> Tensor:
        """Return the permutation of an epoch. It depends only on seed and epoch, not on the device."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.n_samples, generator=generator)

    def _to_device(self) -> Tensor:
        everything = np.array_equal(self._rows, np.arange(len(self._pixels)))
        pixels = np.ascontiguousarray(self._pixels if everything else self._pixels[self._rows])
        if self.device.type == "cpu" and pixels.flags.writeable:
            return torch.from_numpy(pixels)  # shares memory
        return torch.tensor(pixels, device=self.device)


def read_ahead(pixels: np.ndarray, parts: Sequence[np.ndarray], device: torch.device) -> Generator[Tensor, None, None]:
    """Yield the rows of `pixels` of each part, on the device. A result is valid until the next one is requested.

    Threads gather a few parts ahead into reused buffers. For a GPU these are pinned, and copied on a separate stream
    while the device computes on the previous part. The host waits only until a buffer is filled: when it is READ_AHEAD
    parts ahead of the device, or when the disk is slower than the device.
    """
    pixels, most = np.asarray(pixels), max(map(len, parts), default=0)
    buffers = [_Buffer(pixels, most, device) for _ in parts[:READ_AHEAD]]
    if not buffers:
        return
    landing = _Landing(buffers[0].content, device) if device.type == "cuda" else None
    gpu = torch.cuda.current_device() if landing else None
    with ThreadPoolExecutor(len(buffers), initializer=_begin_reading, initargs=(gpu,)) as readers:
        first = zip(buffers, parts[:READ_AHEAD], strict=True)
        waiting = deque((buffer, readers.submit(buffer.fill, pixels, part)) for buffer, part in first)
        for _, later in zip_longest(parts, parts[READ_AHEAD:]):
            buffer, filled = waiting.popleft()
            content = filled.result()
            yield landing.take(content, buffer) if landing else content
            if later is not None:
                waiting.append((buffer, readers.submit(buffer.fill, pixels, later)))


def _begin_reading(gpu: int | None) -> None:
    if gpu is not None:
        torch.cuda.set_device(gpu)  # otherwise the thread would initialise GPU 0 and take memory there


class _Buffer:
    """Host memory for one part."""

    def __init__(self, pixels: np.ndarray, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.content = torch.empty((rows, *pixels.shape[1:]), dtype=_dtype(pixels), pin_memory=on_gpu)
        self.copied = _event() if on_gpu else None  # recorded when the GPU has copied the content

    def fill(self, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
        """Gather rows into the buffer. Runs in a thread; both ways of copying release the GIL."""
        if self.copied is not None:
            self.copied.synchronize()
        content = self.content[: len(rows)]
        if pixels.flags.c_contiguous and len(rows):
            if rows.max() >= len(pixels):  # a truncated file; mode="clip" would repeat the last row
                raise IndexError(f"row {rows.max()} of {len(pixels)}")
            np.take(pixels, rows, axis=0, out=content.numpy(), mode="clip")  # other modes copy twice
        else:
            content.numpy()[...] = pixels[rows]  # np.take would copy the whole array first
        return content


class _Landing:
    """Two alternating buffers on a GPU: the device computes on one while a separate stream fills the other."""

    def __init__(self, like: Tensor, device: torch.device) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())  # it may still use the previous content of this memory
        self.places = deque((torch.empty_like(like, device=device), _event()) for _ in range(2))
        self.used: torch.cuda.Event | None = None  # of the buffer returned last

    def take(self, content: Tensor, buffer: _Buffer) -> Tensor:
        """Return the content on the device, valid on the current stream until the next call."""
        current = torch.cuda.current_stream()
        if self.used is not None:
            self.used.record(current)
        place, self.used = self.places[0]
        self.places.rotate(1)
        self.stream.wait_event(self.used)  # returns at once for an unused buffer
        with torch.cuda.stream(self.stream):
            landed = place[: len(content)].copy_(content, non_blocking=True)
            assert buffer.copied is not None, "buffers for a GPU have an event"
            buffer.copied.record(self.stream)
        current.wait_event(buffer.copied)
        return landed


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # blocking: waiting does not use the core


def _fits(images: Images, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # a CPU reads the memory map directly
    free, _ = torch.cuda.mem_get_info(device)
    return bool(images.pixels.nbytes < DEVICE_SHARE * free)


def _dtype(pixels: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, pixels.dtype)).dtype


N_DRAWS = 17  # uniform numbers per view of an image, one column per random choice


def augment_images(
    images: Tensor, draws: Tensor, settings: Augment, side: int, mean: Tensor, std: Tensor
) -> Tensor:  # images uint8 (N,H,W,3), draws (N,N_DRAWS) in [0,1), mean and std (3,) on the scale [0,1] -> (N,3,S,S)
    """Return an augmented, standardised view per image, in the paper's order: crop, grey, jitter, flip, standardise."""
    choice = parameters(draws, settings, images.shape[1], images.shape[2])
    # The crop also flips, which is equivalent: no later step distinguishes left from right.
    if _crops(settings) or settings.rotate:
        pixels = crop(images, choice.box, choice.flip, choice.angle if settings.rotate else None, side)
    else:
        pixels = resize(images, side)
        if settings.flip:
            pixels = torch.where(_per_image(choice.flip), pixels.flip(-1), pixels)
    if settings.grey and not settings.grey_last:
        pixels = to_grey(pixels, choice.grey)
    if settings.jitter:
        pixels = _jitter(pixels, choice, settings)
    if settings.grey and settings.grey_last:
        pixels = to_grey(pixels, choice.grey)
    if settings.blur:
        radius = min(math.ceil(3 * settings.blur_sigma[1]), side - 1)
        pixels = blur(pixels, choice.sigma, radius)
    if settings.solarise:
        pixels = solarise(pixels, choice.threshold)
    pixels = standardise(pixels, mean, std)
    return hide(pixels, choice.hole, settings.hole) if settings.hole else pixels


def plain_images(
    images: Tensor, side: int, mean: Tensor, std: Tensor, cubic: bool = False
) -> Tensor:  # uint8 (N,H,W,3) -> (N,3,S,S)
    """Return the images resized to a square and standardised, as for inference."""
    return standardise(resize(images, side, cubic), mean, std)


def augment_rows(rows: Tensor, normal: Tensor, draws: Tensor, settings: Augment) -> Tensor:  # all (N,d)
    """Add noise to rows of standardised features, then set some features to zero, their mean."""
    if settings.noise:
        rows = torch.add(rows, normal, alpha=settings.noise)
    if settings.dropout:
        rows = rows * (draws >= settings.dropout)  # not rescaled: this is augmentation, not a dropout layer
    return rows


class Parameters(NamedTuple):
    """The augmentation of a batch, one entry per image. Entries of steps that are off are not used."""

    box: Tensor  # (N,4) top, left, height, width in pixels, not rounded
    flip: Tensor  # (N,) bool
    angle: Tensor  # (N,) degrees, counter-clockwise
    grey: Tensor  # (N,) bool
    brightness: Tensor  # (N,) factors; 1 changes nothing
    contrast: Tensor
    saturation: Tensor
    hue: Tensor  # (N,) turns of the colour circle; 0 changes nothing
    sigma: Tensor  # (N,) pixels of the view; 0 changes nothing
    threshold: Tensor  # (N,) above 1 changes nothing
    hole: Tensor  # (N,2) centre of the hidden square, down and across, as shares of the side


def parameters(draws: Tensor, settings: Augment, height: int, width: int) -> Parameters:  # draws (N,N_DRAWS)
    """Map uniform draws to parameters. Only this function knows the meaning of the columns."""
    area, ratio, top, left, flip, angle = draws[:, :6].unbind(1)
    grey, jitter, light, contrast, colour, hue, blurs, sigma, solar = draws[:, 6:15].unbind(1)
    jitters = jitter < settings.jitter
    # Multiplied by a mask, so that an image without the step has exactly factor 1 or amount 0.
    return Parameters(
        box=_box(area, ratio, top, left, settings, height, width),
        flip=flip < settings.flip,
        angle=_between(angle, -settings.rotate, settings.rotate),
        grey=grey < settings.grey,
        brightness=1 + jitters * _between(light, -min(1.0, settings.brightness), settings.brightness),
        contrast=1 + jitters * _between(contrast, -min(1.0, settings.contrast), settings.contrast),
        saturation=1 + jitters * _between(colour, -min(1.0, settings.saturation), settings.saturation),
        hue=jitters * _between(hue, -settings.hue, settings.hue),
        sigma=(blurs < settings.blur) * _between(sigma, *settings.blur_sigma),
        threshold=2 - 1.5 * (solar < settings.solarise),
        hole=draws[:, 15:],
    )


def _between(draws: Tensor, low: float, high: float) -> Tensor:
    return low + (high - low) * draws


def _crops(settings: Augment) -> bool:
    return tuple(settings.crop_area) != (1, 1) or tuple(settings.crop_ratio) != (1, 1)


def _box(
    area: Tensor, ratio: Tensor, top: Tensor, left: Tensor, settings: Augment, height: int, width: int
) -> Tensor:  # draws (N,) each -> (N,4)
    """Return top, left, height and width of a crop with uniform area and log-uniform aspect ratio."""
    # differs from torchvision: sides that do not fit are clamped instead of drawn again up to ten times, and boxes are
    # not rounded to whole pixels, which would leave few different boxes on small images.
    if _crops(settings):
        pixels = height * width * _between(area, *settings.crop_area)
        low, high = settings.crop_ratio
        aspect = torch.exp(_between(ratio, math.log(low), math.log(high)))  # width over height
        tall = torch.sqrt(pixels / aspect).clamp(1, height)
        wide = torch.sqrt(pixels * aspect).clamp(1, width)
    else:
        tall, wide = torch.full_like(area, height), torch.full_like(area, width)
    return torch.stack([top * (height - tall), left * (width - wide), tall, wide], 1)


def crop(images: Tensor, box: Tensor, flip: Tensor, angle: Tensor | None, side: int) -> Tensor:
    """Sample the box of each uint8 image (N,H,W,3) bilinearly, rotated about its centre and then mirrored."""
    _, height, width, _ = images.shape
    top, left, tall, wide = (column[:, None] for column in box.unbind(1))  # (N,1)
    steps = (torch.arange(side, device=box.device) + 0.5) / side - 0.5  # (S,) from the centre of the box
    across = torch.where(flip[:, None], -steps, steps) * wide  # (N,S)
    down = steps * tall
    middle_x, middle_y = left + (wide - 1) / 2, top + (tall - 1) / 2  # pixel centres count from 0
    if angle is None:
        # Clamped to the box, so that a crop shows nothing outside it.
        x = (middle_x + across).clamp(left, left + wide - 1)[:, None, :]  # (N,1,S)
        y = (middle_y + down).clamp(top, top + tall - 1)[:, :, None]  # (N,S,1)
    else:
        radians = torch.deg2rad(angle)[:, None, None]
        cos, sin = torch.cos(radians), torch.sin(radians)
        x = middle_x[:, :, None] + cos * across[:, None, :] - sin * down[:, :, None]  # (N,S,S)
        y = middle_y[:, :, None] + sin * across[:, None, :] + cos * down[:, :, None]
    x, y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1  # the sampler's coordinates: the image spans [-1, 1]
    grid = torch.stack([x.expand(-1, side, side), y.expand(-1, side, side)], -1)
    planes = images.permute(0, 3, 1, 2).float()  # keeps the channels-last layout, which the sampler reads directly
    corners = "border" if angle is None else "reflection"  # only a rotated box reaches outside the image
    sampled = F.grid_sample(planes, grid, padding_mode=corners, align_corners=False)
    return sampled.mul_(1 / 255)


def resize(images: Tensor, side: int, cubic: bool = False) -> Tensor:  # uint8 (N,H,W,3) -> (N,3,S,S)
    """Resize whole images to a square, bilinearly and antialiased."""
    planes = images.permute(0, 3, 1, 2).float().mul_(1 / 255)
    if planes.shape[2:] == (side, side):
        return planes
    if cubic:  # which overshoots at edges
        return F.interpolate(planes, (side, side), mode="bicubic", align_corners=False, antialias=True).clamp_(0, 1)
    return F.interpolate(planes, (side, side), mode="bilinear", align_corners=False, antialias=True)


def to_grey(images: Tensor, grey: Tensor) -> Tensor:  # grey (N,) bool
    """Replace the colours of the chosen images by their luminance."""
    return images.lerp_(luminance(images), _per_image(grey).to(images.dtype))


def luminance(images: Tensor) -> Tensor:  # (N,3,S,S) -> (N,1,S,S)
    """Return ITU-R 601 luma with torchvision's rounded weights."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _jitter(pixels: Tensor, choice: Parameters, settings: Augment) -> Tensor:
    # differs from torchvision: a fixed order instead of a random one for each call
    if settings.brightness:
        pixels = adjust_brightness(pixels, choice.brightness)
    if settings.contrast:
        pixels = adjust_contrast(pixels, choice.contrast)
    if settings.saturation:
        pixels = adjust_saturation(pixels, choice.saturation)
    if settings.hue:
        pixels = adjust_hue(pixels, choice.hue)
    return pixels


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:  # factor (N,)
    """Blend with black."""
    return images.mul_(_per_image(factor)).clamp_(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:  # factor (N,)
    """Blend with the mean luminance of the image."""
    factor = _per_image(factor)
    middle = luminance(images.mean((2, 3), keepdim=True))  # luminance is linear, so the mean can be taken first
    return images.mul_(factor).add_(middle * (1 - factor)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:  # factor (N,)
    """Blend with the luminance of each pixel."""
    return images.lerp_(luminance(images), 1 - _per_image(factor)).clamp_(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:  # shift (N,) in turns
    """Rotate the hue in HSV space; value and saturation stay."""
    red, green, blue = images.chunk(3, dim=1)  # (N,1,S,S)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # Distance of the hue from red along the hexagon, in sixths of a turn, times the chroma: one formula for all six
    # sectors. The sign is that of green - blue; grey pixels give 0 / 1e-12.
    hue = (green + blue).sub_(red).sub_(value).add_(chroma, alpha=2)
    hue = hue.copysign_(green - blue).div_(chroma.clamp(min=1e-12)).add_(6 * _per_image(shift))
    # A channel is darkest at the opposite hue: red at 3, green at 5, blue at 7 (or 1).
    opposite = torch.arange(3, 9, 2, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    away = images.copy_(hue).sub_(opposite)
    away = away.sub_((away / 6).round_(), alpha=6).abs_()  # distance on the circle, in [0, 3]
    darkness = away.neg_().add_(2).clamp_(0, 1)
    return darkness.mul_(chroma).neg_().add_(value)


def blur(images: Tensor, sigma: Tensor, radius: int) -> Tensor:  # sigma (N,), radius below the side
    """Apply a Gaussian blur, cut off at `radius` pixels, with mirrored borders."""
    n, channels, height, width = images.shape
    steps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)  # (T,)
    sigma = sigma.clamp(min=1e-3)  # so narrow that the next pixel's weight underflows to zero
    kernel = torch.softmax(-0.5 * (steps / sigma[:, None]) ** 2, dim=1)  # (N,T)
    kernel = kernel.repeat_interleave(channels, 0)[:, None]  # (3N,1,T)
    planes = F.pad(images, [radius] * 4, mode="reflect").flatten(0, 1)[None]  # (1,3N,...): one group per plane
    planes = F.conv2d(planes, kernel[:, :, None, :], groups=n * channels)
    planes = F.conv2d(planes, kernel[:, :, :, None], groups=n * channels)
    return planes.view(n, channels, height, width)


def solarise(images: Tensor, threshold: Tensor) -> Tensor:  # threshold (N,)
    """Invert the values at or above the threshold."""
    return torch.where(images >= _per_image(threshold), 1 - images, images)


def standardise(images: Tensor, mean: Tensor, std: Tensor) -> Tensor:  # mean, std (3,)
    """Subtract the mean and divide by the standard deviation of each channel."""
    return images.sub_(mean.view(3, 1, 1)).div_(std.view(3, 1, 1))


def hide(images: Tensor, middle: Tensor, share: float) -> Tensor:  # middle (N,2); share of the side
    """Set a square of each standardised image to zero, its mean. The square may reach over the edge."""
    side = images.shape[2]
    places = torch.arange(side, device=images.device) + 0.5
    inside = (places - side * middle[:, :, None]).abs() <= share * side / 2  # (N,2,S)
    down, across = inside.unbind(1)
    return images.masked_fill_((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def _per_image(values: Tensor) -> Tensor:  # (N,) -> (N,1,1,1)
    return values.view(-1, 1, 1, 1)


# Shapes: n images, S side at which they are compared.
SAMPLE = 2000  # images in the probe
SIDE = 12  # pixels
NEIGHBOURS = 9  # odd, so that votes do not tie
TOO_ALIKE = 0.95  # correlation above which two images may show the same scene and do not vote
CLEAR = 0.1  # above chance (.50): photographs stay below it, digits (.94) do not
DEVIATIONS = 3.0  # standard deviations of chance to exceed as well, for few images


def left_differs_from_right(pixels: np.ndarray, rows: np.ndarray) -> bool:  # uint8 (N,H,W,3), numbers of images in it
    sample = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
    chance = DEVIATIONS * 0.5 / math.sqrt(len(sample))
    return mirror_accuracy(comparable(pixels, sample)) > 0.5 + max(CLEAR, chance)


def mirror_accuracy(images: Tensor) -> float:  # (n,S,S)
    """Return how often neighbours classify correctly whether an image is mirrored, as half of them are; .5 is chance.

    Each half of the images votes on the other half, so that no image is its own neighbour. This needs no labels.
    """
    generator = torch.Generator().manual_seed(0)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    rows = torch.where(mirrored[:, None, None], images.flip(2), images).flatten(1)
    half, right = len(rows) // 2, 0
    order = torch.randperm(len(rows), generator=generator)
    for train, test in ((order[:half], order[half:]), (order[half:], order[:half])):
        likeness = rows[test] @ rows[train].T / rows.shape[1]  # correlations
        likeness[likeness > TOO_ALIKE] = -1.0
        nearest = likeness.topk(min(NEIGHBOURS, half)).indices
        vote = mirrored[train][nearest].float().mean(1) > 0.5
        right += int((vote == mirrored[test]).sum())
    return right / len(rows)


def comparable(pixels: np.ndarray, rows: np.ndarray) -> Tensor:  # (n,S,S)
    """Return small grey images of equal brightness and contrast. Reads one at a time, because images may be large."""
    grey = torch.cat([luminance(resize(torch.from_numpy(pixels[[row]]), SIDE))[:, 0] for row in rows])
    grey -= grey.mean((1, 2), keepdim=True)
    return grey / grey.std((1, 2), keepdim=True).clamp(min=1e-3)


LARGEST = 64  # pixels a side of the largest images to probe
NEAR = 32  # of 255 levels: distance from black or white, and difference of the channels of a grey
GREY = 0.95  # least share of grey pixels
INK = 0.02  # least share of black pixels and of white ones; excludes blank images
TWO_TONED = 0.8  # least share of black or white pixels in most images; MNIST has .92, Fashion-MNIST .63


def are_strokes(images: np.ndarray) -> bool:  # uint8 (n,H,W,3)
    if not len(images):
        return False
    low, high = images.min(-1), images.max(-1)
    black, white, grey = high <= NEAR, low >= 255 - NEAR, high - low <= NEAR
    two_toned = np.median((black | white).mean((1, 2))) >= TWO_TONED
    return bool(two_toned and grey.mean() >= GREY and min(black.mean(), white.mean()) >= INK)
