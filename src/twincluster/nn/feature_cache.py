"""Features of the images of a source, computed once by an encoder and stored on disk.

Chunks are appended to a partial file, which is renamed when it is complete: a stopped run continues there, and nobody
reads half a file. Each chunk has a checksum; damaged chunks are encoded again. Shapes: n images, N batch, D features.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from twincluster.core import InputError, lock
from twincluster.data import Images, Sums, cache_folder, digest_of, plain_images, read_sums, state_of
from twincluster.nn.encoders import MODULE, Encoder
from twincluster.nn.onnx_encoder import OnnxNetwork, compile_network

VERSION = 1  # of the encoders' input: raise it when that changes, since features change with it
CHUNK = 64  # images whose features are written at once; a GPU encodes them together
ENOUGH = 256  # images for which compiling a network pays: it takes one or two seconds
CPU_PIXELS = 8 * 160 * 160  # encoded together by a CPU; more would take twice the time for new memory


def encode(
    images: Images, encoder: Encoder, device: str = "cpu", progress: Callable[[int, int], None] | None = None
) -> Images:
    """Return the inputs as rows of features, (n,D) float32, from the cache if they are there."""
    progress = progress or (lambda done, total: None)
    if encoder.parts:
        encoded = [encode(images, part, device, progress) for part in _passed_on(encoder)]
        rows, widths = [each.pixels for each in encoded], tuple(each.pixels.shape[1] for each in encoded)
        return replace(images, pixels=np.concatenate(rows, 1), widths=widths, pictures=images.pixels)
    if not encoder.version:
        starts = range(0, len(images.pixels), CHUNK)
        features = np.concatenate(list(_chunks(images.pixels, encoder, device, starts, progress)))
        return replace(images, pixels=features, pictures=images.pixels)
    path = _place(images, encoder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        features = _sound(path, images.pixels, encoder, device, progress)
        return replace(images, pixels=features, pictures=images.pixels)
    except BrokenPipeError:  # the reader of the progress has ended
        raise
    except OSError as error:
        raise InputError(
            f"features cannot be kept in {path.parent} ({error.strerror}): make room there, "
            "or set TWINCLUSTER_CACHE to another folder"
        ) from None


def encode_chunk(pixels: np.ndarray, encoder: Encoder, device: str) -> list[np.ndarray]:
    """Return the features (N,D) of at most CHUNK images, one array for each joined encoder. Nothing is cached."""
    if encoder.parts:
        return [each for part in encoder.parts for each in encode_chunk(pixels, part, device)]
    return [next(_chunks(pixels, encoder, device, [0], lambda done, total: None))]


def _passed_on(encoder: Encoder) -> Iterator[Encoder]:
    """Return the parts of a joined encoder; none if the features of one cannot be cached."""
    return (part if encoder.version else replace(part, version="") for part in encoder.parts)


def _sound(
    path: Path, pixels: np.ndarray, encoder: Encoder, device: str, progress: Callable[[int, int], None]
) -> np.ndarray:
    """Return the features in a file, after encoding chunks that are missing or damaged."""
    if not path.exists():
        _fill(path, pixels, encoder, device, progress)
    features, sums = _features_in(path, len(pixels)), read_sums(path, len(pixels))
    if features is None or sums is None or sums.block != CHUNK:  # without checksums the content is unknown
        path.unlink()
        _fill(path, pixels, encoder, device, progress)
        features, sums = _features_in(path, len(pixels)), read_sums(path, len(pixels))
        assert features is not None
        assert sums is not None
    damaged, header = sums.damaged(features, path), _header(*features.shape)
    if damaged or not _begins_with(path, header):
        with open(path, "r+b") as file:
            lock(file.fileno())
            file.write(header)
            starts = [number * CHUNK for number in damaged]
            for start, rows in zip(starts, _chunks(pixels, encoder, device, starts, progress), strict=True):
                file.seek(len(header) + start * rows[0].nbytes)
                file.write(rows.tobytes())
                sums.digests[start // CHUNK] = digest_of(rows)
    if sums.state != state_of(path):
        with suppress(OSError):  # if nothing can be written, everything is compared again next time
            sums._replace(state=state_of(path)).write(path)
    return features


def _features_in(path: Path, count: int) -> np.ndarray | None:
    """Map rows (count,D) of a file into memory, regardless of its header; None if its size does not fit."""
    size = path.stat().st_size
    width = (size - len(_header(count, 1))) // (4 * count)
    header = _header(count, max(width, 1))
    if width < 1 or len(header) + 4 * count * width != size:
        return None
    return np.memmap(path, np.float32, "r", len(header), (count, width))


def _begins_with(path: Path, header: bytes) -> bool:
    with open(path, "rb") as file:
        return file.read(len(header)) == header


def _fill(path: Path, pixels: np.ndarray, encoder: Encoder, device: str, progress: Callable[[int, int], None]) -> None:
    """Append chunk after chunk to a partial file, which a later call continues, and rename it when it is complete."""
    partial, noted = path.with_suffix(".partial"), path.with_suffix(".digests")
    partial.touch()
    with open(partial, "r+b") as file, open(noted, "a+") as digests:
        lock(file.fileno())
        if not path.exists():  # else another process has finished it
            sums = Sums(CHUNK, _complete(file, digests, pixels, encoder, device, progress), state_of(partial))
            sums.write(path)
    # closed: Windows neither renames nor removes an open file
    if path.exists():
        partial.unlink(missing_ok=True)
    else:
        with suppress(FileNotFoundError):  # another process has finished and renamed it
            os.replace(partial, path)
    if path.exists():
        noted.unlink(missing_ok=True)


def _complete(
    file: BinaryIO,
    digests: TextIO,
    pixels: np.ndarray,
    encoder: Encoder,
    device: str,
    progress: Callable[[int, int], None],
) -> list[str]:
    """Return the digests of all chunks, after encoding those that are missing or damaged in the file."""
    width = _width(encoder, device)
    header, count = _header(len(pixels), width), len(pixels)
    file.seek(0)
    known = _sound_chunks(file, digests, count, width) if file.read(len(header)) == header else []
    done = min(len(known) * CHUNK, count)
    file.seek(0)
    file.write(header)
    file.truncate(len(header) + 4 * width * done)
    file.seek(0, os.SEEK_END)
    digests.truncate(0)
    digests.writelines(digest + "\n" for digest in known)
    for features in _chunks(pixels, encoder, device, range(done, count, CHUNK), progress):
        file.write(features.tobytes())
        file.flush()
        os.fsync(file.fileno())
        known.append(digest_of(features))
        digests.write(known[-1] + "\n")
        digests.flush()
    return known


def _sound_chunks(file: BinaryIO, digests: TextIO, count: int, width: int) -> list[str]:
    """Return the recorded digests, up to the first chunk that is missing or damaged."""
    digests.seek(0)
    sound: list[str] = []
    for start, line in zip(range(0, count, CHUNK), digests, strict=False):
        rows = min(CHUNK, count - start)
        content = file.read(4 * width * rows)
        if len(content) < 4 * width * rows or digest_of(np.frombuffer(content, np.uint8)) != line.strip():
            break
        sound.append(line.strip())
    return sound


@torch.inference_mode()
def _chunks(
    pixels: np.ndarray, encoder: Encoder, device: str, starts: Sequence[int], progress: Callable[[int, int], None]
) -> Iterator[np.ndarray]:
    """Yield the features (N,D) float32 of the chunks that begin at these rows, one after another."""
    was_training = encoder.network.training
    encoder.network.eval()
    network = _fastest(encoder, device, len(starts) * CHUNK)
    layout = torch.contiguous_format if isinstance(network, OnnxNetwork) else torch.channels_last
    mean, std = torch.tensor(encoder.mean, device=device), torch.tensor(encoder.std, device=device)
    together = CHUNK if device == "cuda" else max(1, CPU_PIXELS // encoder.side**2)
    progress(starts[0] if starts else len(pixels), len(pixels))
    for first in starts:
        rows = []
        for raw in torch.split(torch.from_numpy(np.array(pixels[first : first + CHUNK])), together):
            seen = plain_images(raw.to(device), encoder.side, mean, std, cubic=encoder.cubic)
            rows.append(_checked(network(seen.contiguous(memory_format=layout)), len(raw), encoder))
        yield np.concatenate(rows)
        progress(min(first + CHUNK, len(pixels)), len(pixels))
    encoder.network.train(was_training)


def _fastest(encoder: Encoder, device: str, count: int) -> nn.Module:
    """Return the network that encodes `count` images soonest: compiled, if it is ours and there are enough of them."""
    if device == "cpu" and count >= ENOUGH and not encoder.name.startswith(MODULE):
        compiled = compile_network(encoder.network, encoder.side)
        if isinstance(compiled, OnnxNetwork):
            return compiled
    network: nn.Module = encoder.network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def _checked(features: Any, count: int, encoder: Encoder) -> np.ndarray:
    if not isinstance(features, Tensor) or features.ndim < 2 or len(features) != count:
        raise InputError(f"{encoder.name} gives no row of features per image: use a module that returns (n,d)")
    rows: np.ndarray = features.flatten(1).float().cpu().numpy()
    if not np.isfinite(rows).all():
        raise InputError(f"{encoder.name} gives features that are no numbers: its weights are damaged")
    return rows


def _width(encoder: Encoder, device: str) -> int:
    """Return D, from a black image."""
    black = np.zeros((1, encoder.side, encoder.side, 3), np.uint8)
    return int(next(_chunks(black, encoder, device, [0], lambda done, total: None)).shape[1])


def _header(count: int, width: int) -> bytes:
    written = io.BytesIO()
    np.lib.format.write_array_header_1_0(written, {"descr": "<f4", "fortran_order": False, "shape": (count, width)})
    return written.getvalue()


def _place(images: Images, encoder: Encoder) -> Path:
    """Return the cache path. It depends on the pixels, not on their origin, and on everything that changes the
    encoder's input."""
    name = "" if encoder.by_version else encoder.name
    known_by = [VERSION, images.fingerprint, name, encoder.version, encoder.side, encoder.mean, encoder.std]
    digest = hashlib.sha256(repr(known_by).encode())
    if images.listing.array is not None:  # its fingerprint may skip rows of a large array
        for first in range(0, len(images.pixels), CHUNK):
            digest.update(np.ascontiguousarray(images.pixels[first : first + CHUNK]).data)
    return cache_folder() / "features" / f"{digest.hexdigest()[:32]}.npy"
