"""Patterns of file names: what braces stand for, what is found, and what is said of files that are not there."""

from pathlib import Path

import pytest
from braceexpand import braceexpand

from twincluster.core import InputError
from twincluster.data.shards import braces, matching


@pytest.mark.parametrize(
    "pattern",
    [
        "s-{000..012}.tar",
        "s-{8..11}.tar",
        "s-{08..11}.tar",
        "s-{3..0}.tar",
        "s-{0..20..5}.tar",
        "{train,val}/s-{00..02}.tar",
        "{a,b{1,2}}.tar",
        "plain.tar",
        "s-{1}.tar",
        "s-{}.tar",
        "s-{a,}.tar",
    ],
)
def test_braces_stand_for_what_webdataset_takes_them_for(pattern: str) -> None:
    ours = list(braces(pattern))
    assert sorted(set(ours)) == sorted(set(braceexpand(pattern)))
    if pattern.count("{") == 1 or "}/" in pattern:
        assert ours == list(braceexpand(pattern))


def test_files_in_the_order_of_the_pattern(tmp_path: Path) -> None:
    for name in ("b1", "b2", "a2", "a1", "c"):
        (tmp_path / f"{name}.tar").touch()

    def names(pattern: str) -> list[str]:
        return [Path(found).stem for found in matching(f"{tmp_path}/{pattern}")]

    assert names("*.tar") == ["a1", "a2", "b1", "b2", "c"]
    assert names("{b,a}?.tar") == ["b1", "b2", "a1", "a2"]
    assert names("{c,c,a1,*}.tar") == ["c", "a1", "a2", "b1", "b2"]
    assert names("[bc]*.tar") == ["b1", "b2", "c"]
    (tmp_path / "odd{1,2}[x].tar").touch()
    assert names("odd{1,2}[x].tar") == ["odd{1,2}[x]"]


def test_complaints(tmp_path: Path) -> None:
    (tmp_path / "s-1.tar").touch()
    for pattern, said in {
        "s-{1..2}.tar": "s-2.tar (1 of 2 files) is missing: add the missing files, or change ",
        "s-{0..4}.tar": "s-0.tar and 3 more of 5 files are missing: add the missing files, or change ",
        "t-*.tar": "t-*.tar: no file matches; check the pattern",
        "s-{0..9999999999}.tar": "names more than 1,000,000 files: check its numbers",
        "{0..99999}{0..99999}.tar": "names more than 1,000,000 files: check its numbers",
    }.items():
        with pytest.raises(InputError) as caught:
            matching(f"{tmp_path}/{pattern}")
        assert said in str(caught.value)
