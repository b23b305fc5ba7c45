"""Recipe files: found by name and by path, read whole, and refused with the file's name."""

import re
import tomllib
from pathlib import Path

import pytest

from twincluster.config import Config, as_toml, differences, load_recipe, make_config, other_settings, recipe_names
from twincluster.config import options as recipe_module
from twincluster.core import InputError

RECIPE = """
method = "tcc"
[recipe]
about = "for the test"
command = "twincluster fit somewhere"
data = "somewhere"
published = { acc = 0.9 }
[[recipe.measured]]
acc = 0.8
seeds = [0, 1]
[tcc]
alpha = 0.25
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of recipes with one file, in place of the packaged one."""
    monkeypatch.setattr(recipe_module, "RECIPES", tmp_path)
    (tmp_path / "small-one.toml").write_text(RECIPE, encoding="utf-8")
    return tmp_path


def test_recipe_by_name_and_by_path(recipes: Path) -> None:
    assert recipe_names() == ["small-one"]
    recipe = load_recipe("small-one")
    assert recipe == load_recipe(recipes / "small-one.toml") == load_recipe(str(recipes / "small-one.toml"))
    assert (recipe.name, recipe.about, recipe.data) == ("small-one", "for the test", "somewhere")
    assert recipe.command == "twincluster fit somewhere"
    assert recipe.published == {"acc": 0.9}
    assert recipe.measured == ({"acc": 0.8, "seeds": [0, 1]},)
    assert recipe.settings == {"method": "tcc", "tcc": {"alpha": 0.25}}
    assert differences(Config(), make_config(recipe.settings)) == ["method", "tcc.alpha"]


def test_recipe_may_be_settings_alone(tmp_path: Path) -> None:
    (tmp_path / "bare.toml").write_text("seed = 4\n")
    recipe = load_recipe(tmp_path / "bare.toml")
    assert (recipe.about, recipe.measured, recipe.settings) == ("", (), {"seed": 4})


def test_unknown_recipe(recipes: Path) -> None:
    with pytest.raises(InputError, match="^no recipe 'smal-one', did you mean 'small-one'\\?$"):
        load_recipe("smal-one")
    with pytest.raises(InputError, match="^no recipe 'zzz'; `twincluster recipes` lists them$"):
        load_recipe("zzz")
    for name in ("missing.toml", "folder/missing.toml", "folder/small-one", str(recipes)):
        with pytest.raises(InputError, match=f"^no recipe '{re.escape(name)}': the file does not exist$"):
            load_recipe(name)


def test_the_end_of_a_file_name_may_be_forgotten(recipes: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(recipes)
    (recipes / "own").mkdir()
    for name in ("own/mine", "./small-one"):
        (recipes / f"{name}.toml").write_text("seed = 4\n")
        with pytest.raises(InputError, match=f"^no recipe '{name}', did you mean '{name}.toml'\\?$"):
            load_recipe(name)


@pytest.mark.parametrize(
    "content,message",
    [
        (b"seed = ", "is not valid TOML: "),
        (b"seed = 1\nseed = 2", "is not valid TOML: "),
        (b"\xff\xfe", "is not valid TOML: "),
        (b"recipe = 3", "write [recipe] as a table"),
        (b"[recipe]\nmeasured = 3", "[[recipe.measured]] as a list of tables"),
        (b"[recipe]\nmeasured = [3]", "[[recipe.measured]] as a list of tables"),
        (b"[recipe]\npublished = 0.9", "recipe.published is 0.9: expected a table"),
        (b"[recipe]\nabout = 3", "recipe.about is 3: expected text in quotes"),
        (b"[recipe]\nabuot = 'mine'", "no entry 'recipe.abuot', did you mean 'recipe.about'?"),
        (b"[recipe]\nzzz = 1", "no entry 'recipe.zzz': expected one of about, command, data, published, measured"),
        (b"seed = 1\n\n\n\nmethod = tcc\n", '(at line 5, column 10); text needs quotes: method = "tcc"'),
        (b"method = tcc-repaired  # ours", '; text needs quotes: method = "tcc-repaired"'),
        (b"[anchored]\r\ninstance = infonce", '; text needs quotes: instance = "infonce"'),
        (b"[train]\nfinetune = True", "(at line 2, column 12); write finetune = true"),
    ],
)
def test_broken_recipe_names_the_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_only_bare_words_are_told_about_quotes(tmp_path: Path) -> None:
    for content in ("seed = ", "seed = 1\nseed = 2", "seed = [1, 2", "a b = 1", 'method = "tcc'):
        (tmp_path / "broken.toml").write_text(content)
        with pytest.raises(InputError) as caught:
            load_recipe(tmp_path / "broken.toml")
        assert "quotes" not in str(caught.value)


def test_what_is_shown_can_be_pasted() -> None:
    """The settings of every recipe, as its page shows them, are TOML and the same settings."""
    for name in recipe_names():
        recipe = load_recipe(name)
        shown = recipe.describe().partition("  settings\n")[2].rpartition("\n\n")[0]
        assert tomllib.loads(shown) == recipe.settings


def test_as_toml() -> None:
    values = ['a "word" é \U0001f600', True, 3, 1e-05, 0.5, [0.2, 1.0], ["a", "b"], ""]
    assert [tomllib.loads(f"value = {as_toml(value)}")["value"] for value in values] == values
    assert as_toml((0.2, 1.0)) == "[0.2, 1.0]"


def test_a_page_leaves_out_what_a_recipe_does_not_say(tmp_path: Path) -> None:
    (tmp_path / "bare.toml").write_text("seed = 4\n")
    assert load_recipe(tmp_path / "bare.toml").describe().splitlines() == [
        "bare",
        "  measured   nothing yet",
        "  settings",
        "    seed = 4",
    ]


def test_packaged_recipes_are_valid() -> None:
    assert recipe_names()
    for name in recipe_names():
        recipe = load_recipe(name)
        make_config(recipe.settings)
        assert recipe.about, f"{name} says nothing about itself"


@pytest.mark.parametrize(
    "method,source,told",
    [
        ("tcc", "photos/", "recipe paper-cifar10 has those of its paper"),
        ("tcc", "imagenet_dogs", "recipe paper-imagenet-dogs has those of its paper"),
        ("tcc-without-l1", "stl10", "recipe paper-stl10 has those of its paper"),
        ("tcc-repaired", "stl10", "recipe repaired-digits has those made for it"),
        ("deepcluster_v2", "photos/", "recipe deepcluster-v2-cifar10 has those of its paper"),
    ],
)
def test_settings_made_for_a_method_are_named(method: str, source: str, told: str) -> None:
    said = f"using {method} with the settings of recipe default; {told}"
    assert other_settings(method, "default", source) == said


def test_where_no_settings_are_made_for_a_method_nothing_is_said() -> None:
    for method in ("mine:Tcc", "nothing"):
        assert other_settings(method, "default", "cifar10") is None
