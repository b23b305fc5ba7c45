"""The command line: what each command prints, writes and answers, in this process and as a shell sees it."""

import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import twincluster
from command_line import TINY, Done, colours, colours_file, command, worked
from twincluster import model
from twincluster.cli import app as cli
from twincluster.config import load_recipe, recipe_names
from twincluster.methods import METHODS
from twincluster.runs import Assignments, Run

SOURCE = Path(twincluster.__file__).parents[1]
COMMANDS = ("fit", "predict", "update", "evaluate", "export", "demo", "recipes", "methods")


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of each test, with images.npy and colours.npz."""
    monkeypatch.chdir(tmp_path)
    np.save("images.npy", colours()[0])
    colours_file(Path())
    return tmp_path


def fit(*more: object, source: object = "images.npy") -> Done:
    return worked("fit", source, "--clusters", 3, *TINY, *more)


def settings_of(run: str) -> dict[str, object]:
    settings: dict[str, object] = json.loads(Path(run, "config.json").read_text())
    return settings


# -- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    page = worked(name, "--help").out
    assert f"Usage: twincluster {name}" in page
    assert re.search(rf"^Example: twincluster {name}", page, re.MULTILINE)


def test_examples_in_the_help_can_be_parsed() -> None:
    """Each is bound to its command's parameters, without running it."""
    for name in COMMANDS:
        (example,) = re.findall(r"^Example: twincluster (.*)$", worked(name, "--help").out, re.MULTILINE)
        bound = cli.app.parse_args(example.split(), exit_on_error=False, print_error=False)[0]
        assert bound.__name__ == name


def test_the_first_page_shows_where_to_start() -> None:
    for page in (worked("--help").out, worked().out):
        assert "Start with: twincluster demo" in page
        assert "Example: twincluster fit photos/ --clusters 12 --out runs/photos" in page
    assert worked("--version").out == f"{twincluster.__version__}\n"


def test_what_needs_no_torch_does_not_import_it() -> None:
    program = """if True:
        import sys
        from twincluster.cli import main
        for arguments in sys.argv[1:]:
            status = main(arguments.split())
            assert status in (0, 2), (arguments, status)
        assert not {"torch", "sklearn", "scipy"} & set(sys.modules)
    """
    arguments = ["recipes", "recipes digits", "recipes pica-cifar10 --toml", "methods --help",
                 "predict --help", "update --help", "evaluate --help", "export --help",
                 "demo --help", "fit", "fit nowhere -k 3", "fit x.npy -k 1", "fit digits -k 3 --recipe x",
                 "demo --epochs 0"]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


# -- lists -----------------------------------------------------------------------------------------------------------


def test_recipes_are_listed_with_a_line_each() -> None:
    lines = worked("recipes").out.splitlines()
    for name in recipe_names():
        assert [line for line in lines if line.startswith(f"{name} ")] == [f"{name:22} {load_recipe(name).about}"]
        assert load_recipe(name).about
    assert lines[-1] == "twincluster recipes NAME shows one in full"


def test_a_recipe_is_shown_in_full() -> None:
    page, recipe = worked("recipes", "digits").out, load_recipe("digits")
    assert f"command    {recipe.command}\n" in page
    assert f"    train.epochs = {recipe.settings['train']['epochs']}\n" in page
    assert page.endswith("\n\ntwincluster methods anchored explains these settings\n")
    assert command("recipes", "digts").complaint == "no recipe 'digts', did you mean 'digits'?"


def test_methods_are_listed_with_a_line_each() -> None:
    lines = worked("methods").out.splitlines()
    assert lines[-2:] == ["", "twincluster methods NAME shows one with its settings"]
    lines = lines[:-2]
    assert [line.split()[0] for line in lines] == list(METHODS)
    assert all(len(line.split()) > 4 for line in lines)
    assert len({len(re.match(r"\S+ +", line)[0]) for line in lines}) == 1  # the sentences stand under each other


# -- fit -------------------------------------------------------------------------------------------------------------


def test_fit_says_what_it_found_and_what_to_do_next() -> None:
    done = fit("--out", "my run", source="colours.npz")
    first, *rest = done.out.splitlines()
    assert first == "48 inputs in colours.npz, 3 clusters"
    sizes = Run("my run").read_assignments().sizes(3)
    assert rest[0] == f"sizes {sizes[0]} {sizes[1]} {sizes[2]}"
    assert re.fullmatch(r"ACC \d\.\d{4}  NMI \d\.\d{4}  ARI -?\d\.\d{4}  on the whole set", rest[1])
    assert rest[2:] == [
        "one row per input in my run/assignments.csv",
        "next: twincluster predict 'my run' NEW_IMAGES --out new.csv",
        "report: open my run/report.html in a browser",
    ]
    assert re.search(r"^training: 100% in \d+ s; epoch 1: loss ", done.err, re.MULTILINE)


def test_options_reach_the_settings() -> None:
    fit("--out", "run", "--seed", 7, "--set", "augment.flip=0.25", "--recipe", "digits")
    config, data = Run("run").config, Run("run").data
    assert (config.n_clusters, config.seed, config.train.epochs) == (3, 7, 1)
    assert config.augment.flip == 0.25
    assert config.optimiser.warmup == load_recipe("digits").settings["optimiser"]["warmup"]
    assert data.location == str(Path("images.npy").absolute())
    assert settings_of("run")["versions"]["twincluster"] == twincluster.__version__


def test_minutes_replace_the_epochs() -> None:
    short = [argument for argument in TINY if argument not in ("--epochs", "1")]
    worked("fit", "images.npy", "-k", 3, "--out", "run", "--minutes", 0.002, *short)
    config = Run("run").config
    assert config.train.minutes == 0.002
    assert Run("run").read_metrics()[-1]["progress"] == 1


def test_the_same_command_gives_the_same_run_and_another_seed_another() -> None:
    for out, seed in (("one", 1), ("two", 1), ("three", 2)):
        fit("--out", out, "--seed", seed)
    one, two, three = (Path(out, "model.safetensors").read_bytes() for out in ("one", "two", "three"))
    assert one == two != three


def test_without_a_name_runs_are_numbered() -> None:
    for _ in range(2):
        fit()
    Path("photos.v2").mkdir()
    for row, image in enumerate(colours(4)[0]):
        Image.fromarray(image).save(f"photos.v2/{row}.png")
    fit(source="photos.v2/")
    assert {run.name for run in Path("runs").iterdir()} == {"images", "images-2", "photos.v2"}


def test_rows_get_a_recipe_for_rows() -> None:
    np.save("rows.npy", np.random.default_rng(0).normal(size=(30, 4)))
    worked("fit", "rows.npy", "-k", 3, "--epochs", 1, "--out", "run")
    wanted, config = load_recipe("rows").settings, Run("run").config
    assert (config.train.backbone, config.optimiser.name) == ("mlp", wanted["optimiser"]["name"])
    assert config.groups["anchored"]["hidden"] == wanted["anchored"]["hidden"]


def test_a_method_without_a_recipe_says_whose_settings_it_gets() -> None:
    tiny = [*TINY[: TINY.index("anchored.hidden=16") - 1], "--set", "tcc.n_features=8"]
    said = "using tcc with the settings of recipe default; recipe paper-cifar10 has those of its paper"
    assert worked("fit", "images.npy", "-k", 3, "--out", "one", "--method", "tcc", *tiny).out.splitlines()[1] == said
    done = worked("fit", "images.npy", "-k", 3, "--out", "two", "--method", "tcc", "--recipe", "default", *tiny)
    assert "recipe" not in done.out
    assert "recipe" not in fit("--out", "three", "--method", "anchored").out
    np.save("rows.npy", np.random.default_rng(0).normal(size=(30, 4)))
    done = worked("fit", "rows.npy", "-k", 3, "--epochs", 1, "--out", "four", "--set", "method=moco")
    assert "using moco with the settings of recipe rows; recipe moco-cifar10 has those of its paper\n" in done.out


def test_a_named_set_is_not_mistaken_for_a_folder_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "twincluster.clustering.neighbours.FEWEST", 10**9
    )  # a map by PCA: t-SNE takes far longer than the fit
    Path("digits").mkdir()
    arguments = ["--set", "train.batch_size=512", "--set", "anchored.hidden=8", "--set", "anchored.n_features=8"]
    worked("fit", "digits", "--recipe", "digits", "--epochs", 1, "--out", "run", *arguments)
    assert Run("run").data.location == "digits"
    assert "kNN accuracy" in worked("evaluate", "run").out


def test_resume_goes_on_with_more_epochs() -> None:
    settings = TINY[TINY.index("--set") :]
    arguments = ("fit", "images.npy", "-k", 3, "--out", "run", *settings)
    worked(*arguments, "--epochs", 2)
    worked(*arguments, "--epochs", 3, "--resume")
    assert [row["epoch"] for row in Run("run").read_metrics()] == [0, 1, 2]


def test_a_name_that_cannot_be_printed_costs_nothing() -> None:
    out, err = io.TextIOWrapper(io.BytesIO(), "ascii"), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = cli.main(["fit", "images.npy", "-k", "3", "--out", "run \udcff é", *TINY])
    assert status == 0, err.getvalue()
    out.seek(0)
    assert r"run \udcff \xe9/assignments.csv" in out.read()
    assert Path("run \udcff é", "model.safetensors").exists()


# -- predict ---------------------------------------------------------------------------------------------------------


def test_predict_writes_both_kinds_of_table() -> None:
    fit("--out", "run")
    np.save("new.npy", np.random.default_rng(0).integers(0, 256, (9, 40, 25, 3), dtype=np.uint8))  # oblong and larger
    assert worked("predict", "run", "new.npy", "--out", "a/b/new.csv").out == "9 rows in a/b/new.csv\n"
    worked("predict", "run", "new.npy", "--out", "new.parquet")
    written, table = Assignments.read(Path("a/b/new.csv")), pyarrow.parquet.read_table("new.parquet").to_pydict()
    assert list(table) == ["path", "cluster", "confidence", "status"]
    assert table["path"] == list(written.paths) == [str(row) for row in range(9)]
    assert table["cluster"] == written.clusters.tolist()
    np.testing.assert_allclose(table["confidence"], written.confidence, atol=1e-4)
    assert set(table["status"]) == {"ok"}


def test_predict_on_the_training_data_repeats_the_assignments() -> None:
    fit("--out", "run")
    worked("predict", "run", "images.npy", "--out", "again.csv")
    assert Path("again.csv").read_text() == Path("run/assignments.csv").read_text()


def test_parquet_without_pyarrow_is_told_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    fit("--out", "run")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr(model, "predict", lambda *_: pytest.fail("too late"))
    done = command("predict", "run", "images.npy", "--out", "new.parquet")
    assert done.complaint == ("new.parquet needs a package: pip install 'twincluster[parquet]', or name a .csv file")
