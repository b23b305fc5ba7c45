"""Settings that one method alone has: kept as written until the method is known, then checked by its types."""

import json
from dataclasses import dataclass, fields
from typing import Literal

import pytest

from small_runs import KINDS, images_of, small_config
from twincluster.config import Config, Count, CountOrNone, Positive, Share, differences, make_config, method_settings
from twincluster.core import InputError
from twincluster.methods import METHODS


@dataclass(frozen=True)
class Mine:
    temperature: Positive = 0.5
    size: Count = 3
    queue: CountOrNone = 0
    ema: tuple[Share, Share] = (0.9, 1.0)
    kind: Literal["soft", "hard"] = "soft"
    weight: float = 1.0


def test_they_are_read_as_the_dataclass_of_the_method() -> None:
    config = make_config({"own": {"temperature": 1, "ema": [0, 1]}})
    assert method_settings(config, Mine) == Mine(temperature=1.0, ema=(0.0, 1.0))
    assert method_settings(Config(), Mine) == Mine()


@pytest.mark.parametrize(
    "own,message",
    [
        ({"temprature": 1}, "no setting 'own.temprature', did you mean 'own.temperature'?"),
        ({"zzz": 1}, "no setting 'own.zzz': expected one of temperature, size, queue, ema, kind, weight"),
        ({"temperature": 0}, "own.temperature is 0.0: expected a number above 0"),
        ({"temperature": float("inf")}, "own.temperature is inf: expected a finite number"),
        ({"size": 0}, "own.size is 0: expected a number above 0"),
        ({"size": 1.5}, "own.size is 1.5: expected a whole number"),
        ({"queue": -1}, "own.queue is -1: expected a number of 0 or more"),
        ({"ema": [0.5, 1.1]}, "own.ema is 1.1: expected a number from 0 to 1"),
        ({"ema": 0.5}, "own.ema is 0.5: expected 2 numbers, for example [0.2, 1.0]"),
        ({"kind": "firm"}, "own.kind is 'firm': expected one of 'soft', 'hard'"),
    ],
)
def test_wrong_ones_are_refused_by_name(own: dict, message: str) -> None:
    config = make_config({"own": own})
    with pytest.raises(InputError) as caught:
        method_settings(config, Mine)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", METHODS)
def test_no_method_of_ours_takes_a_whole_number_below_0(name: str) -> None:
    settings = METHODS[name].settings_type
    whole = [field.name for field in fields(settings) if type(field.default) is int]
    for field in whole:
        with pytest.raises(InputError, match=f"own.{field} is -1: expected a number"):
            method_settings(make_config({"own": {field: -1}}), settings)


def test_they_add_to_those_of_the_recipe_but_another_method_starts_anew() -> None:
    recipe = make_config({"method": "moco", "own": {"temperature": 0.3, "hidden": 8}})
    assert make_config({"own": {"hidden": 16}}, recipe).groups["own"] == {"temperature": 0.3, "hidden": 16}
    assert make_config({"method": "moco"}, recipe).groups["own"] == recipe.groups["own"]
    assert make_config({"method": "cc", "own": {"hidden": 16}}, recipe).groups["own"] == {"hidden": 16}


def test_resolved_they_are_complete_and_survive_a_file() -> None:
    images = images_of(KINDS["rows"])
    config = small_config(images, "method=cc", "own.hidden=16")
    assert config.groups["own"] == {
        "temperature": 0.5, "cluster_temperature": 1.0, "n_features": 128, "hidden": 16, "entropy_weight": 1.0,
    }  # fmt: skip
    again = make_config(json.loads(json.dumps(config.to_dict())))
    assert again == config
    other = small_config(images, "method=cc", "own.hidden=8")
    assert differences(config, other) == differences(other, config) == ["own.hidden"]
    assert "own.queue_size" in differences(config, small_config(images, "method=moco"))
