"""The pages of --help: filled to the width of the terminal, in plain text, and complete."""

import functools
import inspect
import io
import re
from typing import get_args, get_type_hints

import pytest
from cyclopts import App, CycloptsError
from rich.console import Console

from benchmarks.__main__ import commands as benchmarks
from twincluster.cli import app as cli
from twincluster.estimator import TwinContrastClustering

FLAGS = ("--help", "-h", "--version")
APPS = {"twincluster": cli.app, "python -m benchmarks": benchmarks}


def pages(app: App, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command that help lists, with those of its parts."""
    found = [words]
    for name in app:
        if name not in FLAGS and app[name].show:
            found += pages(app[name], (*words, name))
    return found


PAGES = [(program, words) for program, app in APPS.items() for words in pages(app)]
every_page = pytest.mark.parametrize("program, words", PAGES, ids=lambda part: part if part in APPS else " ".join(part))


def lines_of(words: tuple[str, ...], width: int = 80, program: str = "twincluster") -> list[str]:
    page = io.StringIO()
    APPS[program].help_print(list(words), console=Console(width=width, file=page))
    return page.getvalue().splitlines()


@every_page
def test_lines_are_full_and_never_too_long(program: str, words: tuple[str, ...]) -> None:
    for width in (80, 120):
        lines = lines_of(words, width, program)
        assert lines[0].startswith(f"Usage: {program} {' '.join(words)}".rstrip())
        for line, below in zip(lines, [*lines[1:], ""], strict=True):
            assert line == line.rstrip()
            assert len(line) <= width or line.startswith(("Example: ", "Usage: "))
            indent = len(below) - len(below.lstrip())
            if indent > 4 and line.strip() and not re.match(r"  --?\S+( \S+)*$", line):  # text that goes on
                assert len(line) + 1 + len(below.split()[0]) > min(width, 100), (line, below)


def test_what_an_option_takes_and_what_it_is_otherwise() -> None:
    fit, predict = ("\n".join(lines_of((name,))) for name in ("fit", "predict"))
    assert "\n  --clusters, -k K    Number of clusters, a range to choose from" in fit
    assert "\n  --epochs N " in fit
    assert "\n  --set FIELD=VALUE " in fit
    assert "\n  --resume            Continue an interrupted run in --out." in fit
    assert "(one of all, train, test; default all)" in " ".join(fit.split())
    assert predict.startswith("Usage: twincluster predict --out PATH [OPTIONS] RUN SOURCE\n")
    assert not re.search(r"STR\b|CHOICE|False|None", fit + predict)


@every_page
def test_a_usage_names_what_may_be_left_out(program: str, words: tuple[str, ...]) -> None:
    page = "\n".join(lines_of(words, program=program))
    assert not re.search(r"ARGS|FLOAT|INT\b", page)
    for name in re.findall(r"\[([A-Z]+)\]", page.splitlines()[0].replace("[OPTIONS]", "")):
        assert re.search(rf"\nArguments:\n(  .*\n)*  {name} ", page)


def test_whole_numbers_are_never_rounded() -> None:
    """By any option of any command that is of type int."""
    found = set()
    for program, words in PAGES:
        command = functools.reduce(lambda app, word: app[word], words, APPS[program]).default_command
        if command is None:
            continue
        parameters = inspect.signature(command).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
        given = [word for p in needed for word in ([] if p.kind is p.POSITIONAL_ONLY else [f"--{p.name}"]) + ["csv"]]
        for name, hint in get_type_hints(command).items():
            option = f"--{name.replace('_', '-')}"
            for number in ("1.5", "1e3", "0x10", "-1", "ten") if int in (hint, *get_args(hint)) else ():
                said = rf"{option}: expected a whole number (of at least|from) \d.*, not {number}"
                with pytest.raises(CycloptsError, match=said):
                    APPS[program].parse_args([*words, *given, option, number], exit_on_error=False, print_error=False)
                found.add((*words, option))
    assert found > {("fit", "--seed"), ("demo", "--epochs"), ("serve", "--port"), ("longtail", "--seed")}
    assert len(found) > 30


def test_the_first_page_begins_with_what_comes_first() -> None:
    page = "\n".join(lines_of(()))
    places = [page.index(f"\n{heading}:\n") for heading in ("Start here", "With a finished run", "To look up")]
    assert places == sorted(places)
    for name in ("fit", "demo"):
        assert places[0] < page.index(f"\n  {name} ") < places[1]


@pytest.mark.parametrize(
    "program, name", [("twincluster", "fit"), ("python -m benchmarks", "methods"), ("python -m benchmarks", "train")]
)
def test_where_settings_are_looked_up(program: str, name: str) -> None:
    page = " ".join(" ".join(lines_of((name,), program=program)).split())
    assert "`twincluster methods NAME` lists the settings of a method" in page
    assert "tcc.alpha" not in page  # which the default method does not have
    assert "`twincluster methods NAME` lists the settings of a method" in (TwinContrastClustering.__doc__ or "")


def test_sources_of_an_update_are_named_with_their_shards() -> None:
    assert "shards (.tar)" in " ".join(" ".join(lines_of(("update",))).split())
