"""`benchmarks walk`: files count when one of their functions is called, in the order of the first call."""

from pathlib import Path

import pytest

from benchmarks import walk
from twincluster.core import InputError


def test_a_walk_lists_the_files_whose_functions_are_called(tmp_path: Path) -> None:
    files = list(walk._by_file(walk._walk(tmp_path, "recipes", "digits")))
    assert files.index("cli/app.py") < files.index("cli/look_up.py") < files.index("config/options.py")
    assert "config/schema.py" in files
    assert not any(file.startswith(("training/", "nn/")) for file in files)


def test_a_command_that_fails_ends_the_benchmark_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="recipes failed: .*no recipe 'digit'"):
        walk._walk(tmp_path, "recipes", "digit")


def test_the_table_counts_files_and_shortens_long_lists() -> None:
    calls = [("fit.py", name, False) for name in "abcde"] + [("model.py", "load", False), ("fit.py", "a", False)]
    assert walk.Walks({"fit": walk._by_file(calls)}).to_text().splitlines() == [
        "fit: 2 files, 6 functions",
        "   1  fit.py                          a, b, c, d, ...",
        "   2  model.py                        load",
    ]
