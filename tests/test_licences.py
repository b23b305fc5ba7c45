"""Every package that twincluster installs has a licence that somebody has looked at, and docs/licences.md lists it."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

import licences  # noqa: E402


def test_all_licences_are_known_and_listed() -> None:
    done = subprocess.run([sys.executable, ROOT / "tools" / "licences.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    page = (ROOT / "docs" / "licences.md").read_text()
    names = licences.dependencies()
    assert {"torch", "numpy", "cyclopts", "safetensors"} <= names
    assert [name for name in sorted(names) if f"| {name} | {licences.licence_of(name)} |" not in page] == []


@pytest.mark.parametrize(
    "licence,known",
    [
        ("MIT", True), ("MIT OR GPL-3.0-only", True), ("(Apache-2.0 AND MIT)", True), ("MIT AND GPL-3.0-only", False),
        ("AGPL-3.0", False), ("", False), ("UNKNOWN", False), ("Apache-2.0 WITH LLVM-exception", True),
    ],
)  # fmt: skip
def test_what_is_known(licence: str, known: bool) -> None:
    assert licences.is_known(licence) is known
