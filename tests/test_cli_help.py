"""The pages of --help: filled to the width of the terminal, in plain text, and complete."""

import io
import re

import pytest
from cyclopts import App
from rich.console import Console

from twincluster import cli

FLAGS = ("--help", "-h", "--version")


def pages(app: App, words: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command there is, with those of its parts."""
    found = [words]
    for name in app:
        if name not in FLAGS:
            found += pages(app[name], (*words, name))
    return found


def lines_of(words: tuple[str, ...], width: int = 80) -> list[str]:
    page = io.StringIO()
    cli.app.help_print(list(words), console=Console(width=width, file=page))
    return page.getvalue().splitlines()


@pytest.mark.parametrize("words", pages(cli.app), ids=lambda words: " ".join(words) or "twincluster")
def test_lines_are_full_and_never_too_long(words: tuple[str, ...]) -> None:
    for width in (80, 120):
        lines = lines_of(words, width)
        assert lines[0].startswith(f"Usage: twincluster {' '.join(words)}".rstrip())
        for line, below in zip(lines, [*lines[1:], ""], strict=True):
            assert line == line.rstrip()
            assert len(line) <= width or line.startswith(("Example: ", "Usage: "))
            indent = len(below) - len(below.lstrip())
            if indent > 4 and line.strip() and not re.match(r"  --?\S+( \S+)*$", line):  # text that goes on
                assert len(line) + 1 + len(below.split()[0]) > min(width, 100), (line, below)


def test_what_an_option_takes_and_what_it_is_otherwise() -> None:
    fit, predict = ("\n".join(lines_of((name,))) for name in ("fit", "predict"))
    assert "\n  --clusters, -k K    How many clusters to find: a number, a range" in fit
    assert "\n  --epochs N " in fit
    assert "\n  --set FIELD=VALUE " in fit
    assert "\n  --resume            Continue an interrupted run in --out.\n" in fit
    assert "(one of all, train, test; all when left out)" in " ".join(fit.split())
    assert predict.startswith("Usage: twincluster predict --out PATH [OPTIONS] RUN SOURCE\n")
    assert not re.search(r"STR\b|CHOICE|False|None", fit + predict)


@pytest.mark.parametrize("words", pages(cli.app), ids=lambda words: " ".join(words) or "twincluster")
def test_a_usage_names_what_may_be_left_out(words: tuple[str, ...]) -> None:
    page = "\n".join(lines_of(words))
    assert not re.search(r"ARGS|FLOAT|INT\b", page)
    for name in re.findall(r"\[([A-Z]+)\]", page.splitlines()[0].replace("[OPTIONS]", "")):
        assert re.search(rf"\nArguments:\n(  .*\n)*  {name} ", page)


def test_the_first_page_begins_with_what_comes_first() -> None:
    page = "\n".join(lines_of(()))
    places = [page.index(f"\n{heading}:\n") for heading in ("Start here", "With a finished run", "To look up")]
    assert places == sorted(places)
    for name in ("fit", "demo"):
        assert places[0] < page.index(f"\n  {name} ") < places[1]


def test_sources_of_an_update_are_named_with_their_shards() -> None:
    assert "shards (.tar)" in " ".join(" ".join(lines_of(("update",))).split())
