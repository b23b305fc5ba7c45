"""`twincluster doctor`: what it finds, in words and as JSON, and how it clears the cache."""

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from twincluster.cli import doctor
from twincluster.cli.app import main


def test_doctor_names_versions_encoders_and_problems(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["packages"]["torch"] == {"version": metadata.version("torch"), "extra": None}
    assert found["packages"]["timm"]["extra"] == "encoders"
    assert found["cache"]["folder"] == str(own_cache)
    assert found["environment"]["TWINCLUSTER_CACHE"] == str(own_cache)
    assert found["problems"] == []
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert f"torch {metadata.version('torch')}" in said
    assert said.endswith("no problems found\n")


def test_doctor_says_what_is_missing_and_which_extra_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def version(name: str) -> str:
        if name in ("timm", "numpy"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr(doctor.metadata, "version", version)
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "missing    timm: pip install 'twincluster[encoders]'" in said
    assert "problem: numpy is missing: pip install numpy" in said
    assert "no problems found" not in said


def test_doctor_without_torch_still_answers(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open shared object file')\n")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from twincluster.cli import main; sys.exit(main(['doctor']))"
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "problem: torch cannot be imported: OSError, libcudart.so" in done.stdout


def test_clear_cache_deletes_what_we_kept_and_nothing_else(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = own_cache / ("0123456789ab" * 2)
    (own_cache / "features").mkdir()
    kept.mkdir()
    (kept / "pixels.npy").write_bytes(bytes(range(256)) * 2**14)
    (own_cache / "mine").mkdir()
    (own_cache / "mine" / "letter.txt").write_text("keep me")
    assert main(["doctor", "--json"]) == 0
    cache = json.loads(capsys.readouterr().out)["cache"]
    assert (cache["sources"], cache["bytes"] >= 2**22) == (1, True)
    assert main(["doctor", "--clear-cache"]) == 0
    assert "freed 4 MB" in capsys.readouterr().out
    assert [path.name for path in own_cache.iterdir()] == ["mine"]
    assert (own_cache / "mine" / "letter.txt").read_text() == "keep me"
