"""What is remembered of an archive: used while it is the same, never when it is another or was damaged."""

import os
import shutil
from pathlib import Path

import pytest
from small_shards import encoded, pack, write_shards

from twincluster.data import open_source
from twincluster.data import shards as tar_index
from twincluster.data.shards import index_of, read_index


@pytest.fixture(autouse=True)
def searches(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The archives that were searched; every archive is large enough to remember."""
    searched: list[Path] = []

    def search(path: Path) -> tar_index.Index:
        searched.append(path)
        return read_index(path)

    monkeypatch.setattr(tar_index, "read_index", search)
    monkeypatch.setattr(tar_index, "FEWEST", 1)
    return searched


def test_an_archive_is_searched_once_until_it_changes(tmp_path: Path, searches: list[Path]) -> None:
    odd = "caf\udce9 \n.png"  # bytes that are no UTF-8, as Python carries them
    archive = pack(tmp_path / "a.tar", [("x/1.png", encoded(1)), (odd, encoded(2)), ("x/1.cls", b"3")])
    first = index_of(archive)
    assert index_of(archive) == first == read_index(archive)
    assert len(first[0]) == 3
    assert len(searches) == 1
    pack(archive, [("y.png", encoded(1))])
    assert [entry.name for entry in index_of(archive)[0]] == ["y.png"]
    assert len(searches) == 2
    os.utime(archive, ns=(7, 7))
    index_of(archive)
    assert len(searches) == 3


def test_a_listing_is_the_same_from_memory(tmp_path: Path, searches: list[Path]) -> None:
    pattern = write_shards(tmp_path)
    first, again = (open_source(pattern, labels="cls") for _ in range(2))
    assert len(searches) == 3
    assert (again.paths, again.files) == (first.paths, first.files)
    assert again.labels is not None
    assert first.labels is not None
    assert again.labels.tolist() == first.labels.tolist()


@pytest.mark.parametrize("content", [b"", b"{", b"[[1, 2, 3]]", b"[[1, 2, 3], [[1, 2, 3, 4]]]", b"\xff\xfe"])
def test_memory_that_is_damaged_is_of_no_account(
    tmp_path: Path, own_cache: Path, searches: list[Path], content: bytes
) -> None:
    archive = pack(tmp_path / "a.tar", [("1.png", encoded(1))])
    first = index_of(archive)
    (place,) = (own_cache / "shards").iterdir()
    place.write_bytes(content)
    assert index_of(archive) == first
    assert len(searches) == 2
    assert index_of(archive) == first  # written anew
    assert len(searches) == 2


def test_what_is_not_remembered(
    tmp_path: Path, own_cache: Path, searches: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pack(tmp_path / "a.tar", [(f"{number}.png", encoded(number)) for number in range(5)])
    torn = tmp_path / "torn.tar"
    torn.write_bytes(archive.read_bytes()[:3000])
    for _ in range(2):
        entries, problem = index_of(torn)
        assert problem == "truncated archive"
        assert 0 < len(entries) < 5
        assert index_of(tmp_path / "nowhere.tar") == ([], "missing file")
    assert not (own_cache / "shards").exists()
    monkeypatch.setattr(tar_index, "FEWEST", 6)
    index_of(archive)
    assert not (own_cache / "shards").exists()  # too few to be worth it
    monkeypatch.setattr(tar_index, "FEWEST", 1)
    shutil.rmtree(own_cache)
    own_cache.write_text("in the way")
    assert len(index_of(archive)[0]) == 5
