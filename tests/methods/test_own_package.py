"""A method of a user's own: the example of docs/adding-a-method.md, word for word, through all that a run does."""

import re
import sys
from pathlib import Path

import numpy as np
import pytest

from command_line import colours_file, command, worked
from small_runs import pictures
from twincluster.core import InputError
from twincluster.estimator import TwinContrastClustering
from twincluster.methods import METHODS, find_method
from twincluster.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"
SMALL = ("--clusters", 3, "--device", "cpu", "--set", "train.batch_size=16", "--set", "train.image_size=8")
OWN = ("--set", "own.n_features=8", "--set", "own.temperature=0.2", "--method", "simclr:Simclr")


@pytest.fixture
def simclr(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the example, on the path of Python."""
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "simclr.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("simclr", None)


def test_fit_resume_predict_and_evaluate(simclr: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, run = colours_file(simclr), simclr / "run"
    worked("fit", data, *SMALL, *OWN, "--epochs", 2, "--out", run)
    config = Run(run).config
    assert (config.method, config.groups["own"]) == ("simclr:Simclr", {"temperature": 0.2, "n_features": 8})
    worked("fit", data, *SMALL, *OWN, "--epochs", 4, "--out", run, "--resume")
    assert [row["epoch"] for row in Run(run).read_metrics()] == [0, 1, 2, 3]
    assert "own.temperature" in command("fit", data, *SMALL, *OWN, "--set", "own.temperature=0.3", "--out", run,
                                        "--resume").complaint  # fmt: skip
    assert "ACC" in worked("evaluate", run).out

    sys.modules.pop("simclr")  # as in the next process
    refused = command("predict", run, data, "--out", simclr / "new.csv").complaint
    assert refused.endswith("set TWINCLUSTER_METHODS=simclr in the environment, or import simclr first")
    assert "simclr" not in sys.modules
    monkeypatch.setenv("TWINCLUSTER_METHODS", "another, simclr")
    worked("predict", run, data, "--out", simclr / "new.csv")
    rows = (simclr / "new.csv").read_text().splitlines()
    assert [row.split(",")[1] for row in rows] == [
        row.split(",")[1] for row in (run / "assignments.csv").read_text().splitlines()
    ]


def test_in_the_estimator(simclr: Path) -> None:
    settings = {"method": "simclr:Simclr", "own.n_features": 8, "train.image_size": 8, "train.batch_size": 8}
    with pytest.raises(InputError, match="import simclr first"):
        TwinContrastClustering(3, settings=settings, epochs=1).fit(pictures()[0])
    __import__("simclr")
    model = TwinContrastClustering(3, settings=settings, epochs=1, random_state=0).fit(pictures()[0])
    model.save(simclr / "run")
    again = TwinContrastClustering.load(simclr / "run")
    np.testing.assert_array_equal(again.predict(pictures()[0]), model.labels_)


@pytest.mark.parametrize(
    "name,message",
    [
        ("moko", "there is no method 'moko', did you mean 'moco'?"),
        ("zzz", "there is no method 'zzz': choose one of anchored, tcc"),
        (
            "no_such_module:Simclr",
            "the method no_such_module:Simclr cannot be imported (No module named 'no_such_module'",
        ),
        ("simclr:Simcler", "simclr:Simcler is not a method: expected a class derived from "),
        ("os:getcwd", "os:getcwd is not a method"),
        (":Simclr", "the method :Simclr cannot be imported"),
        ("simclr:", "simclr: is not a method"),
    ],
)
def test_wrong_names(simclr: Path, name: str, message: str) -> None:
    done = command("fit", colours_file(simclr), *SMALL, "--method", name, "--out", simclr / "run")
    assert done.complaint.startswith(message)
    assert not (simclr / "run").exists()


@pytest.mark.parametrize(
    "setting,message",
    [
        ("own.temprature=1", "no setting 'own.temprature', did you mean 'own.temperature'?"),
        ("own.temperature=0", "own.temperature is 0.0: expected a number above 0"),
        ("own.n_features=2.5", "own.n_features is 2.5: expected a whole number"),
        ("own.ema=1.5", "own.ema is 1.5: expected a number from 0 to 1"),
        ("own=3", "own is a group of settings: write own.FIELD=VALUE"),
    ],
)
def test_wrong_settings_are_told_before_anything_is_decoded(simclr: Path, setting: str, message: str) -> None:
    done = command("fit", colours_file(simclr), *SMALL, "--method", "moco", "--set", setting, "--out", simclr / "run")
    assert done.complaint == message


def test_a_recipe_may_not_name_code(simclr: Path) -> None:
    (simclr / "theirs.toml").write_text('method = "simclr:Simclr"\n')
    done = command("fit", colours_file(simclr), *SMALL, "--recipe", simclr / "theirs.toml", "--out", simclr / "run")
    assert "runs code from outside twincluster" in done.complaint
    assert "simclr" not in sys.modules


def test_methods_without_settings_of_their_own() -> None:
    assert command("fit", "digits", "--set", "own.x=1").complaint == "no setting 'own': anchored has no such group"


def test_names_are_classes() -> None:
    assert all(find_method(name) is method for name, method in METHODS.items())
