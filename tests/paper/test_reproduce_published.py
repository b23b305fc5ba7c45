"""The numbers of the paper's tables, and what follows from them without training."""

import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from command_line import command, worked
from twincluster.cli.reproduce import CONTENTS, SETS
from twincluster.clustering import CLASSICS
from twincluster.config import load_recipe, recipe_names
from twincluster.methods import METHODS, READINGS
from twincluster.paper import ITEMS, Asked, tables
from twincluster.paper.tables import published, short
from twincluster.resolve import check_method


def test_rows_are_those_of_the_paper() -> None:
    counts = {table: len(published(table)) for table in (2, 3, 4, 5)}
    assert counts == {2: 28, 3: 9, 4: 3, 5: 3}
    commented = {
        row.name: row.scores["cifar10"] for table in (2, 3) for row in published(table) if "comment" in row.note
    }
    assert commented == {
        "k-means": (0.229, 0.087, 0.049), "SC": (0.247, 0.103, 0.085), "SCL": (0.733, 0.669, 0.568),
        "stochastic cluster representation": (0.877, 0.736, 0.715),
    }  # fmt: skip
    assert not next(row for row in published(2) if row.method == "average").scores
    tcc = published(2)[-1]
    assert tcc.scores["cifar10"] == (0.906, 0.79, 0.733)
    assert tcc.scores["imagenet_dogs"] == (0.595, 0.554, 0.417)
    adc = next(row for row in published(2) if row.name == "ADC")
    assert adc.scores["cifar10"] == (0.325, None, None)
    assert "imagenet10" not in adc.scores


def test_rows_agree_with_the_recipes() -> None:
    """What a recipe claims to be published is what the table has."""
    compared = 0
    for data in SETS:
        if data == "digits":
            continue
        recipe = load_recipe(f"paper-{data.replace('_', '-')}")
        table = published(4 if data == "tiny_imagenet" else 2)
        assert table[-1].scores[data] == tuple(recipe.published[score] for score in ("acc", "nmi", "ari"))
    for row in published(2):
        for data in SETS:
            name = f"{row.method}-{data}".replace("_", "-")
            told = load_recipe(name).published if name in recipe_names() else {}
            if "You Never Cluster Alone" in str(told.get("table", "")):
                assert row.scores[data] == tuple(told.get(score) for score in ("acc", "nmi", "ari")), name
                compared += 1
    assert compared > 10


def test_methods_of_all_rows_are_here_or_known_to_be_missing() -> None:
    named = {row.method for table in (2, 3, 4, 5) for row in published(table)}
    assert named <= {*METHODS, *CLASSICS}


def test_our_readings_are_not_compared() -> None:
    named = {row.method for row in published(2)}
    assert set(READINGS) < named
    assert not {training.name for item in ITEMS.values() for training in item.trainings("cifar10")} & set(READINGS)


def test_everything_listed_can_be_made() -> None:
    assert list(ITEMS) == list(CONTENTS)
    listed = worked("reproduce").out
    assert all(name in listed for name in ITEMS)


def p_values(folder: Path) -> dict[tuple[str, str], dict[str, float]]:
    """Run `reproduce table6` and read its CSV."""
    worked("reproduce", "table6", "--out", folder)
    with (folder / "table6.csv").open(encoding="utf-8", newline="") as file:
        return {
            (row.pop("first"), row.pop("second")): {name: float(p) for name, p in row.items()}
            for row in csv.DictReader(file)
        }


def test_all_printed_p_values_follow_from_the_filled_tables(tmp_path: Path) -> None:
    pairs = p_values(tmp_path)
    assert len(pairs) == 36
    assert list(next(iter(pairs.values()))) == ["printed", "tables_alone", "filled_in"]
    assert all(round(row["filled_in"], 4) == row["printed"] for row in pairs.values())
    complete = {"MMDC", "GATCluster", "CC", "IDFD"}  # whose cells are all printed
    alone = {names for names, row in pairs.items() if round(row["tables_alone"], 4) == row["printed"]}
    assert alone == {names for names in pairs if complete.issuperset(names)}


def test_p_values_are_computed_from_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = p_values(tmp_path)
    rows = published(2)
    cc = next(place for place, row in enumerate(rows) if row.name == "CC")
    rows[cc] = replace(rows[cc], scores={**rows[cc].scores, "cifar10": (0.8, None, None)})  # instead of .79
    monkeypatch.setattr(tables, "published", lambda table: rows)
    after = p_values(tmp_path)
    for names in before:
        for column in ("tables_alone", "filled_in"):
            assert (after[names][column] != before[names][column]) == ("CC" in names), names
    monkeypatch.setitem(tables.FILLED_IN, "PICA", {"stl10": 66.0})
    refilled = p_values(tmp_path)
    for names in after:
        assert (refilled[names]["filled_in"] != after[names]["filled_in"]) == ("PICA" in names), names
        assert refilled[names]["tables_alone"] == after[names]["tables_alone"]


def test_p_value_is_one_sided_and_of_pairs(tmp_path: Path) -> None:
    """By hand: mean of the differences over its standard error, against Student's t."""
    from scipy.stats import t

    rows = {row.name: row for row in published(2)}
    cc, moco = (rows[name].scores for name in ("CC", "MoCo baseline"))
    differences = np.array([cc[name][0] - moco[name][0] for name in moco])  # type: ignore[operator]
    ratio = differences.mean() / (differences.std(ddof=1) / len(differences) ** 0.5)
    assert len(differences) == 4
    assert p_values(tmp_path)["CC", "MoCo baseline"]["tables_alone"] == pytest.approx(t.sf(ratio, 3))


def test_the_network_of_the_paper() -> None:
    said = worked("reproduce", "figure7").out
    assert "resnet34 at 32 px: 21.3 million weights" in said
    assert "5 x block of 3 x 3 and 3 x 3" in said
    assert "convolution 7 x 7, stride 2" in worked("reproduce", "figure7", "--data", "stl10").out
    assert "resnet18 at 32 px" in worked("reproduce", "figure7", "--set", "train.backbone=resnet18").out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("tabel3",), "there is no 'tabel3' to reproduce, did you mean 'table3'?"),
        (("figure2",), "a drawing of the method"),
        (("nothing",), "`twincluster reproduce` lists them"),
        (("table3", "--data", "mnist"), "--data is mnist: choose one of cifar10"),
        (("table3", "--data", "cifar"), "did you mean 'cifar10'?"),
        (("table3", "--epochs", 1, "--minutes", 1), "choose one of them"),
        (("table3", "--data", "digits", "--set", "tcc.alfa=1"), "no setting 'tcc.alfa'"),
        (("table3", "--dry-run", "--set", "tcc.alfa=1"), "no setting 'tcc.alfa'"),
        (("figure4", "--dry-run", "--set", "train.batch_size=64"), "--set makes tcc-batch-80 the same as tcc"),
        (("figure6", "--data", "digits", "--seeds", 2), "shows only the run with seed 0"),
        (("figure7", "--set", "train.backbone=mlp"), "figure7 shows residual networks"),
    ],
)
def test_mistakes_are_told(words: tuple[object, ...], complaint: str) -> None:
    assert complaint in command("reproduce", *words).complaint


@pytest.mark.parametrize("data", SETS)
def test_every_training_has_settings(data: str) -> None:
    """A recipe of its name, and nothing there that its method does not know."""
    trainings = {training.name: training for item in ITEMS.values() for training in item.trainings(data)}
    assert len(trainings) > 40
    for name, training in trainings.items():
        method = check_method(training.config(Asked(data, Path("out")), 0)).method
        assert name.startswith(method) or (name, method) == ("mice-as-tcc", "mice")


def test_shares_are_short() -> None:
    assert [short(share) for share in (0.906, 1.0, 0.0, -0.012, -0.0004)] == [".906", "1.000", ".000", "-.012", ".000"]
