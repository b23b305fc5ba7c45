"""Damaged images of every format: each is decoded or gets a status, in bounded time and memory."""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from attacks.workplace import Ended, Fork, import_all
from mutations import DAMAGES

COUNT = 200_000
TOGETHER = 500  # images that one process decodes
MEMORY = 600_000_000  # bytes that a decoding process may take above what it starts with
SECONDS = 5.0  # that one image may take
STATUSES = ("ok", "incomplete", "too_large", "unreadable")
KINDS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("PNG", "RGB", {}), ("PNG", "RGBA", {}), ("PNG", "P", {}), ("PNG", "I;16", {}), ("PNG", "1", {}),
    ("JPEG", "RGB", {}), ("JPEG", "L", {"progressive": True}), ("JPEG", "CMYK", {}), ("GIF", "P", {}),
    ("WEBP", "RGB", {}), ("WEBP", "RGBA", {"lossless": True}), ("BMP", "RGB", {}), ("BMP", "P", {}),
    ("TIFF", "RGB", {"compression": "tiff_lzw"}), ("TIFF", "L", {"compression": "tiff_deflate"}),
    ("TIFF", "1", {"compression": "group4"}), ("TIFF", "RGB", {"compression": "jpeg"}), ("TIFF", "F", {}),
    ("PPM", "RGB", {}), ("JPEG2000", "RGB", {}), ("AVIF", "RGB", {}),
)  # fmt: skip


def attack(seed: int, count: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Decode `count` damaged images; return figures. `tell` is called with every fault."""
    import_all()
    wholes = _wholes()
    statuses: Counter[str] = Counter()
    faults, most, slowest = 0, 0, 0.0
    for start in range(0, count, TOGETHER):
        numbers = range(start, min(count, start + TOGETHER))
        ended = Fork(lambda numbers=numbers: _decode_all(seed, numbers, wholes)).end(600)  # type: ignore[misc]
        fault = _fault(ended)
        if not fault:
            found = json.loads(Path("answer").read_text())
            statuses.update(found["statuses"])
            most, slowest = max(most, ended.memory - found["before"]), max(slowest, found["slowest"])
            if odd := [status for status in found["statuses"] if status.partition(":")[0] not in STATUSES]:
                fault = f"status {odd[0]!r}"
            elif ended.memory - found["before"] > MEMORY:
                fault = f"took {(ended.memory - found['before']) / 1e6:,.0f} MB"
            elif found["slowest"] > SECONDS:
                fault = f"one took {found['slowest']:.1f} s"
        if fault:
            faults += 1
            tell(f"images seed {seed} numbers {numbers.start} to {numbers.stop - 1}: {fault}")
    kinds = Counter[str]()
    for status, times in statuses.items():
        kinds[status.partition(":")[0]] += times
    return {"mutated images": count, **kinds, "MB at most": round(most / 1e6), "slowest, s": slowest, "faults": faults}


def _wholes() -> list[bytes]:
    """An image of each kind that this Pillow writes."""
    random, wholes = np.random.default_rng(0), []
    for kind, mode, options in KINDS:
        smooth = Image.fromarray(random.integers(0, 256, (6, 8, 3), np.uint8)).resize((64, 48))
        if mode == "I;16":
            image = Image.fromarray(random.integers(0, 65536, (48, 64), np.uint16))
        else:
            image = smooth.convert("P", palette=Image.Palette.ADAPTIVE) if mode == "P" else smooth.convert(mode)
        content = io.BytesIO()
        try:
            image.save(content, kind, **options)
        except (OSError, KeyError):  # not built in
            continue
        wholes.append(content.getvalue())
    return wholes


def _decode_all(seed: int, numbers: range, wholes: list[bytes]) -> int:
    from twincluster.data.decoding import decode

    before = _peak()
    statuses: Counter[str] = Counter()
    slowest = 0.0
    for number in numbers:
        random = np.random.default_rng([seed, number])
        content = wholes[random.integers(len(wholes))]
        for _ in range(int(random.integers(1, 4))):
            content = DAMAGES[random.integers(4)](random, content)  # bits, bytes, cuts, zeros
        Path("image").write_bytes(content)
        began = time.process_time()
        pixels, status = decode("image", int(random.integers(8, 65)))
        slowest = max(slowest, time.process_time() - began)
        if (pixels is None) == (status == "ok"):
            print(f"number {number}: {status} with {pixels}")
            return 1
        statuses[status] += 1
    Path("answer").write_text(json.dumps({"statuses": statuses, "slowest": round(slowest, 2), "before": before}))
    return 0


def _peak() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _fault(ended: Ended) -> str:
    if ended.status != 0:
        return f"status {ended.status}: {ended.out[-500:]}{ended.err[-1000:]}"
    return f"printed {(ended.out + ended.err)[:500]!r}" if ended.out or ended.err else ""
