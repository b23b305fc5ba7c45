"""The terminal: help pages, one-line errors, warnings and the exit status."""

from __future__ import annotations

import errno
import importlib.util
import io
import math
import os
import re
import shlex
import signal
import sys
import textwrap
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, TextIO

from cyclopts import (
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnusedCliTokensError,
)

from twincluster.config import LARGEST_SEED
from twincluster.core import (
    InputError,
    ProcessEnded,
    Terminated,
    called,
    closest,
    default_interrupts,
    disk_is_full,
    end_on_interrupt,
    explained,
    ignore_interrupts,
    is_last_reporter,
    leave_quietly,
    shortened,
    strict_json,
    terminable,
    user_code,
)
from twincluster.parallel import launch

NO_MEMORY = re.compile("DefaultCPUAllocator|can't allocate memory|[Ss]torage size calculation overflow|numel: integer")
IN_THE_WAY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
ENDED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
OURS = "this is a bug in twincluster, not in your data; please report the lines above"


def status_of(command: Callable[[], object], program: str = "twincluster", *, ends_process: bool = False) -> int:
    """Run a command and return its exit status: 0 done, 2 bad input, 1 a bug, 130 interrupted, 143 SIGTERM.

    Bad input prints one line that says what to do. Usage errors call the command `program`. With `ends_process`, an
    interrupt ends this process within seconds.
    """
    if ends_process and launch.several():
        default_interrupts()  # torchrun ends all processes
    elif ends_process:
        end_on_interrupt(_say_farewell)
    status = _status_of(command, program, ends_process)
    launch.leave(status)
    if ends_process and status in ENDED:
        leave_quietly(status)
    if ends_process:
        ignore_interrupts()
    return status


def _say_farewell(message: str, status: int) -> None:
    """Print the last message of a process that exits without unwinding."""
    if sys.stderr.isatty():
        print("\x1b[?25h", end="", file=sys.stderr)  # show the cursor, which a progress bar hides
    _say(message, status)


def _status_of(command: Callable[[], object], program: str, ends_process: bool) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # unprintable names must not abort the run
    try:
        # torchrun ends several processes, and one of them reports it
        signals = nullcontext() if launch.several() else terminable()
        with signals, launch.silence_others(_how_to_go_on), _plain_warnings():
            command()
            sys.stdout.flush()
    except SystemExit as leaving:
        return _say(leaving.code, 1) if isinstance(leaving.code, str) else leaving.code or 0
    except KeyboardInterrupt as interrupt:
        status = 128 + (signal.SIGTERM if isinstance(interrupt, Terminated) else signal.SIGINT)
        if ends_process and not is_last_reporter():
            leave_quietly(status)  # another thread has reported it
        return _say(str(interrupt) or called(interrupt), status)
    except ProcessEnded:
        launch.report_end(_how_to_go_on)
        return 1
    except BrokenPipeError:  # the reader of the output has closed it, as in `twincluster recipes | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except CycloptsError as error:
        return _say(_usage(error, program), 2)
    except Exception as error:
        if fixable := _fixable(error):
            return _say(fixable, 2)
        traceback.print_exc()  # in each process that has one
        return _say(user_code.blame(error) or OURS, 1)
    except BaseException as error:  # a user's own class
        traceback.print_exc()
        return _say(user_code.blame(error) or OURS, 1)
    return 0


@contextmanager
def resumable(out: Path, command: str) -> Iterator[None]:
    """Append to the message of an interrupt how to continue: `command`, --out and --resume."""

    def how() -> str:
        if not (out / "config.json").is_file():
            return "nothing has been trained yet"
        has_checkpoint = any((out / "checkpoint").glob("*.safetensors"))
        effect = "continues from the last checkpoint" if has_checkpoint else "starts again: there is no checkpoint yet"
        return f"{command} --out {shlex.quote(str(out))} --resume {effect}"

    _ways.append(how)
    with explained(how):
        yield


_ways: list[Callable[[], str]] = []  # hints of the running command, also for errors


def _how_to_go_on() -> str:
    return _ways[-1]() if _ways else "start it again"


@contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each warning once, as one line, without the line of code that raised it."""
    shown = set()  # a source may be listed more than once

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if (text := _one_line(str(message))) not in shown:
            shown.add(text)
            print(f"warning: {text}", file=file or sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def _say(message: str, status: int) -> int:
    if launch.is_reporter():
        print(f"twincluster: {_one_line(message)}", file=sys.stderr)
    return status


def _one_line(text: str) -> str:
    return shortened(" ".join(text.split()))


def _usage(error: CycloptsError, program: str) -> str:
    """Return what is wrong with the arguments of a command, and where to look it up."""
    command = " ".join((program, *(error.command_chain or ())))
    problem = str(error).strip().rstrip(".")
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app:
        commands = [name for name in error.app if error.app[name].show]
        problem = _unknown(error.unused_tokens[0], commands, command)
    elif isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        problem = f"{command}: unexpected argument {error.unused_tokens[0]!r}"
        if len(error.unused_tokens) > 1:
            problem += (
                f" and {len(error.unused_tokens) - 1} more: name the folder instead of its files, or quote the pattern"
            )
    elif isinstance(error, MissingArgumentError) and error.argument and error.argument.required:
        problem = f"{command} needs {error.argument.name}"
    return f"{problem} See {command} --help" if problem.endswith("?") else f"{problem}; see {command} --help"


def _unknown(word: str, commands: list[str], command: str) -> str:
    """Explain a word that is not a command: a typo, an option before the command, or a source without its command."""
    if hint := closest(word, commands):
        return f"no command {word!r}{hint}"
    if word.startswith("-"):
        return f"no option {word!r} before a command: write {command} COMMAND {word}"
    if os.path.exists(word) and "fit" in commands:
        return f"no command {word!r}: to cluster its images, run {command} fit {shlex.quote(word)}"
    return f"no command {word!r}: choose one of {', '.join(sorted(name for name in commands if name[0] != '-'))}"


def _fixable(error: Exception) -> str | None:
    """Return what a user can do about an error; None for a bug."""
    if isinstance(error, InputError):
        return str(error)
    if isinstance(error, OSError) and (full := disk_is_full(error)):
        return full
    if isinstance(error, FileNotFoundError) and (gone := _gone_folder(error.filename)):
        return f"the folder {gone} was deleted or moved while in use: start again"
    if isinstance(error, OSError) and error.errno in IN_THE_WAY:  # pyarrow names the file in its words
        problem = f"{error.filename}: {str(error.strerror).lower()}" if error.filename else error.strerror
        return f"{problem}; check the path and its permissions"
    if type(error).__name__ == "OutOfMemoryError":  # torch's, which is not imported here
        return (
            "the GPU memory is full: lower train.batch_size or train.image_size with --set, continue with --resume "
            "--set train.parts=4, or use a CPU"
        )
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and NO_MEMORY.search(str(error))):
        wanted = re.search(r"(\d+) bytes", str(error))
        size = f" (for an allocation of {int(wanted[1]) / 1e9:,.1f} GB)" if wanted else ""
        return f"there is not enough memory{size}: lower train.batch_size, train.image_size or a queue with --set"
    return None


def _gone_folder(name: object) -> str | None:
    """Return the outermost missing folder of a path."""
    folders = Path(name).parents if isinstance(name, str) else ()
    return str(next((folder for folder in reversed(folders) if not folder.is_dir()), "")) or None


WIDEST = 100  # columns; wider pages are hard to read
NAMES = 24  # columns for names; longer names get their own line
HEADINGS = {"Parameters": "Options"}
# placeholder of an option's value, if its type says too little
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
    "--to PATH": "FOLDER",
    "--mode": "KIND",
    "--map": "KIND",
    "--split": "PART",
    "--device": "NAME",
    "--precision": "NAME",
    "--balance": "N",
    "--open": "CLUSTER",
    "--close": "CLUSTER",
    "--levels": "K,K",
}

NUMBERS = {"INT": "N", "INT...": "ID...", "FLOAT": "N"}

START = Group("Start here", sort_key=1)
USE = Group("With a finished run", sort_key=2)
LOOK_UP = Group("To look up", sort_key=3)


class PlainHelp:
    """A help formatter for cyclopts: plain text in two columns, without boxes.

    Unlike cyclopts' own formatter, it reflows the docstrings to the width of the terminal.
    """

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
            lines = [said]  # examples stay in one line, so that they can be copied
            if not said.startswith("Example: "):
                lines = textwrap.wrap(said, min(WIDEST, console.width), break_on_hyphens=False)
            console.print(_text("\n" * (number > 0) + "\n".join(lines)), soft_wrap=True)


def _name(entry: Any) -> str:
    """Return the name column, for example SOURCE, --resume, or --clusters, -k K."""
    if label := getattr(entry, "positional_label", None):
        return str(label)
    names, takes = (*entry.names, *entry.shorts), entry.metavar
    return ", ".join(names) + (
        f" {TAKES.get(f'{names[0]} {takes}') or TAKES.get(names[0]) or NUMBERS.get(takes, takes)}" if takes else ""
    )


def _said(entry: Any) -> str:
    """Return the description with choices and default, unless it states them."""
    said = " ".join(_plain(entry.description).split())
    given = [f"one of {', '.join(entry.choices)}"] if entry.choices else []
    if entry.default not in (None, "False", "None"):
        given.append(f"default {entry.default}")
    return f"{said} ({'; '.join(given)})" if given else said


def _plain(description: Any) -> str:
    """Return the plain text of a description that cyclopts has parsed."""
    described = getattr(description, "primary_renderable", description)
    return str(getattr(described, "plain", described) or "").strip()


def _text(content: str, style: str = "") -> Any:
    from rich.text import Text

    return Text(content, style)


@contextmanager
def results(as_json: bool) -> Iterator[dict[str, Any]]:
    """Collect the results of a command. With `as_json`, print them at its end, and all other text to stderr."""
    found: dict[str, Any] = {}
    with redirect_stdout(sys.stderr) if as_json else nullcontext():
        yield found
    if as_json:
        print(strict_json(found, indent=2), flush=True)


def whole(least: int, most: float = math.inf, *, name: str | None = None) -> Parameter:
    """Return a parameter that accepts whole numbers within bounds. Cyclopts itself would round 1.5.

    With a `name` it is an option that may be repeated, and gives a list.
    """
    wanted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"

    def read(said: str) -> int:
        if not re.fullmatch(r"[+-]?\d+", said) or not least <= int(said) <= most:
            raise ValueError(f"expected a whole number {wanted}, not {said or 'nothing'}")
        return int(said)

    if name:
        return Parameter(name=name, negative=(), converter=lambda _, tokens: [read(token.value) for token in tokens])
    return Parameter(converter=lambda _, tokens: read(tokens[0].value))


Json = Annotated[bool, Parameter(name="--json", negative=())]
Count = Annotated[int, whole(1)]
CountOrNone = Annotated[int, whole(0)]
Seed = Annotated[int, whole(0, LARGEST_SEED)]


def can_ask() -> bool:
    """Return True if `fit` can offer an encoder: on a terminal, with a network and timm."""
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    offline = bool(os.environ.get("HF_HUB_OFFLINE")) or launch.several()
    return terminal and not offline and importlib.util.find_spec("timm") is not None
