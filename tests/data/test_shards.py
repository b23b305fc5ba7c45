"""WebDataset shards, written by webdataset itself: one row per image, labels beside them, damage, and a second run."""

import os
import tarfile
import warnings
from pathlib import Path

import numpy as np
import pytest
import webdataset
from PIL import Image
from small_shards import encoded, expected_pixels, opened, pack, write_shards
from sourcing import complaint

from command_line import COLOURS
from twincluster.data import open_source


def test_a_row_for_every_image_that_webdataset_reads(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path)
    images = opened(pattern)
    assert images.listing.name == "s-{000..002}.tar"
    assert images.listing.paths[:2] == ("s-000.tar/part/0000.png", "s-000.tar/part/0001.png")
    assert images.listing.paths[-1] == "s-002.tar/part/0023.png"
    assert images.listing.skipped == 24 * 3
    assert images.listing.labels is None
    assert images.status == ("ok",) * 24
    theirs = [np.asarray(sample["png"]) for sample in webdataset.WebDataset(pattern, shardshuffle=False).decode("rgb8")]
    assert np.array_equal(images.pixels, np.stack(theirs))


def test_one_shard_a_glob_and_several_folders(tmp_path: Path) -> None:
    write_shards(tmp_path / "train")
    write_shards(tmp_path / "val", 3)
    assert len(open_source(tmp_path / "train" / "s-001.tar").paths) == 10
    assert open_source(f"{tmp_path}/val/*.tar").paths[0] == "s-000.tar/part/0000.png"
    both = open_source(f"{tmp_path}/{{val,train}}/s-*.tar")
    assert both.paths[:3] == tuple(f"val/s-000.tar/part/000{n}.png" for n in range(3))
    assert both.paths[3] == "train/s-000.tar/part/0000.png"
    assert len(set(both.paths)) == 27


def test_labels_only_when_asked_for(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path)
    assert open_source(pattern).labels is None
    truth = [number % 3 for number in range(24)]
    by_class = open_source(pattern, labels="cls")
    assert (by_class.labels.tolist(), by_class.class_names) == (truth, None)  # type: ignore[union-attr]
    numbers, names = open_source(pattern, labels="json:number"), open_source(pattern, labels="json:colour")
    assert numbers.labels.tolist() == truth  # type: ignore[union-attr]
    assert names.class_names == ("blue", "green", "red")
    assert [names.class_names[code] for code in names.labels] == [COLOURS[code] for code in truth]  # type: ignore[union-attr]
    assert (
        complaint(pattern, labels="json:size") == "s-{000..002}.tar has no field size in any .json: choose other labels"
    )
    assert "expected none, folders" in complaint(pattern, labels="json:")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "b.png")
    assert "labels cls need shards" in complaint(tmp_path, labels="cls")


def test_labels_stay_with_their_sample(tmp_path: Path) -> None:
    """One without a label, one without an image, one with a damaged label, two images of one, and a key twice."""
    files = [
        ("a.png", b"1"),
        ("b.cls", b"1"),
        ("c.json", b"{"),
        ("c.cls", b" 2\n"),
        ("c.left.PNG", b""),
        ("c.jpg", b""),
    ]
    files += [
        ("d.cls", b"3"),
        ("d.png", b"1"),
        ("e.json", b'{"n": 7}'),
        ("e.png", b"1"),
        ("d.png", b"1"),
        ("d.cls", b"4"),
    ]
    path = pack(tmp_path / "a.tar", files)
    listing = open_source(path, labels="cls")
    assert listing.paths == tuple(
        f"a.tar/{name}" for name in ("a.png", "c.left.PNG", "c.jpg", "d.png", "e.png", "d.png#2")
    )
    assert listing.labels.tolist() == [-1, 2, 2, 3, -1, 4]  # type: ignore[union-attr]
    assert open_source(path, labels="json:n").labels.tolist() == [-1, -1, -1, -1, 7, -1]  # type: ignore[union-attr]


def test_texts_are_no_labels(tmp_path: Path) -> None:
    texts = (b"cat", b"x" * 100_000, b"caf\xe9", b"dog\n")
    files = [(f"{number}{ending}", text) for number, text in enumerate(texts) for ending in (".png", ".cls")]
    listing = open_source(pack(tmp_path / "a.tar", files), labels="cls")
    assert listing.class_names == (r"caf\xe9", "cat", "dog")
    assert listing.labels.tolist() == [1, -1, 0, 2]  # type: ignore[union-attr]


def test_names_are_never_paths(tmp_path: Path) -> None:
    """Upwards, absolute, with a newline, not UTF-8, links: each row has its own pixels, and no file is touched."""
    outside = tmp_path / "outside.png"
    outside.write_bytes(encoded(0))
    names = [
        "../outside.png",
        str(outside),
        "./here.png",
        "two\nlines.png",
        os.fsdecode(b"caf\xe9.png"),
        "x.png",
        "x.png",
    ]
    path = pack(tmp_path / "a.tar", [(name, encoded(number)) for number, name in enumerate(names)])
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("link.png")
        link.type, link.linkname = tarfile.SYMTYPE, str(outside)
        archive.addfile(link)
    before = sorted(tmp_path.iterdir())
    images = opened(path)
    assert np.array_equal(images.pixels[:7], expected_pixels(7))
    assert images.listing.paths == (
        "a.tar/../outside.png", f"a.tar/{outside}", "a.tar/here.png", r"a.tar/two\nlines.png", r"a.tar/caf\xe9.png",
        "a.tar/x.png", "a.tar/x.png#2", "a.tar/link.png",
    )  # fmt: skip
    assert images.status == ("ok",) * 7 + ("unreadable: link or device in an archive",)
    assert sorted(tmp_path.iterdir()) == before


def test_bad_images_keep_their_rows(tmp_path: Path) -> None:
    whole = encoded(1, "JPEG")
    files = [
        ("a.jpg", whole),
        ("b.jpg", whole[: len(whole) // 2]),
        ("c.jpg", b""),
        ("d.jpg", b"text"),
        ("e.png", whole),
    ]
    images = opened(pack(tmp_path / "a.tar", files))
    assert images.status == (
        "ok", "incomplete", "unreadable: empty file", "unreadable: not a known image format", "ok",
    )  # fmt: skip
    assert np.array_equal(images.pixels[0], images.pixels[4])


@pytest.mark.parametrize("format, suffix", [("TIFF", "tif"), ("GIF", "gif"), ("WEBP", "webp"), ("TGA", "tga")])
def test_other_formats_as_in_a_file(tmp_path: Path, suffix: str, format: str) -> None:
    content = encoded(2, format)
    (tmp_path / "files").mkdir()
    for name in ("a", "b"):
        (tmp_path / "files" / f"{name}.{suffix}").write_bytes(content)
    path = pack(tmp_path / "a.tar", [("note", b"x" * 333), (f"a.{suffix}", content), (f"b.{suffix}", content)])
    packed, unpacked = opened(path), opened(tmp_path / "files")
    assert packed.status == unpacked.status == ("ok", "ok")
    assert np.array_equal(packed.pixels, unpacked.pixels)


@pytest.mark.parametrize("kept", [0.35, 0.6])
def test_truncated_shard(tmp_path: Path, kept: float) -> None:
    pattern = write_shards(tmp_path)
    shard = tmp_path / "s-001.tar"
    shard.write_bytes(shard.read_bytes()[: int(shard.stat().st_size * kept)])
    with pytest.warns(UserWarning, match=r"s-001.tar: truncated archive; found [0-9] images before the damage"):
        images = opened(pattern)
    paths, status = images.listing.paths, dict(zip(images.listing.paths, images.status, strict=True))
    assert status["s-001.tar"] == "unreadable: truncated archive"
    inside = [path for path in paths if path.startswith("s-001.tar/")]
    assert 2 < len(inside) < 10
    assert paths == (
        *(f"s-000.tar/part/{n:04d}.png" for n in range(10)), *inside, "s-001.tar",
        *(f"s-002.tar/part/{n:04d}.png" for n in range(20, 24)),
    )  # fmt: skip
    readable = [int(path[-8:-4]) for path in paths if status[path] == "ok"]
    assert np.array_equal(images.pixels[images.usable], expected_pixels(24)[readable])
    assert len(readable) >= len(paths) - 2  # the shard itself, and perhaps the image that it breaks off in


def test_what_is_no_archive(tmp_path: Path) -> None:
    pattern = write_shards(tmp_path)
    (tmp_path / "s-001.tar").write_text("no archive at all\n" * 100)
    with pytest.warns(UserWarning, match="s-001.tar: not a tar archive; found 0 images before the damage"):
        images = opened(pattern)
    assert len(images.usable) == 14
    assert images.status[10] == "unreadable: not a tar archive"
    with warnings.catch_warnings(action="ignore"):
        alone = complaint(tmp_path / "s-001.tar")
    assert alone == "s-001.tar contains no images (s-001.tar: not a tar archive): name shards that contain images"
    pack(tmp_path / "text.tar", [("a.txt", b"1"), ("b", b"2")])
    assert "text.tar contains no images (2 other files)" in complaint(tmp_path / "text.tar")
    os.mkfifo(tmp_path / "pipe.tar")
    with warnings.catch_warnings(action="ignore"):
        assert "(pipe.tar: not a regular file)" in complaint(tmp_path / "pipe.tar")
        assert len(open_source(f"{tmp_path}/{{pipe,s-000}}.tar", labels="cls").paths) == 11


def test_patterns_that_fit_nothing(tmp_path: Path) -> None:
    write_shards(tmp_path)
    assert "s-003.tar (1 of 4 files) is missing" in complaint(f"{tmp_path}/s-{{000..003}}.tar")
    assert "no file matches" in complaint(f"{tmp_path}/t-*.tar")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    assert "a.png is not a .tar file: patterns name shards" in complaint(f"{tmp_path}/*.png")
    (tmp_path / "a.tgz").write_bytes(b"\x1f\x8b")
    assert "or shards (.tar)" in complaint(tmp_path / "a.tgz")
