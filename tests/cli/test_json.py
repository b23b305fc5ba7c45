"""--json: one JSON document on stdout and nothing else, with the keys that docs/scripts.md names."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from command_line import TINY, worked
from twincluster.core import strict_json

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "small.npy"
    np.save(path, np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8))
    return path


def result_of(*arguments: object) -> dict[str, object]:
    done = worked(*arguments, "--json")
    content = json.loads(done.out)
    assert strict_json(content, indent=2) + "\n" == done.out
    return dict(content)


def documented(command: str) -> set[str]:
    """The keys in the row of docs/scripts.md about a command."""
    text = (ROOT / "docs" / "scripts.md").read_text()
    (row,) = re.findall(rf"^\| `{command}` \| (.*) \|$", text, re.MULTILINE)
    return set(re.findall(r"`(\w+)`", row))


def test_each_command_prints_what_the_page_names(images: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    fitted = result_of("fit", images, "--clusters", 2, *TINY, "--recipe", "digits", "--out", out)
    assert set(fitted) == documented("fit")
    assert (fitted["run"], fitted["inputs"], fitted["n_clusters"], fitted["scores"]) == (str(out), 40, 2, None)
    assert sum(fitted["sizes"]) == 40  # type: ignore[call-overload]
    predicted = result_of("predict", out, images, "--out", tmp_path / "new.csv")
    assert set(predicted) == documented("predict")
    assert predicted == {"table": str(tmp_path / "new.csv"), "inputs": 40, "problems": {}}
    assert set(result_of("report", out)) == documented("report")
    assert set(result_of("export", out, "--to", "csv", tmp_path / "all.csv")) == documented("export")
    assert documented("evaluate") <= set(result_of("evaluate", out))
    assert documented("update") <= set(result_of("update", out, images))
    assert documented("doctor") == set(result_of("doctor"))


def test_lists_are_json_too() -> None:
    for command, one in (("recipes", "digits"), ("methods", "tcc"), ("encoders", "pretrained")):
        names = [entry["name"] for entry in json.loads(worked(command, "--json").out)]
        assert one in names
    shown = json.loads(worked("recipes", "digits", "--json").out)
    assert shown["settings"]["method"] == "anchored"
