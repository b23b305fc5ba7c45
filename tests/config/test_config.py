"""Settings: what is accepted, and that every refusal names the field and says what to write instead."""

import dataclasses
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twincluster.config import Config, differences, make_config, parse_overrides
from twincluster.core import InputError
from twincluster.resolve import check_method


def checked(nested: dict) -> Config:
    """The settings with those of their method, as a fit checks them."""
    method = "tcc" if isinstance(nested.get("tcc"), dict) else "auto"
    return check_method(make_config({"method": method, **nested}))


def refusal(nested: dict) -> str:
    with pytest.raises(InputError) as caught:
        checked(nested)
    message = str(caught.value)
    assert "\n" not in message
    return message


# -- make_config -------------------------------------------------------------------------------------------------------


def test_nothing_changed_is_the_default() -> None:
    assert make_config({}) == Config()
    assert make_config({"train": {}}) == Config()


def test_settings_replace_the_base_and_leave_the_rest() -> None:
    base = make_config({"n_clusters": 7, "tcc": {"alpha": 0.25, "centred": True}})
    changed = make_config({"tcc": {"alpha": 0.75}, "optimiser": {"name": "sgd"}}, base)
    assert (changed.n_clusters, changed.groups["tcc"]) == (7, {"alpha": 0.75, "centred": True})
    assert changed.optimiser.name == "sgd"
    assert base.groups["tcc"]["alpha"] == 0.25  # nothing is changed in place
    with pytest.raises(dataclasses.FrozenInstanceError):
        base.n_clusters = 1


@pytest.mark.parametrize(
    "nested,message",
    [
        ({"n_cluster": 3}, "no setting 'n_cluster', did you mean 'n_clusters'?"),
        ({"tcc": {"alhpa": 0.1}}, "no setting 'tcc.alhpa', did you mean 'tcc.alpha'?"),
        ({"optimizer": {"name": "sgd"}}, "no setting 'optimizer', did you mean 'optimiser'?"),
        ({"train": {"zzz": 1}}, "no setting 'train.zzz': expected one of epochs, minutes, batch_size, "),
        ({"train": 3}, "train is a group of settings: write train.FIELD=VALUE"),
        ({"n_clusters": "ten"}, "n_clusters is 'ten': expected a whole number"),
        ({"n_clusters": 2.5}, "n_clusters is 2.5: expected a whole number"),
        ({"n_clusters": True}, "n_clusters is True: expected a whole number"),
        ({"n_clusters": {"x": 1}}, "n_clusters is {'x': 1}: expected a whole number"),
        ({"tcc": {"alpha": "half"}}, "tcc.alpha is 'half': expected a number"),
        ({"tcc": {"alpha": True}}, "tcc.alpha is True: expected a number"),
        ({"tcc": {"alpha": [0.5]}}, "tcc.alpha is [0.5]: expected a number"),
        ({"tcc": {"centred": 1}}, "tcc.centred is 1: expected true or false"),
        ({"tcc": {"centred": "yes"}}, "tcc.centred is 'yes': expected true or false"),
        ({"train": {"backbone": 18}}, "train.backbone is 18: expected a word"),
        ({"tcc": {"entropy": "none"}}, "tcc.entropy is 'none': expected one of 'sample', 'batch'"),
        ({"optimiser": {"name": 1}}, "optimiser.name is 1: expected one of 'adam', 'sgd'"),
        ({"optimiser": {"schedule": ["cosine"]}}, "optimiser.schedule is ['cosine']: expected one of 'constant', "),
        ({"augment": {"crop_area": [0.2]}}, "augment.crop_area is [0.2]: expected 2 numbers, for example [0.2, 1.0]"),
        ({"augment": {"crop_area": [0.2, 0.5, 1.0]}}, "augment.crop_area is [0.2, 0.5, 1.0]: expected 2 numbers"),
        ({"augment": {"crop_area": 0.2}}, "augment.crop_area is 0.2: expected 2 numbers"),
        ({"augment": {"crop_area": ["a", 1]}}, "augment.crop_area is 'a': expected a number"),
        ({"anchored": {"ema": [0.9, False]}}, "anchored.ema is False: expected a number"),
    ],
)  # fmt: skip
def test_wrong_names_and_types(nested: dict, message: str) -> None:
    assert refusal(nested).startswith(message)


@pytest.mark.parametrize(
    "name,value,message",
    [
        ("tcc.alpha", 1.5, "tcc.alpha is 1.5: expected a number from 0 to 1"),
        ("tcc.alpha", -0.1, "tcc.alpha is -0.1: expected a number from 0 to 1"),
        ("augment.flip", 2, "augment.flip is 2.0: expected a number from 0 to 1, or -1"),
        ("anchored.ema", [0.9, 1.1], "anchored.ema is (0.9, 1.1): expected numbers from 0 to 1"),
        ("tcc.temperature", 0, "tcc.temperature is 0.0: expected a number above 0"),
        ("tcc.n_features", 0, "tcc.n_features is 0: expected a number above 0"),
        ("optimiser.learning_rate", -1.0, "optimiser.learning_rate is -1.0: expected a number above 0"),
        ("n_clusters", -3, "n_clusters is -3: expected a number of 0 or more"),
        ("train.epochs", -1, "train.epochs is -1: expected a number of 0 or more"),
        ("augment.brightness", -0.4, "augment.brightness is -0.4: expected a number of 0 or more"),
        ("train.checkpoint_minutes", -1, "train.checkpoint_minutes is -1.0: expected a number of 0 or more"),
        ("augment.crop_area", [0, 1], "augment.crop_area is (0.0, 1.0): expected numbers above 0"),
        ("augment.crop_area", [0.5, 1.5], "augment.crop_area is (0.5, 1.5): expected numbers from 0 to 1"),
        ("augment.crop_area", [0.9, 0.2], "augment.crop_area is [0.9, 0.2]: write the smaller number first"),
        ("augment.crop_ratio", [-1, 2], "augment.crop_ratio is (-1.0, 2.0): expected numbers above 0"),
        ("augment.blur_sigma", [2, 1], "augment.blur_sigma is [2.0, 1.0]: write the smaller number first"),
        ("augment.hue", 0.6, "augment.hue is 0.6: the colour circle allows at most 0.5"),
        ("train.image_size", 1_000_000, "train.image_size is 1000000: expected a number from 0 to 4096"),
        ("optimiser.learning_rate", 1e308, "optimiser.learning_rate is 1e+308: expected a number of at most 3e+38"),
        ("augment.rotate", 10**400, f"augment.rotate is 1{'0' * 19}: expected a number of at most 3e+38"),
        ("train.batch_size", 2**60, "train.batch_size is 1152921504606846976: expected a number of at most 9.01e+15"),
        ("train.minutes", float("nan"), "train.minutes is nan: expected a finite number"),
        ("optimiser.learning_rate", float("inf"), "optimiser.learning_rate is inf: expected a finite number"),
        ("augment.crop_ratio", [1.0, float("inf")], "augment.crop_ratio is inf: expected a finite number"),
    ],
)  # fmt: skip
def test_out_of_range(name: str, value: object, message: str) -> None:
    assert refusal(nest({name: value})) == message


def test_limits_themselves_are_allowed() -> None:
    limits = {
        "tcc.alpha": 1,
        "tcc.ema": 0,
        "augment.crop_area": [1, 1],
        "augment.hue": 0.5,
        "train.epochs": 0,
        "seed": -5,
    }
    found = flat(checked(nest(limits)))
    assert {name: found[name] for name in limits} == {**limits, "augment.crop_area": (1.0, 1.0)}


def test_whole_numbers_pass_for_floats_and_lists_for_tuples() -> None:
    made = checked({"augment": {"crop_area": [1, 1]}, "anchored": {"ema": (0, 1), "shrinkage": 1}})
    settings = made.groups["anchored"]
    assert [type(value) for value in (settings["shrinkage"], *made.augment.crop_area, *settings["ema"])] == [float] * 5


def nest(flat_settings: dict[str, object]) -> dict:
    nested: dict = {}
    for name, value in flat_settings.items():
        section, _, leaf = name.rpartition(".")
        (nested.setdefault(section, {}) if section else nested)[leaf] = value
    return nested


def flat(made: Config) -> dict[str, object]:
    pairs: dict[str, object] = {}
    for name, value in made.to_dict().items():
        pairs.update(
            {f"{name}.{leaf}": inner for leaf, inner in value.items()} if isinstance(value, dict) else {name: value}
        )
    return pairs


# -- round trips and differences ---------------------------------------------------------------------------------------

CHANGES = {
    "method": st.sampled_from(["tcc", "anchored"]),
    "n_clusters": st.integers(0, 500),
    "seed": st.integers(-9, 2**40),
    "tcc.alpha": st.floats(0, 1),
    "tcc.entropy": st.sampled_from(["sample", "batch"]),
    "tcc.centred": st.booleans(),
    "train.minutes": st.floats(0, 1e6),
    "train.backbone": st.text(max_size=8),
    "augment.crop_area": st.tuples(st.floats(0.01, 0.5), st.floats(0.5, 1)),
    "anchored.ema": st.tuples(st.floats(0, 1), st.floats(0, 1)),
}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.fixed_dictionaries({}, optional=CHANGES))
def test_round_trip_and_differences(changes: dict[str, object]) -> None:
    made = make_config(nest(changes))
    assert make_config(made.to_dict()) == made
    assert make_config(json.loads(json.dumps(made.to_dict()))) == made  # as config.json of a run holds it
    defaults = flat(Config())
    of_methods = [name for name in changes if name not in defaults]
    assert sorted(differences(Config(), made)) == sorted(
        of_methods + [name for name in defaults if changes.get(name, defaults[name]) != defaults[name]]
    )
    assert sorted(differences(made, Config())) == sorted(differences(Config(), made))
    assert differences(made, made) == []


# -- overrides ---------------------------------------------------------------------------------------------------------


def test_overrides_are_read_as_toml_else_as_text() -> None:
    pairs = ["tcc.alpha=0.25", "tcc.centred=true", "train.backbone=resnet18", 'train.device="cuda"', "seed=3",
             "augment.crop_area=[0.5, 1]", "optimiser.learning_rate = 1e-3", "tcc.instance_queue=12_800"]  # fmt: skip
    assert parse_overrides(pairs) == {
        "tcc": {"alpha": 0.25, "centred": True, "instance_queue": 12800},
        "train": {"backbone": "resnet18", "device": "cuda"},
        "seed": 3,
        "augment": {"crop_area": [0.5, 1]},
        "optimiser": {"learning_rate": 1e-3},
    }
    assert parse_overrides([]) == {}


def test_the_last_override_wins_and_values_may_hold_equals_signs() -> None:
    assert parse_overrides(["tcc.alpha=0.1", "tcc.alpha=0.2"]) == {"tcc": {"alpha": 0.2}}
    assert parse_overrides(["train.backbone=a=b"]) == {"train": {"backbone": "a=b"}}


@pytest.mark.parametrize("text,value", [(".25", 0.25), ("1.", 1.0), ("+.5", 0.5), ("1", 1.0), ("1E-1", 0.1)])
def test_numbers_as_people_write_them(text: str, value: float) -> None:
    assert checked(parse_overrides([f"tcc.alpha={text}"])).groups["tcc"]["alpha"] == value


@pytest.mark.parametrize(
    "pairs,message",
    [
        (["tcc.alpha"], "--set 'tcc.alpha': expected FIELD=VALUE, for example --set optimiser.learning_rate=0.05"),
        (["tcc.alpha="], "tcc.alpha is '': expected a number"),
        (["tcc.alpha=high"], "tcc.alpha is 'high': expected a number"),
        (["tcc.centred=True"], "tcc.centred is 'True': expected true or false"),
        (["train=1"], "train is a group of settings: write train.FIELD=VALUE"),
        (["tcc=1", "tcc.alpha=0.5"], "--set 'tcc.alpha=0.5': tcc is also set to 1; set only one of them"),
        (["tcc.alpha.more=1"], "tcc.alpha is {'more': 1}: expected a number"),
        (["tcc.aplha=1"], "no setting 'tcc.aplha', did you mean 'tcc.alpha'?"),
        (["flip=1"], "no setting 'flip', did you mean augment.flip?"),
        (["zzz=1"], "no setting 'zzz': expected one of method, n_clusters"),
        (["optimizer.name=sgd"], "no setting 'optimizer', did you mean 'optimiser'?"),
        (["=1"], "no setting '': expected one of method, n_clusters"),
        (["train.minutes=nan"], "train.minutes is nan: expected a finite number"),
    ],
)  # fmt: skip
def test_wrong_overrides(pairs: list[str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        checked(parse_overrides(pairs))
    assert str(caught.value).startswith(message)


def test_config_is_light() -> None:
    """The command line's help must not wait for torch."""
    heavy = "{'torch', 'torchvision', 'numpy', 'scipy', 'sklearn', 'PIL', 'pandas'}"
    code = f"import sys, twincluster.config.schema; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
