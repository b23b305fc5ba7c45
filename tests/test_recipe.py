"""Recipe files: found by name and by path, read whole, and refused with the file's name."""

import re
from pathlib import Path

import pytest

from twincluster import recipe as recipe_module
from twincluster.config import Config, differences, make_config
from twincluster.errors import InputError
from twincluster.recipe import load_recipe, recipe_names

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
    for name in ("zzz", "missing.toml", str(recipes)):
        with pytest.raises(InputError, match=f"^no recipe '{re.escape(name)}'; `twincluster recipes` lists them$"):
            load_recipe(name)


@pytest.mark.parametrize(
    "content,message",
    [
        (b"seed = ", "is not valid TOML: "),
        (b"seed = 1\nseed = 2", "is not valid TOML: "),
        (b"\xff\xfe", "is not valid TOML: "),
        (b"recipe = 3", "write [recipe] as a table"),
        (b"[recipe]\nmeasured = 3", "[[recipe.measured]] as a list of tables"),
    ],
)
def test_broken_recipe_names_the_file(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load_recipe(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_packaged_recipes_are_valid() -> None:
    assert recipe_names()
    for name in recipe_names():
        recipe = load_recipe(name)
        make_config(recipe.settings)
        assert recipe.about, f"{name} says nothing about itself"
