"""Weights of encoders: where they are stored, and how they are downloaded.

A download continues where an earlier one stopped, and gets its final name once its SHA-256 is verified. Files are
looked up in $TWINCLUSTER_MODELS, then in the cache. A file of a known encoder is NAME.safetensors; NAME.json beside it
has its origin and its SHA-256. An ONNX file from an address is named after its SHA-256.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from twincluster.config import KNOWN, KnownEncoder, is_address, is_trusted, read_name, trust_addresses
from twincluster.core import InputError, first_line, lock, read_json, write_json
from twincluster.data import cache_folder

HUB = "https://huggingface.co"  # unless $HF_ENDPOINT names another
WEIGHTS = "model.safetensors"
SILENCE = 60.0  # seconds without a byte after which a connection counts as lost
TRIES = 5  # in a row without a new byte, before a download fails
BLOCK = 1 << 20  # bytes read at once
LINE_SECONDS = 10.0  # seconds between two lines of progress without a terminal
_HEX = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Origin:
    """Where a file comes from."""

    address: str
    sha256: str
    commit: str = ""  # on a hub


def models_folder() -> Path | None:
    """Return $TWINCLUSTER_MODELS, a folder prepared for a machine without a network; None if it is not set."""
    named = os.environ.get("TWINCLUSTER_MODELS")
    if not named:
        return None
    folder = Path(os.path.expanduser(named))
    if not folder.is_dir():
        raise InputError(f"TWINCLUSTER_MODELS is {folder}, which is no folder: create it, or unset TWINCLUSTER_MODELS")
    return folder


def find_weights(name: str) -> Path | None:
    """Return the path of a known encoder's weights on this machine; None if they are missing."""
    for folder in _folders():
        if (path := folder / f"{name}.safetensors").is_file():
            return path
    return _in_hub_cache(KNOWN[name])


def get_weights(name: str, to: Path | None = None) -> Path:
    """Return the path of a known encoder's weights, in the folder `to` if given. Download them if need be."""
    known, here = KNOWN[name], find_weights(name)
    if to is None and here:
        _check_origin(here)
        return here
    target = (to or _own_folder()) / f"{name}.safetensors"
    if to and here:
        return target if target == here else _copied(here, target)
    with _explained(name, known):
        origin = _origin_on_hub(known)
        download(origin, target, name)
    with _writable(target):
        write_json(_record(target), {"address": origin.address, "commit": origin.commit, "sha256": origin.sha256})
    return target


def download_address(address: str, to: Path | None = None) -> Path:
    """Return the ONNX file behind an address that ends in #sha256=HEX."""
    plain, _, given = address.partition("#sha256=")
    if not _HEX.fullmatch(given.lower()):
        raise InputError(f"onnx:{address}: end the address in #sha256=HEX, the checksum of the file, 64 digits")
    origin = Origin(plain, given.lower())
    for folder in [*([to] if to else ()), *_folders()]:
        if (path := folder / f"{origin.sha256}.onnx").is_file():
            _refuse_other(path, origin)
            return _copied(path, to / path.name) if to and folder != to else path
    if not is_trusted(address):  # the address comes from a run or a recipe
        raise InputError(
            f"onnx:{address} is not on this machine, and you have not named this address: if you trust it, run "
            f"`twincluster encoders fetch 'onnx:{address}'`, then the same again"
        )
    target = (to or _own_folder()) / f"{origin.sha256}.onnx"
    with _explained(f"onnx:{address}"):
        download(origin, target, plain.rpartition("/")[2] or plain)
    return target


def fetch(name: str, to: Path | None = None) -> list[Path]:
    """Download what the user names, for this machine or into a folder to be carried to another."""
    trust_addresses(name)
    paths = []
    for part in read_name(name):
        if part.kind in KNOWN and not part.rest:
            paths.append(get_weights(part.kind, to))
        elif part.kind == "onnx" and is_address(part.rest):
            paths.append(download_address(part.rest, to))
    return paths


def download(origin: Origin, target: Path, name: str) -> None:
    """Download to a partial file, from where an earlier download stopped; rename it once its SHA-256 is verified."""
    with _writable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        with open(partial, "a+b") as file:
            lock(file.fileno())  # only one of several processes downloads
            if target.is_file():
                return
            _receive(origin, file, _Bar(name))
            file.seek(0)
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != origin.sha256:
            partial.unlink(missing_ok=True)
            raise InputError(
                f"{name}: what {origin.address} sent has the SHA-256 {found}, not {origin.sha256}: it was removed; "
                "try again, or check the address"
            )
        os.replace(partial, target)


def _receive(origin: Origin, file: BinaryIO, tell: Callable[[int, int], None]) -> None:
    """Append what is missing. Reconnect after a lost connection as long as each attempt brings new bytes."""
    idle, last = 0, ""
    while idle < TRIES:
        start = file.seek(0, os.SEEK_END)
        try:
            if _receive_once(origin, file, start, tell):
                return
            last = "the connection was cut"
        except urllib.error.HTTPError as error:
            if error.code == 416 and start:  # the file is complete, or another one by now; its SHA-256 tells
                return
            if error.code < 500:
                raise
            last = f"HTTP {error.code}"
        except (OSError, http.client.HTTPException) as error:
            last = first_line(error)
        done = file.seek(0, os.SEEK_END)
        idle = 0 if done > start else idle + 1
        time.sleep(min(0.1 * 2**idle, 5) if idle else 0)
    raise ConnectionError(f"{last} after {file.tell() / 1e6:.1f} MB; what came is kept")


def _receive_once(origin: Origin, file: BinaryIO, start: int, tell: Callable[[int, int], None]) -> bool:
    """Receive until the connection ends; return True if the server sent all that it announced."""
    request = urllib.request.Request(origin.address, headers={"Range": f"bytes={start}-"} if start else {})
    with urllib.request.urlopen(request, timeout=SILENCE) as answer:
        if start and answer.status != 206:  # the server sends the whole file again
            start = 0
            file.truncate(0)
        length = answer.headers.get("Content-Length")
        total, done = start + int(length or 0), start
        while block := answer.read(BLOCK):
            file.write(block)
            file.flush()
            done += len(block)
            tell(done, total)
    return length is None or done >= total


def _origin_on_hub(known: KnownEncoder) -> Origin:
    """Return commit and SHA-256 of the weights as the hub states them; another server sends the file."""
    address = f"{os.environ.get('HF_ENDPOINT', HUB).rstrip('/')}/{known.repository}/resolve/main/{WEIGHTS}"
    opener = urllib.request.build_opener(_NoRedirect)
    try:
        with opener.open(urllib.request.Request(address, method="HEAD"), timeout=SILENCE) as answer:
            headers = answer.headers
    except urllib.error.HTTPError as error:
        if not 300 <= error.code < 400:
            raise
        headers = error.headers
    digest = (headers.get("X-Linked-ETag") or headers.get("ETag") or "").removeprefix("W/").strip('"').lower()
    if not _HEX.fullmatch(digest):
        raise ConnectionError(f"{address} states no SHA-256")
    commit = headers.get("X-Repo-Commit", "")
    pinned = re.fullmatch(r"[0-9a-f]{40}", commit)
    return Origin(address.replace("/resolve/main/", f"/resolve/{commit}/") if pinned else address, digest, commit)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *args: Any) -> None:
        return None


def _check_origin(path: Path) -> None:
    """Raise InputError for a file that is not the one downloaded."""
    if _record(path).is_file():
        record = read_json(_record(path))
        _refuse_other(path, Origin(str(record.get("address")), str(record.get("sha256"))))


def _refuse_other(path: Path, origin: Origin) -> None:
    with open(path, "rb") as file:
        if hashlib.file_digest(file, "sha256").hexdigest() != origin.sha256:
            raise InputError(f"{path} is damaged: its SHA-256 is not {origin.sha256}; remove it and fetch it again")


def _copied(here: Path, target: Path) -> Path:
    with _writable(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(here, target.with_name(target.name + ".partial"))
        os.replace(target.with_name(target.name + ".partial"), target)
        if _record(here).is_file():
            shutil.copyfile(_record(here), _record(target))
    return target


def _record(path: Path) -> Path:
    return path.with_suffix(".json")


def _folders() -> list[Path]:
    folder = models_folder()
    return [folder, _own_folder()] if folder else [_own_folder()]


def _own_folder() -> Path:
    return cache_folder() / "encoders"


def _in_hub_cache(known: KnownEncoder) -> Path | None:
    """Return a file that another program has downloaded from the hub; None without one."""
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(known.repository, WEIGHTS)
    return Path(found) if isinstance(found, str) else None


@contextmanager
def _explained(name: str, known: KnownEncoder | None = None) -> Iterator[None]:
    """Return an error of the network as one line with a remedy."""
    try:
        yield
    except InputError:
        raise
    except urllib.error.HTTPError as error:
        if known and error.code in (401, 403):
            raise InputError(
                f"{name} is given only to those who accept its licence ({known.licence}): download {WEIGHTS} from "
                f"{HUB}/{known.repository}, save it as FOLDER/{name}.safetensors and set TWINCLUSTER_MODELS=FOLDER"
            ) from error
        raise InputError(f"{name} cannot be downloaded: {error.url} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None)
        why = first_line(reason if isinstance(reason, BaseException) else error)
        raise InputError(
            f"{name} is not on this machine and cannot be downloaded ({why}): try again, or where there is a network "
            f"run `twincluster encoders fetch {name} --to FOLDER` and set TWINCLUSTER_MODELS=FOLDER here"
        ) from error


@contextmanager
def _writable(target: Path) -> Iterator[None]:
    try:
        yield
    except (PermissionError, NotADirectoryError, FileExistsError) as error:
        raise InputError(
            f"{target.parent} cannot be written ({error.strerror}): set TWINCLUSTER_CACHE to another folder"
        ) from error
    except OSError as error:
        if error.errno in (28, 30, 122):  # no space, read-only, quota
            raise InputError(
                f"{target.parent} cannot be written ({error.strerror}): set TWINCLUSTER_CACHE to another folder"
            ) from error
        raise


class _Bar:
    """The progress of a download: a bar on a terminal, otherwise a line from time to time."""

    def __init__(self, name: str) -> None:
        self.name, self.stream = name, sys.__stderr__
        self.started = self.told = time.monotonic()

    def __call__(self, done: int, total: int) -> None:
        if self.stream is None or not total:
            return
        now, on_terminal = time.monotonic(), self.stream.isatty()
        if now - self.told < (0.2 if on_terminal else LINE_SECONDS) and done < total:
            return
        self.told = now
        share = done / total
        said = f"downloading {self.name}: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
        if on_terminal:
            bar = "#" * round(20 * share) + "." * (20 - round(20 * share))
            print(f"\r{said} [{bar}]", end="\n" if done >= total else "", file=self.stream, flush=True)
        else:
            print(said, file=self.stream, flush=True)
