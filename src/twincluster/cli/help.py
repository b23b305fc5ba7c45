"""How the help of a command looks: two columns of plain text, filled to the width of the terminal, and no boxes.

It stands in for cyclopts' own formatter, which keeps the line ends of the docstrings and so looks ragged.

Whole numbers as options of a command: exact, within bounds, and refused with a line that says what is expected.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Group, Parameter, Token

from twincluster.config import LARGEST_SEED

WIDEST = 100  # columns of a page that reads well, however wide the terminal
NAMES = 24  # columns for names; a longer one has a line of its own
HEADINGS = {"Parameters": "Options"}
# what an option takes, where its type says too little
TAKES = {
    "--clusters": "K",
    "--out": "PATH",
    "--recipe": "NAME",
    "--backbone": "NAME",
    "--method": "NAME",
    "--methods": "NAMES",
    "--data": "SOURCE",
    "--features": "RUN",
    "--set": "FIELD=VALUE",
    "--labels": "WHAT",
    "--host": "ADDRESS",
    "--data-root": "FOLDER",
    "--to": "KIND",
    "--mode": "KIND",
    "--map": "KIND",
    "--split": "PART",
    "--device": "NAME",
    "--precision": "NAME",
    "--balance": "N",
}

NUMBERS = {"INT": "N", "FLOAT": "N"}

START = Group("Start here", sort_key=1)
USE = Group("With a finished run", sort_key=2)
LOOK_UP = Group("To look up", sort_key=3)


class PlainHelp:
    """A help formatter of cyclopts: called with each panel of a page."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        if not panel.entries:
            return
        rows = [(_name(entry), _said(entry)) for entry in panel.entries]
        width, column = min(WIDEST, console.width), min(NAMES, max(len(name) for name, _ in rows) + 2)
        title = str(getattr(panel.title, "plain", panel.title))
        console.print(_text(f"\n{HEADINGS.get(title, title)}:", "bold"))
        for name, said in rows:
            lines = textwrap.wrap(said, max(20, width - column - 2), break_on_hyphens=False, break_long_words=False)
            if len(name) > column - 2:
                console.print(_text(f"  {name}", "cyan"), soft_wrap=True)
                name = ""
            line = _text(f"  {name:{column}}", "cyan")
            line.append(f"\n{'':{column + 2}}".join(lines), "default")
            line.rstrip()
            console.print(line, soft_wrap=True)

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        words = str(usage).strip().removeprefix("Usage:").split()
        for place, before in enumerate(words[:-1], start=1):
            words[place] = TAKES.get(before, words[place])
        console.print(_text(f"Usage: {' '.join(words)}\n", "bold"), soft_wrap=True)

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        paragraphs = _plain(description).split("\n\n")
        for number, paragraph in enumerate(paragraphs):
            said = " ".join(paragraph.split())
            lines = [said]  # an example is to be copied: it stays in one line
            if not said.startswith("Example: "):
                lines = textwrap.wrap(said, min(WIDEST, console.width), break_on_hyphens=False)
            console.print(_text("\n" * (number > 0) + "\n".join(lines)), soft_wrap=True)


def _name(entry: Any) -> str:
    """SOURCE, --resume, or --clusters, -k K."""
    if label := getattr(entry, "positional_label", None):
        return str(label)
    names, takes = (*entry.names, *entry.shorts), entry.metavar
    return ", ".join(names) + (f" {TAKES.get(names[0]) or NUMBERS.get(takes, takes)}" if takes else "")


def _said(entry: Any) -> str:
    """A description with what may be chosen and what is chosen otherwise, where it does not tell already."""
    said = " ".join(_plain(entry.description).split())
    given = [f"one of {', '.join(entry.choices)}"] if entry.choices else []
    if entry.default not in (None, "False", "None"):
        given.append(f"{entry.default} when left out")
    return f"{said} ({'; '.join(given)})" if given else said


def _plain(description: Any) -> str:
    """The text of what cyclopts has made of a docstring."""
    described = getattr(description, "primary_renderable", description)
    return str(getattr(described, "plain", described) or "").strip()


def _text(content: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(content, style)


def whole(least: int, most: float = math.inf) -> Parameter:
    """What makes an option of type int take these numbers alone. Cyclopts itself would round 1.5."""
    wanted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"

    def read(_: type, tokens: Sequence[Token]) -> int:
        said = tokens[0].value
        if not re.fullmatch(r"[+-]?\d+", said) or not least <= int(said) <= most:
            raise ValueError(f"expected a whole number {wanted}, not {said or 'nothing'}")
        return int(said)

    return Parameter(converter=read)


Count = Annotated[int, whole(1)]
CountOrNone = Annotated[int, whole(0)]
Seed = Annotated[int, whole(0, LARGEST_SEED)]
