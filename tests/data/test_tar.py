"""The index of an archive: the same entries as Python's own tarfile finds, and an honest end where it is damaged."""

import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twincluster.data.shards import BLOCK, Packed, read_index

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def pack(path: Path, contents: dict[str, bytes], format: int = tarfile.GNU_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as archive:
        for name, content in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def by_tarfile(path: Path) -> list[Packed]:
    with tarfile.open(path, "r:", encoding="utf-8", errors="surrogateescape") as archive:
        return [Packed(e.name, e.offset_data, e.size, e.isreg()) for e in archive if not e.isdir()]


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_as_tarfile_reads_it(tmp_path: Path, format: str) -> None:
    contents = {
        "a.jpg": b"1" * 700,
        "empty.png": b"",
        "block.png": b"2" * BLOCK,
        f"{'deep/' * 30}b.jpg": b"3",
        "größe.cls": b"7",
        os.fsdecode(b"caf\xe9.jpg"): b"4" * 513,
    }
    if format != "ustar":
        contents[f"{'long' * 60}.jpg"] = b"5" * 10
    path = pack(tmp_path / "a.tar", contents, FORMATS[format])
    entries, problem = read_index(path)
    assert problem == ""
    assert entries == by_tarfile(path)
    assert [entry.name for entry in entries] == list(contents)
    whole = path.read_bytes()
    assert [whole[entry.start : entry.start + entry.size] for entry in entries] == list(contents.values())


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1), max_size=6),
    sizes=st.lists(st.integers(0, 2000), min_size=6, max_size=6),
    format=st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_any_names_and_sizes(tmp_path: Path, names: list[str], sizes: list[int], format: int) -> None:
    contents = {name: bytes(size) for name, size in zip(names, sizes, strict=False)}
    path = pack(tmp_path / "a.tar", contents, format)
    assert read_index(path) == (by_tarfile(path), "")


def test_links_and_folders(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, kind in (("d.jpg", tarfile.DIRTYPE), ("l.jpg", tarfile.SYMTYPE), ("h.jpg", tarfile.LNKTYPE)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = kind, "/etc/passwd" * 20
            archive.addfile(entry)
    entries, problem = read_index(tmp_path / "a.tar")
    assert [(entry.name, entry.is_file) for entry in entries] == [("l.jpg", False), ("h.jpg", False)]
    assert problem == ""


def test_sizes_beyond_octal_digits(tmp_path: Path) -> None:
    """More than 8 GiB, in a file with a hole: nothing but headers is read."""
    for format, size in ((tarfile.GNU_FORMAT, 9 << 30), (tarfile.PAX_FORMAT, 10 << 30)):
        entry = tarfile.TarInfo("large.bin")
        entry.size = size
        with open(path := tmp_path / f"{format}.tar", "wb") as file:
            file.write(entry.tobuf(format))
            file.seek(size, os.SEEK_CUR)
            file.write(tarfile.TarInfo("b.jpg").tobuf(format) + bytes(2 * BLOCK))
        entries, problem = read_index(path)
        assert [(entry.name, entry.size) for entry in entries] == [("large.bin", size), ("b.jpg", 0)]
        assert problem == ""


@pytest.mark.parametrize("cut", [700, 1024, 1536, 1600, 2200])
def test_cut_short(tmp_path: Path, cut: int) -> None:
    """Two entries of a header and two blocks each; the one that breaks off is still named."""
    path = pack(tmp_path / "a.tar", {"a.jpg": bytes(1000), "b.jpg": bytes(1000)})
    path.write_bytes(path.read_bytes()[:cut])
    entries, problem = read_index(path)
    assert problem == "truncated archive"
    assert [entry.name for entry in entries] == (["a.jpg"] if cut < 3 * BLOCK + BLOCK else ["a.jpg", "b.jpg"])


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"", "empty file"),
        (b"hello", "not a tar archive"),
        (b"x" * 2000, "not a tar archive"),
        (b"\x1f\x8b" + b"x" * 2000, "compressed archive"),
        (b"\x28\xb5\x2f\xfdx", "compressed archive"),
        (bytes(2 * BLOCK), ""),
    ],
)
def test_what_is_no_archive(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.tar").write_bytes(content)
    assert read_index(tmp_path / "a.tar") == ([], problem)


def test_damaged_in_the_middle(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.tar", {"a.jpg": bytes(10), "b.jpg": bytes(10)})
    whole = bytearray(path.read_bytes())
    whole[2 * BLOCK + 3] ^= 0xFF
    path.write_bytes(whole)
    entries, problem = read_index(path)
    assert ([entry.name for entry in entries], problem) == (["a.jpg"], "damaged archive")


def test_missing_and_folder(tmp_path: Path) -> None:
    assert read_index(tmp_path / "none.tar") == ([], "missing file")
    assert read_index(tmp_path)[1] == "is a directory"


@pytest.mark.parametrize("size", [b"-0000000512\0", b"\xff" * 12, b"\x80" + b"\xff" * 11, b"9999\0".ljust(12, b"\0")])
def test_sizes_that_lead_nowhere(tmp_path: Path, size: bytes) -> None:
    """Backwards, far beyond any file, or no number: the search ends."""
    header = bytearray(tarfile.TarInfo("a.jpg").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:]) + 256)
    (tmp_path / "a.tar").write_bytes(bytes(header) + bytes(4 * BLOCK))
    assert read_index(tmp_path / "a.tar") == ([], "damaged archive")


def test_noise_never_raises(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    contents = {f"{'n' * 120}{number}.jpg": bytes(30) for number in range(3)}
    whole = np.frombuffer(pack(tmp_path / "a.tar", contents, tarfile.PAX_FORMAT).read_bytes(), np.uint8)
    for _ in range(300):
        spoiled = whole.copy()
        places = random.integers(0, len(whole) // 2, 3)
        spoiled[places] = random.integers(0, 256, 3)
        (tmp_path / "b.tar").write_bytes(spoiled.tobytes())
        entries, _ = read_index(tmp_path / "b.tar")
        assert len(entries) <= 3
