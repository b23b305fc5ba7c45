"""Shards of small pictures, and archives with anything in them."""

import io
import tarfile
from pathlib import Path

import numpy as np
import webdataset
from PIL import Image

from command_line import COLOURS
from twincluster.data import Images, open_images, open_source

SIDE = 12
PER_SHARD = 10


def encoded(number: int, format: str = "PNG") -> bytes:
    """A noisy picture in one of three colours."""
    pixels = np.random.default_rng(number).integers(0, 100, (SIDE, SIDE, 3))
    pixels[..., number % 3] += 140
    written = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(written, format)
    return written.getvalue()


def write_shards(folder: Path, count: int = 24) -> str:
    """Shards of ten samples and the pattern that names them; each sample has an image, its label twice, and a note."""
    folder.mkdir(parents=True, exist_ok=True)
    with webdataset.ShardWriter(f"{folder}/s-%03d.tar", maxcount=PER_SHARD, verbose=0) as writer:
        for number in range(count):
            colour = {"colour": COLOURS[number % 3], "number": number % 3}
            sample = {"__key__": f"part/{number:04d}", "png": encoded(number), "cls": number % 3, "json": colour}
            writer.write({**sample, "note.txt": "taken at noon"})
    return f"{folder}/s-{{000..{(count - 1) // PER_SHARD:03d}}}.tar"


def opened(source: str | Path, **options: object) -> Images:
    return open_images(open_source(source), side=SIDE, workers=1, **options)  # type: ignore[arg-type]


def expected_pixels(count: int) -> np.ndarray:
    return np.stack([np.asarray(Image.open(io.BytesIO(encoded(number)))) for number in range(count)])


def pack(path: Path, contents: list[tuple[str, bytes]]) -> Path:
    """As they come, equal names included, which webdataset would not write."""
    with tarfile.open(path, "w") as archive:
        for name, content in contents:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path
