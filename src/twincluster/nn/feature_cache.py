"""Features of the images of a source, computed once by an encoder and kept on disk.

Chunk after chunk is appended to a partial file, which gets its name when it is whole: a run that was stopped goes on
where it was, and never reads half a file. Shapes: n images, N batch, D features.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from twincluster.core import InputError, lock
from twincluster.data import Images, cache_folder, plain_images
from twincluster.nn.encoders import Encoder

VERSION = 1  # of how an image becomes an encoder's input: another number, other features
CHUNK = 64  # images whose features reach the disk at once; a GPU encodes them together
CPU_PIXELS = 8 * 160 * 160  # that a CPU encodes together: more need fresh memory from the system, at twice the time


def encode(
    images: Images, encoder: Encoder, device: str = "cpu", progress: Callable[[int, int], None] | None = None
) -> Images:
    """The same inputs as rows of features, (n,D) float32, from the cache where it has them."""
    progress = progress or (lambda done, total: None)
    if not encoder.version:
        features = np.concatenate(list(_chunks(images.pixels, encoder, device, 0, progress)))
        return replace(images, pixels=features, pictures=images.pixels)
    path = _place(images, encoder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _fill(path, images.pixels, encoder, device, progress)
        try:
            features = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError:  # damaged since it was written
            path.unlink()
            _fill(path, images.pixels, encoder, device, progress)
            features = np.load(path, mmap_mode="r", allow_pickle=False)
        return replace(images, pixels=features, pictures=images.pixels)
    except BrokenPipeError:  # whoever watched the progress left
        raise
    except OSError as error:
        raise InputError(
            f"features cannot be kept in {path.parent} ({error.strerror}): make room there, "
            "or set TWINCLUSTER_CACHE to another folder"
        ) from None


def _fill(path: Path, pixels: np.ndarray, encoder: Encoder, device: str, progress: Callable[[int, int], None]) -> None:
    """Append chunk after chunk to a partial file, which a later call continues, and name it when it is whole."""
    partial = path.with_suffix(".partial")
    partial.touch()
    with open(partial, "r+b") as file:
        lock(file.fileno())
        if not path.exists():  # else another process was quicker
            _complete(file, pixels, encoder, device, progress)
    # closed: Windows neither renames nor removes an open file
    if path.exists():
        partial.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):  # another process has found it whole, and named it
            os.replace(partial, path)


def _complete(
    file: BinaryIO, pixels: np.ndarray, encoder: Encoder, device: str, progress: Callable[[int, int], None]
) -> None:
    width = _width(encoder, device)
    header = _header(len(pixels), width)
    done = (file.seek(0, os.SEEK_END) - len(header)) // (4 * width)
    done = done if done == len(pixels) else done // CHUNK * CHUNK  # all of it, or whole chunks
    file.seek(0)
    if done <= 0 or file.read(len(header)) != header:
        done = 0
        file.seek(0)
        file.write(header)
    done = min(done, len(pixels))
    file.truncate(len(header) + 4 * width * done)
    file.seek(0, os.SEEK_END)
    for features in _chunks(pixels, encoder, device, done, progress):
        file.write(features.tobytes())
        file.flush()
        os.fsync(file.fileno())


@torch.inference_mode()
def _chunks(
    pixels: np.ndarray, encoder: Encoder, device: str, start: int, progress: Callable[[int, int], None]
) -> Iterator[np.ndarray]:
    """Features (N,D) float32 of one chunk after another."""
    network = encoder.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    was_training = network.training
    network.eval()
    mean, std = torch.tensor(encoder.mean, device=device), torch.tensor(encoder.std, device=device)
    together = CHUNK if device == "cuda" else max(1, CPU_PIXELS // encoder.side**2)
    progress(start, len(pixels))
    for first in range(start, len(pixels), CHUNK):
        rows = []
        for raw in torch.split(torch.from_numpy(np.array(pixels[first : first + CHUNK])), together):
            seen = plain_images(raw.to(device), encoder.side, mean, std)
            rows.append(_checked(network(seen.contiguous(memory_format=torch.channels_last)), len(raw), encoder))
        yield np.concatenate(rows)
        progress(min(first + CHUNK, len(pixels)), len(pixels))
    network.train(was_training)


def _checked(features: Any, count: int, encoder: Encoder) -> np.ndarray:
    if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != count:
        raise InputError(f"{encoder.name} gives no row of features per image: use a module that returns (n,d)")
    rows: np.ndarray = features.flatten(1).float().cpu().numpy()
    if not np.isfinite(rows).all():
        raise InputError(f"{encoder.name} gives features that are no numbers: its weights are damaged")
    return rows


def _width(encoder: Encoder, device: str) -> int:
    """D, by a black image."""
    black = np.zeros((1, encoder.side, encoder.side, 3), np.uint8)
    return int(next(_chunks(black, encoder, device, 0, lambda done, total: None)).shape[1])


def _header(count: int, width: int) -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": (count, width)})
    return written.getvalue()


def _place(images: Images, encoder: Encoder) -> Path:
    """Known by the pixels, not by where they came from, and by all that changes what the encoder makes of them."""
    known_by = [VERSION, images.fingerprint, encoder.name, encoder.version, encoder.side, encoder.mean, encoder.std]
    digest = hashlib.sha256(repr(known_by).encode())
    if images.listing.array is not None:  # whose fingerprint may leave out some rows of a large one
        for first in range(0, len(images.pixels), CHUNK):
            digest.update(np.ascontiguousarray(images.pixels[first : first + CHUNK]).data)
    return cache_folder() / "features" / f"{digest.hexdigest()[:32]}.npy"
