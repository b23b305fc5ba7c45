"""Batches for the trainer and their augmentation.

Batches come from memory on the device when the data fits there, otherwise they are read ahead by threads. Both fill the
same two buffers with the same samples in the same order, so a run does not depend on which is used.

A batch is augmented as a whole, with its own parameters for every image: pure functions of pixels and uniform draws.
Nothing in a step draws, waits for the device or branches on data, so it can be compiled or captured in a CUDA graph.

Two probes choose what suits a set: `left_differs_from_right` says whether a mirrored image may be another kind of
thing, as with digits, text or X-rays; `are_strokes` says whether images are drawings of few strokes, which a network
taught by photographs knows little of.
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
# Pixels are float32 in [0, 1] and laid out (N,3,S,S) from the crop to the standardisation. Every operation between owns
# the pixels it is given and may overwrite them: fresh memory for each would cost a CPU half as much time again.

DEVICE_SHARE = 0.5  # of the free memory of a GPU that the data may take
READ_AHEAD = 4  # batches


class Feed:
    """Fills `samples` (N,) and `images` (N,...) with one batch after another.

    `resident` says whether the images lie on the device; left out, they do where a GPU has the room.
    """

    def __init__(
        self, images: Images, batch_size: int, seed: int, device: torch.device, *, resident: bool | None = None
    ) -> None:
        self.n_samples, self.batch_size, self.seed, self.device = len(images.usable), batch_size, seed, device
        self.steps_per_epoch = self.n_samples // batch_size  # the rest of an epoch's order waits for another epoch
        self._pixels, self._rows = images.pixels, images.usable
        self.samples = torch.zeros(batch_size, dtype=torch.int64, device=device)
        self.images = torch.zeros((batch_size, *images.pixels.shape[1:]), dtype=_dtype(images.pixels), device=device)
        resident = _fits(images, device) if resident is None else resident
        self._resident = self._to_device() if resident else None

    def epoch(self, epoch: int, start: int = 0) -> Iterator[None]:
        """Fill the buffers with batch after batch of an epoch, from step `start` on."""
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
        """Yield samples and images of all of the data once, in the order of an epoch.

        Samples that fill no batch share two batches of equal size with those of the last full one.
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
        """The permutation of an epoch: a function of seed and epoch alone, on every device."""
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + epoch) % 2**63)
        return torch.randperm(self.n_samples, generator=generator)

    def _to_device(self) -> Tensor:
        everything = np.array_equal(self._rows, np.arange(len(self._pixels)))
        pixels = np.ascontiguousarray(self._pixels if everything else self._pixels[self._rows])
        if self.device.type == "cpu" and pixels.flags.writeable:
            return torch.from_numpy(pixels)  # where it lies already
        return torch.tensor(pixels, device=self.device)


def read_ahead(pixels: np.ndarray, parts: Sequence[np.ndarray], device: torch.device) -> Generator[Tensor, None, None]:
    """The rows of `pixels` that each part names, on the device; what is yielded holds until the next is asked for.

    Threads gather a few parts ahead into buffers that are used again and again. For a GPU these are pinned, and copied
    on a stream of their own while the device still computes on the part before. The host waits only for a buffer to
    be filled, which is to say when it is READ_AHEAD parts ahead of the device, or the disk is slower than that.
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
        torch.cuda.set_device(gpu)  # a thread that waits for another one would wake up the first, and take memory there


class _Buffer:
    """Room for one part in the memory of the host."""

    def __init__(self, pixels: np.ndarray, rows: int, device: torch.device) -> None:
        on_gpu = device.type == "cuda"
        self.content = torch.empty((rows, *pixels.shape[1:]), dtype=_dtype(pixels), pin_memory=on_gpu)
        self.copied = _event() if on_gpu else None  # when the GPU has what was in here

    def fill(self, pixels: np.ndarray, rows: np.ndarray) -> Tensor:
        """Runs in a thread; both ways of copying let the others go on meanwhile."""
        if self.copied is not None:
            self.copied.synchronize()
        content = self.content[: len(rows)]
        if pixels.flags.c_contiguous and len(rows):
            if rows.max() >= len(pixels):  # as after a file was cut short: taking would repeat the last row
                raise IndexError(f"row {rows.max()} of {len(pixels)}")
            np.take(pixels, rows, axis=0, out=content.numpy(), mode="clip")  # other modes copy twice
        else:
            content.numpy()[...] = pixels[rows]  # taking would make a copy of all of them first
        return content


class _Landing:
    """Two buffers on a GPU in turn: while the device computes on one, the other is filled by a stream beside it."""

    def __init__(self, like: Tensor, device: torch.device) -> None:
        self.stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self.stream.wait_stream(torch.cuda.current_stream())  # which may still use what this memory held before
        self.places = deque((torch.empty_like(like, device=device), _event()) for _ in range(2))
        self.used: torch.cuda.Event | None = None  # of the place that was given away last

    def take(self, content: Tensor, buffer: _Buffer) -> Tensor:
        """The content on the device, for the current stream until the next call."""
        current = torch.cuda.current_stream()
        if self.used is not None:
            self.used.record(current)
        place, self.used = self.places[0]
        self.places.rotate(1)
        self.stream.wait_event(self.used)  # no wait for a place that was never used
        with torch.cuda.stream(self.stream):
            landed = place[: len(content)].copy_(content, non_blocking=True)
            assert buffer.copied is not None, "buffers for a GPU know when it has their content"
            buffer.copied.record(self.stream)
        current.wait_event(buffer.copied)
        return landed


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]  # whoever waits leaves the core to others


def _fits(images: Images, device: torch.device) -> bool:
    if device.type != "cuda":
        return False  # a CPU reads the memory map itself
    free, _ = torch.cuda.mem_get_info(device)
    return bool(images.pixels.nbytes < DEVICE_SHARE * free)


def _dtype(pixels: np.ndarray) -> torch.dtype:
    return torch.from_numpy(np.empty(0, pixels.dtype)).dtype


N_DRAWS = 17  # uniform numbers that one view of an image consumes, one column per random choice


def augment_images(
    images: Tensor, draws: Tensor, settings: Augment, side: int, mean: Tensor, std: Tensor
) -> Tensor:  # images uint8 (N,H,W,3), draws (N,N_DRAWS) in [0,1), mean and std (3,) on the scale [0,1] -> (N,3,S,S)
    """One augmented, standardised view per image, in the paper's order: crop, grey, jitter, flip, standardise."""
    choice = parameters(draws, settings, images.shape[1], images.shape[2])
    # The flip is part of the crop's sampling: every later step treats left and right alike.
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
    """The images as they are, resized to a square and standardised: what inference sees."""
    return standardise(resize(images, side, cubic), mean, std)


def augment_rows(rows: Tensor, normal: Tensor, draws: Tensor, settings: Augment) -> Tensor:  # all (N,d)
    """Rows of standardised features with noise added, then some features set to zero, which is their mean."""
    if settings.noise:
        rows = torch.add(rows, normal, alpha=settings.noise)
    if settings.dropout:
        rows = rows * (draws >= settings.dropout)  # not rescaled: no network layer follows that would expect it
    return rows


class Parameters(NamedTuple):
    """What one batch of draws means, one entry per image; a step that is off has entries nobody reads."""

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
    hole: Tensor  # (N,2) middle of the hidden square, down and across, as shares of the side


def parameters(draws: Tensor, settings: Augment, height: int, width: int) -> Parameters:  # draws (N,N_DRAWS)
    """Map uniform numbers to what they decide; the only place that knows which column is which."""
    area, ratio, top, left, flip, angle = draws[:, :6].unbind(1)
    grey, jitter, light, contrast, colour, hue, blurs, sigma, solar = draws[:, 6:15].unbind(1)
    jitters = jitter < settings.jitter
    # A mask times an offset: where a step does not apply, its factor is exactly 1 and its amount exactly 0.
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
    """Top, left, height and width of a crop with uniform area and log-uniform aspect ratio."""
    # differs from torchvision: sides that do not fit are clamped, where it draws again up to ten times, and boxes are
    # not rounded to whole pixels, which on small images would leave few different ones.
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
    """Sample the box of each uint8 image (N,H,W,3) bilinearly, turned about the middle of the box and then mirrored."""
    _, height, width, _ = images.shape
    top, left, tall, wide = (column[:, None] for column in box.unbind(1))  # (N,1)
    steps = (torch.arange(side, device=box.device) + 0.5) / side - 0.5  # (S,) from the middle of the box
    across = torch.where(flip[:, None], -steps, steps) * wide  # (N,S)
    down = steps * tall
    middle_x, middle_y = left + (wide - 1) / 2, top + (tall - 1) / 2  # pixel centres count from 0
    if angle is None:
        # Clamped to the box, a crop never shows what lies beyond its edge.
        x = (middle_x + across).clamp(left, left + wide - 1)[:, None, :]  # (N,1,S)
        y = (middle_y + down).clamp(top, top + tall - 1)[:, :, None]  # (N,S,1)
    else:
        radians = torch.deg2rad(angle)[:, None, None]
        cos, sin = torch.cos(radians), torch.sin(radians)
        x = middle_x[:, :, None] + cos * across[:, None, :] - sin * down[:, :, None]  # (N,S,S)
        y = middle_y[:, :, None] + sin * across[:, None, :] + cos * down[:, :, None]
    x, y = (2 * x + 1) / width - 1, (2 * y + 1) / height - 1  # the sampler's coordinates: the image spans [-1, 1]
    grid = torch.stack([x.expand(-1, side, side), y.expand(-1, side, side)], -1)
    planes = images.permute(0, 3, 1, 2).float()  # keeps the interleaved layout, which the sampler reads as it is
    corners = "border" if angle is None else "reflection"  # only a turned box reaches outside the image
    sampled = F.grid_sample(planes, grid, padding_mode=corners, align_corners=False)
    return sampled.mul_(1 / 255)


def resize(images: Tensor, side: int, cubic: bool = False) -> Tensor:  # uint8 (N,H,W,3) -> (N,3,S,S)
    """The whole image as a square, bilinear or bicubic, antialiased when it shrinks."""
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
    """ITU-R 601 luma with torchvision's rounded weights."""
    red, green, blue = images.chunk(3, dim=1)
    return (red * 0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)


def _jitter(pixels: Tensor, choice: Parameters, settings: Augment) -> Tensor:
    # differs from torchvision: always in this order, where it draws an order for each call.
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
    middle = luminance(images.mean((2, 3), keepdim=True))  # luminance is linear, so the mean may come first
    return images.mul_(factor).add_(middle * (1 - factor)).clamp_(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:  # factor (N,)
    """Blend with the luminance of each pixel."""
    return images.lerp_(luminance(images), 1 - _per_image(factor)).clamp_(0, 1)


def adjust_hue(images: Tensor, shift: Tensor) -> Tensor:  # shift (N,) in turns
    """Turn the hue in HSV space, keeping value and saturation."""
    red, green, blue = images.chunk(3, dim=1)  # (N,1,S,S)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # How far the hue lies from red along the hexagon, in sixths of a turn, times the chroma: one formula for all six
    # sectors. Green above blue is one way round, blue above green the other; grey pixels come out as 0 / 1e-12.
    hue = (green + blue).sub_(red).sub_(value).add_(chroma, alpha=2)
    hue = hue.copysign_(green - blue).div_(chroma.clamp(min=1e-12)).add_(6 * _per_image(shift))
    # A channel is darkest where the hue lies opposite: red at 3, green at 5, blue at 7, which is 1 a turn later.
    opposite = torch.arange(3, 9, 2, device=images.device, dtype=images.dtype).view(1, 3, 1, 1)
    away = images.copy_(hue).sub_(opposite)
    away = away.sub_((away / 6).round_(), alpha=6).abs_()  # round the circle, in [0, 3]
    darkness = away.neg_().add_(2).clamp_(0, 1)
    return darkness.mul_(chroma).neg_().add_(value)


def blur(images: Tensor, sigma: Tensor, radius: int) -> Tensor:  # sigma (N,), radius below the side
    """Gaussian blur cut off at radius pixels, with mirrored borders."""
    n, channels, height, width = images.shape
    steps = torch.arange(-radius, radius + 1, device=images.device, dtype=images.dtype)  # (T,)
    sigma = sigma.clamp(min=1e-3)  # so narrow a kernel has underflowed to zero at the next pixel
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
    """Set a square of each standardised image to zero, the mean; at the edge a part of it falls outside."""
    side = images.shape[2]
    places = torch.arange(side, device=images.device) + 0.5
    inside = (places - side * middle[:, :, None]).abs() <= share * side / 2  # (N,2,S)
    down, across = inside.unbind(1)
    return images.masked_fill_((down[:, :, None] & across[:, None, :])[:, None], 0.0)


def _per_image(values: Tensor) -> Tensor:  # (N,) -> (N,1,1,1)
    return values.view(-1, 1, 1, 1)


# Shapes: n images, S side at which they are compared.
SAMPLE = 2000  # images that are looked at
SIDE = 12  # pixels
NEIGHBOURS = 9  # an odd number, which cannot be of two minds
TOO_ALIKE = 0.95  # correlation above which two images may be one scene, which tells of itself and not of its kind
CLEAR = 0.1  # above chance: what photographs of animals and things stay below (.50), and digits do not (.94)
DEVIATIONS = 3.0  # of chance that it takes besides, where images are few


def left_differs_from_right(pixels: np.ndarray, rows: np.ndarray) -> bool:  # uint8 (N,H,W,3), numbers of images in it
    sample = np.sort(np.random.default_rng(0).permutation(rows)[:SAMPLE])
    chance = DEVIATIONS * 0.5 / math.sqrt(len(sample))
    return told_apart(comparable(pixels, sample)) > 0.5 + max(CLEAR, chance)


def told_apart(images: Tensor) -> float:  # (n,S,S)
    """Share of the images of which their neighbours know whether they are mirrored, as half of all are: .5 by chance.

    Each half of the images asks the other half, in which no image is its own neighbour. Nobody has to label anything.
    """
    generator = torch.Generator().manual_seed(0)
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    rows = torch.where(mirrored[:, None, None], images.flip(2), images).flatten(1)
    half, right = len(rows) // 2, 0
    order = torch.randperm(len(rows), generator=generator)
    for known, asked in ((order[:half], order[half:]), (order[half:], order[:half])):
        likeness = rows[asked] @ rows[known].T / rows.shape[1]  # correlations
        likeness[likeness > TOO_ALIKE] = -1.0
        nearest = likeness.topk(min(NEIGHBOURS, half)).indices
        said = mirrored[known][nearest].float().mean(1) > 0.5
        right += int((said == mirrored[asked]).sum())
    return right / len(rows)


def comparable(pixels: np.ndarray, rows: np.ndarray) -> Tensor:  # (n,S,S)
    """Small and grey, of one brightness and contrast. One after the other: the images may be large."""
    grey = torch.cat([luminance(resize(torch.from_numpy(pixels[[row]]), SIDE))[:, 0] for row in rows])
    grey -= grey.mean((1, 2), keepdim=True)
    return grey / grey.std((1, 2), keepdim=True).clamp(min=1e-3)


LARGEST = 64  # pixels a side of images that still show what they are when they are made tiny
NEAR = 32  # levels of 255 from black or white that count as these, and by which the channels of a grey may differ
GREY = 0.95  # of all pixels
INK = 0.02  # of all pixels, and as much paper: blank images are no drawings
TWO_TONED = 0.8  # of the pixels of most images: digits of MNIST have .92, clothes of Fashion-MNIST .63


def are_strokes(images: np.ndarray) -> bool:  # uint8 (n,H,W,3)
    if not len(images):
        return False
    low, high = images.min(-1), images.max(-1)
    black, white, grey = high <= NEAR, low >= 255 - NEAR, high - low <= NEAR
    two_toned = np.median((black | white).mean((1, 2))) >= TWO_TONED
    return bool(two_toned and grey.mean() >= GREY and min(black.mean(), white.mean()) >= INK)
