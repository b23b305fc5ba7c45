"""A recipe of a user's own: the example of docs/method.md, word for word, and what `recipes` does for it."""

import re
from pathlib import Path

import pytest
from PIL import Image

from command_line import colours, command, worked
from twincluster.config.options import RECIPES
from twincluster.runs import Run

PAGE = Path(__file__).parents[2] / "docs" / "method.md"
SMALL = ("--epochs", 1, "--device", "cpu", "--set", "train.backbone=small", "--set", "train.batch_size=24",
         "--set", "own.hidden=8")  # fmt: skip


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def example() -> tuple[str, list[list[str]]]:
    """The recipe, and the words of each command."""
    section = PAGE.read_text(encoding="utf-8").split("## Recipes of your own\n")[1].split("\n## ")[0]
    recipe, commands = re.findall(r"```(?:toml)?\n(.*?)```", section, re.DOTALL)
    return recipe, [line.split()[1:] for line in commands.splitlines()]


def test_the_example_of_the_page() -> None:
    recipe, (start, show, fit) = example()
    start, to = start[: start.index(">")], start[-1]
    Path(to).write_text(worked(*start).out, encoding="utf-8")
    assert 'method = "moco"' in worked(*show).out
    Path(to).write_text(recipe, encoding="utf-8")
    assert worked(*show).out.startswith("mine: momentum contrast for our photographs\n")
    Path("photos").mkdir()
    for row, image in enumerate(colours()[0]):
        Image.fromarray(image).save(f"photos/{row}.png")
    worked(*fit, *SMALL)
    config = Run("runs/mine").config
    assert (config.method, config.n_clusters, config.optimiser.learning_rate) == ("moco", 12, 0.03)
    assert (
        config.groups["own"]["queue_size"],
        config.groups["own"]["temperature"],
        config.groups["own"]["hidden"],
    ) == (4096, 0.1, 8)


def test_a_recipe_is_printed_as_it_is() -> None:
    for name in ("digits", "pica-cifar10"):
        assert worked("recipes", name, "--toml").out == (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    assert command("recipes", "--toml").complaint.startswith("--toml prints one recipe file: name it")


@pytest.mark.parametrize(
    "content", ["[tcc]\nalhpa = 0.1", "epochs = 3", "seed = -1", "[train]\nepochs = 0.5", "[recipe]\nabuot = 'x'"]
)
def test_what_fit_refuses_is_not_shown(content: str) -> None:
    Path("mine.toml").write_text(content)
    refused = command("fit", "digits", "--recipe", "mine.toml", "--out", "run").complaint
    for more in ((), ("--toml",)):
        assert command("recipes", "mine.toml", *more).complaint == refused
