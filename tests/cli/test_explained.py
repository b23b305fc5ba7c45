"""One method with its settings, as `twincluster methods NAME` shows it: complete, and with meanings from the source."""

import re
import sys
from dataclasses import dataclass, fields, make_dataclass, replace
from pathlib import Path

import pytest

from command_line import command, worked
from twincluster.cli import look_up
from twincluster.cli.look_up import explain, meanings
from twincluster.config import Config, Count, make_config, method_settings, parse_overrides
from twincluster.config import schema as config
from twincluster.methods import METHODS

ROW = re.compile(r"^  (\S+) = (.*?)(?:   +(\S.*))?$", re.MULTILINE)
PAGE = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


def rows(page: str) -> dict[str, tuple[str, str]]:
    """Default and meaning of each setting."""
    return {name: (default, meaning) for name, default, meaning in ROW.findall(page)}


def names(kind: type, group: str) -> set[str]:
    return {f"{group}.{field.name}" for field in fields(kind)}


COMMON = {"n_clusters", "clusters_between", "seed"} | names(config.Train, "train")
COMMON |= names(config.Optimiser, "optimiser") | names(config.Augment, "augment")


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_shown_with_a_meaning_and_can_be_set_as_shown(name: str) -> None:
    shown = rows(explain(name))
    groups = METHODS[name].setting_groups()
    assert ("tcc" in groups, "anchored" in groups) == (name.startswith("tcc"), name == "anchored")
    assert set(shown) == COMMON.union(*(names(kind, group) for group, kind in groups.items()))
    assert [setting for setting, (_, meaning) in shown.items() if not meaning] == []
    again = make_config(parse_overrides(f"{setting} = {default}" for setting, (default, _) in shown.items()))
    assert [method_settings(again, kind, group) for group, kind in groups.items()] == [k() for k in groups.values()]
    assert replace(again, groups={}) == Config()


def test_a_page_says_what_the_method_is_before_its_settings() -> None:
    page = worked("methods", "pica").out
    title = "pica: PICA: partition confidence maximisation, alternating with an over-clustering head."
    assert page.startswith(f"{title}\n\n")
    paper = 'Huang et al. 2020, "Deep Semantic Clustering by Partition Confidence Maximisation".'
    assert paper in " ".join(page.split())
    assert "\n[own] Values of section 4 of the paper, and of its code.\n" in page
    assert rows(page)["own.repeats"] == ("3", "R, augmentations of each image in a step")
    assert rows(page)["optimiser.schedule"][1].endswith("(one of constant, cosine)")
    places = [page.index(f"\n{words}") for words in ("PICA", "Settings for", "[own]", "Common", "[train]", "[augment]")]
    assert places == sorted(places)
    assert "This method has no settings of its own." not in page + explain("tcc")


def test_what_a_settings_class_leaves_unsaid_its_base_says() -> None:
    shown, base = rows(explain("cdc")), rows(explain("moco"))
    assert shown["own.queue_size"] == ("32768", base["own.queue_size"][1])


def test_a_method_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "simclr.py").write_text(example, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    page = worked("methods", "simclr:Simclr").out
    sys.modules.pop("simclr")
    assert page.startswith("simclr:Simclr: SimCLR, and k-means on its features at the end.\n\nSettings for ")
    assert rows(page)["own.temperature"] == ("0.5", "tau: smaller is sharper")
    assert "\n[own]\n" in page  # the class has no docstring but the one that dataclass writes


@pytest.mark.parametrize("name", ["mocco", "kmeans", "nowhere:Method", "twincluster.config.schema:Config"])
def test_another_name_is_answered_as_fit_does(name: str, tmp_path: Path) -> None:
    fitted = command("fit", "digits", "--method", name, "--out", tmp_path / "run")
    assert command("methods", name).complaint == fitted.complaint


@dataclass(frozen=True)
class Written:
    """In the ways that comments are written."""

    plain: int = 1  # one line
    # a heading, which belongs to nobody
    none: int = 3
    text: str = "# 4"  # not what the value holds
    broken: tuple[int, ...] = (
        5,  # not this
    )  # but this
    first: Count = 6  # a
    other: Count = 7  # b


def test_comments_are_read_where_they_stand() -> None:
    assert meanings(Written) == {
        "plain": "one line",
        "text": "not what the value holds",
        "broken": "but this",
        "first": "a",
        "other": "b",
    }


def test_without_a_source_there_are_no_meanings(monkeypatch: pytest.MonkeyPatch) -> None:
    assert meanings(make_dataclass("Made", [("size", int, 3)], frozen=True)) == {}
    assert meanings(int) == {}

    def none(kind: type) -> str:
        raise OSError("source code not available")

    monkeypatch.setattr(look_up.inspect, "getsource", none)
    assert rows(explain("moco"))["own.temperature"] == ("0.2", "")
    monkeypatch.setattr(look_up.inspect, "getsource", lambda kind: "class Broken(:\n")
    assert rows(explain("moco"))["own.temperature"] == ("0.2", "")
