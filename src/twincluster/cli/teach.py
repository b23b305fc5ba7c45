"""`twincluster teach`: print questions, record answers, accept proposals. torch is imported only when it computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from twincluster.cli.terminal import Count, Json, whole
from twincluster.core import InputError, check_writable, counted

if TYPE_CHECKING:
    from twincluster.runs import State
    from twincluster.teacher import Group, Teacher

MOST_GROUPS = 20  # printed
LONGEST_NAME = 30  # letters of a cluster's name in a line


def teach(
    run: Path,
    /,
    *,
    ask: Count | None = None,
    answers: Path | None = None,
    accept: Annotated[bool, Parameter(negative=())] = False,
    json: Json = False,
    port: Annotated[int, whole(0, 65535)] = 8765,
    host: str = "127.0.0.1",
    data_root: Path | None = None,
) -> None:
    """Teach a run where images belong by answering questions about a few of them. Opens a page in your browser unless
    --ask, --answers or --accept is given.

    Example: twincluster teach runs/photos

    Parameters
    ----------
    run
        A run folder made by `twincluster fit`, or by the estimator.
    ask
        Print this many questions: images whose answers help most, each with its five likeliest clusters.
    answers
        Record the answers in a .csv file with the columns path and label, and print what would move. A label is the
        name of a cluster, a new name, or junk; rows without a label are left out.
    accept
        Move the proposed images. From then on the taught model also decides about new images. One undo on the page
        reverts it.
    json
        Print JSON instead of text.
    port
        Where the page is served; 0 takes any free port.
    host
        The address to listen on. Beyond 127.0.0.1 the page needs the token that is printed with its address.
    data_root
        Where named data sets are kept; $TWINCLUSTER_DATA when left out.
    """
    if ask is None and answers is None and not accept:
        if json:
            raise InputError("--json belongs to --ask, --answers and --accept: say which")
        _open_page(run, port, host, data_root)
        return
    if ask is not None and (answers is not None or accept):
        raise InputError("--ask only prints questions: leave out --answers and --accept")
    from twincluster.runs import Run

    opened = Run.open(run)
    if ask is None:
        check_writable(run, "copy the run to where you may write")
    labels = _read_answers(answers, opened.read_assignments().paths) if answers else {}

    from twincluster.run_images import RunImages
    from twincluster.teacher import Teacher
    from twincluster.training import Progress

    with Progress() as progress:
        teacher = Teacher(RunImages(opened, data_root, decoding=progress.decoding, encoding=progress.encoding))
        teacher.prepare()
    if ask is not None:
        _ask(teacher, ask, json)
    else:
        _learn(teacher, labels, accept, json)


def _ask(teacher: Teacher, count: int, json: bool) -> None:
    state, paths = teacher.edits.state, teacher.edits.paths
    questions = teacher.questions(state, count)
    if json:
        asked = [{"path": paths[one.row], "clusters": _as_json(one.clusters, state)} for one in questions]
        _print_json({"questions": asked, "enough": teacher.enough(state)})
        return
    for one in questions:
        likely = ", ".join(f"{_called(cluster, state)} {chance:.0%}" for cluster, chance in one.clusters)
        print(f"{paths[one.row]}  {likely}")
    if not questions:
        print("every image that can be read has an answer")
    elif teacher.enough(state):
        print("more answers would change little: half of them lead to the same clusters")


def _learn(teacher: Teacher, labels: dict[int, str], accept: bool, json: bool) -> None:
    state = teacher.edits.state
    clusters = set(state.names)
    if labels:
        state = teacher.answer(state, labels)
    opened = [_called(cluster, state) for cluster in state.names if cluster not in clusters]
    groups = teacher.proposals(state)
    count = sum(len(group.rows) for group in groups)
    trust = teacher.trust(teacher.accept(state, groups) if accept and groups else state)
    moved = f"moved {count:,}" if accept else f"{count:,} would move"
    if json:
        moves = [{"source": group.source, "to": group.to, "count": len(group.rows)} for group in groups]
        estimate = trust.to_dict() if trust is not None else None
        done = {"recorded": len(labels), "accepted": accept, "images": count, "moves": moves, "estimate": estimate}
        _print_json(done)
        return
    if labels:
        print(f"{counted(len(labels), 'answer')} recorded")
    if opened:
        print(f"new clusters: {', '.join(opened)}")
    print(f"{moved} of {len(state.home):,} images{':' if groups else ''}")
    for line in _lines_of(groups, state):
        print(line)
    if trust is not None:
        print(trust.to_text())
    if accept and not groups:
        print("nothing was accepted: new images keep the clusters that they had")
    if groups and not accept:
        print(f"next: twincluster teach {teacher.images.run.folder} --accept, or look at them with twincluster serve")


def _lines_of(groups: list[Group], state: State) -> list[str]:
    shown = sorted(groups, key=lambda group: -len(group.rows))[:MOST_GROUPS]
    lines = [
        f"{len(group.rows):7,}  from {_called(group.source, state)} to {_called(group.to, state)}, "
        f"{group.certainty.mean():.0%} certain"
        for group in shown
    ]
    return [*lines, f"and {counted(len(groups) - MOST_GROUPS, 'more group')}"] if len(groups) > MOST_GROUPS else lines


def _called(cluster: int, state: State) -> str:
    from twincluster.data import printable

    return printable(state.names.get(cluster, "junk")[:LONGEST_NAME])


def _as_json(clusters: tuple[tuple[int, float], ...], state: State) -> list[dict[str, Any]]:
    return [
        {"cluster": cluster, "name": name if (name := state.names[cluster]) != str(cluster) else None,
         "probability": round(chance, 4)}
        for cluster, chance in clusters
    ]  # fmt: skip


def _print_json(content: dict[str, Any]) -> None:
    from twincluster.core import strict_json

    print(strict_json(content, indent=2))


def _read_answers(file: Path, paths: tuple[str, ...]) -> dict[int, str]:
    """Return the label of each labelled row."""
    from twincluster.runs import rows_of_table

    if not file.is_file():
        raise InputError(f"{file}: no such file; check the path")
    try:
        text = file.read_text(encoding="utf-8-sig")
        table = rows_of_table(f"{text.rstrip()}\n", ("path", "label"))
    except ValueError as error:
        hint = "; separate the columns by commas" if ";" in text.partition("\n")[0] else ""
        raise InputError(f"{file} cannot be read as a table of path, label ({error}){hint}") from None
    places = {path: row for row, path in reversed(list(enumerate(paths)))}
    labels: dict[int, str] = {}
    for path, label in table:
        row = places.get(path, places.get(path.removeprefix("./")))  # `export` prefixes text that looks like a formula
        if row is None:
            raise InputError(f"{file}: {path[:200]} is no image of this run: write paths as in assignments.csv")
        if not (name := label.strip()):
            continue
        if labels.setdefault(row, name) != name:
            raise InputError(f"{file}: {path[:200]} has two labels, {labels[row][:60]!r} and {name[:60]!r}: keep one")
    if not labels:
        raise InputError(f"{file} holds no answer: fill in the column label")
    return labels


def _open_page(run: Path, port: int, host: str, data_root: Path | None) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("fastapi", "uvicorn")):
        raise InputError("the page needs two packages: pip install 'twincluster[ui]', or use --ask and --answers")
    from twincluster.cli.runs import serve

    serve(run, port=port, host=host, in_browser=True, data_root=data_root, page="#teach")
