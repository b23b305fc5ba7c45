"""Figures as in the paper, as PNG and SVG: map, training curves, cluster sizes, confusion matrix."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.core import InputError, unfinished
from twincluster.pages.report.material import Material
from twincluster.pages.report.page import Gathered

FOLDER = "figures"
RESOLUTION = 200  # dots per inch of a PNG
NAMED = 12  # most classes or clusters named in a figure
HUES = ("#332288", "#cc6677", "#117733", "#b07d00", "#3f93bd", "#882255", "#2a9d8f", "#77771c", "#aa4499", "#20242a")
SHAPES = ("o", "s", "^", "D", "P")
LONGEST = 18  # letters of a name
STYLE: dict[Any, Any] = {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "0"}


def check_installed(what: str = "--figures") -> None:
    """Raise InputError if matplotlib is missing, before any work is done."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError(f"{what} needs a package: pip install 'twincluster[plots]'")


def write_figures(material: Material, gathered: Gathered) -> Path:
    """Write RUN/figures: a PNG and an SVG of each figure that the run has data for."""
    folder = material.run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    data = gathered.data
    with in_style():
        if "x" in data["map"]:
            save_figure(_map_figure(data), folder / "map")
        for group in data["curves"]["groups"]:
            save_figure(
                _curve_figure(group, data["curves"]["epochs"]), folder / group["title"].lower().replace(" ", "-")
            )
        if data["curves"]["histograms"]:
            save_figure(_sizes_figure(data["curves"]["histograms"]), folder / "sizes")
        if "confusion" in data["labels"]:
            save_figure(_confusion_figure(data["labels"], _called(data)), folder / "confusion")
    return folder


def plot_clusters(rows: np.ndarray, clusters: np.ndarray, names: Mapping[int, str], axes: Any = None) -> Any:
    """Draw rows on their two main directions, a colour and shape per cluster. Return the axes, new unless given."""
    check_installed("plot")
    if axes is None:
        from matplotlib import pyplot

        axes = pyplot.subplots(figsize=(4.6, 4), layout="constrained")[1]
    centred = rows - rows.mean(0)
    x, y = np.resize((centred @ np.linalg.eigh(centred.T @ centred)[1][:, ::-1]).T, (2, len(rows)))
    for cluster in np.unique(clusters).tolist():
        colour, shape, own = HUES[cluster % len(HUES)], SHAPES[cluster // len(HUES) % len(SHAPES)], clusters == cluster
        axes.scatter(x[own], y[own], s=4, c=colour, marker=shape, label=_text(names.get(cluster, str(cluster))))
    if len(np.unique(clusters)) <= NAMED:
        axes.legend(frameon=False, markerscale=2.5, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.set(xticks=[], yticks=[])
    return axes


@contextmanager
def in_style() -> Iterator[None]:
    """Apply the style of all figures."""
    import matplotlib

    with matplotlib.rc_context(STYLE):
        yield


def save_figure(figure: Any, path: Path) -> None:
    """Save a figure as PNG and SVG."""
    for suffix in (".png", ".svg"):
        with unfinished(path.with_suffix(suffix)) as partial:
            figure.savefig(partial, format=suffix[1:], dpi=RESOLUTION, bbox_inches="tight", metadata=_undated(suffix))


def _undated(suffix: str) -> dict[str, None] | None:
    return {"Date": None} if suffix == ".svg" else None  # the same run, the same file


def blank_figure(width: float, height: float, columns: int = 1, *, same_scale: bool = True) -> tuple[Any, Any]:
    """Return a figure with its axes side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False, sharey=same_scale)[0]


def _map_figure(data: dict[str, Any]) -> Any:
    """Draw the map, with a colour and shape per cluster, or per class if there are labels."""
    figure, (axes,) = blank_figure(4, 4)
    images, places = np.array(data["map"]["image"]), data["map"]
    by_label, called = "acc" in data["labels"], _called(data)
    groups = np.array(data["images"]["label" if by_label else "cluster"])[images]
    x, y = np.array(places["x"]), -np.array(places["y"])
    for group in np.unique(groups[groups >= 0]).tolist():
        name = _name(data["labels"]["names"], group) if by_label else _text(called[group][:LONGEST])
        colour, shape = HUES[group % len(HUES)], SHAPES[group // len(HUES) % len(SHAPES)]
        axes.scatter(*(axis[groups == group] for axis in (x, y)), s=4, c=colour, marker=shape, linewidths=0, label=name)
    if len(np.unique(groups)) <= NAMED:
        figure.legend(loc="outside lower center", ncols=5, frameon=False, markerscale=2.5)
    axes.set(xticks=[], yticks=[], aspect="equal", title=f"{places['method']}, {places['note']}")
    axes.spines[:].set_visible(False)
    return figure


def _curve_figure(group: dict[str, Any], epochs: list[int]) -> Any:
    figure, (axes,) = blank_figure(4, 2.6)
    for line, colour, dashes in zip(group["lines"], HUES, ("-", "--", ":", "-."), strict=False):
        values = [np.nan if value is None else value for value in line["values"]]
        axes.plot(
            epochs, values, dashes, color=colour, label=_text(line["name"]), marker="." if len(epochs) == 1 else ""
        )
    axes.set(xlabel="epoch", title=_text(group["title"]))
    axes.legend(frameon=False)
    return figure


def _sizes_figure(histograms: list[dict[str, Any]]) -> Any:
    figure, parts = blank_figure(1.6 * len(histograms), 1.8, len(histograms))
    for axes, moment in zip(parts, histograms, strict=True):
        axes.bar(range(len(moment["shares"])), moment["shares"], color=HUES[4], width=0.85)
        axes.axhline(1 / moment["clusters"], color=HUES[9], linewidth=0.8, linestyle="--")
        axes.set(title=f"epoch {moment['epoch']}", xticks=[])
    parts[0].set_ylabel("share of the images")
    return figure


def _confusion_figure(labels: dict[str, Any], called: dict[int, str]) -> Any:
    confusion = labels["confusion"]
    counts = np.array(confusion["counts"])
    side = 1.5 + 0.28 * min(counts.shape[1], 40)
    figure, (axes,) = blank_figure(side, 1 + 0.28 * counts.shape[0])
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    names = [_name(labels["names"], code) for code in confusion["classes"]]
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(counts)), [_text(called[cluster][:LONGEST]) for cluster in confusion["clusters"]])
    axes.set(
        xlabel="class",
        ylabel="cluster",
        title=f"ACC {labels['acc']:.3f}, NMI {labels['nmi']:.3f}, ARI {labels['ari']:.3f}",
    )
    if max(counts.shape) <= NAMED:
        for row, column in np.argwhere(counts):
            ink = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(counts[row, column]), ha="center", va="center", fontsize=6, color=ink)
    return figure


def _called(data: dict[str, Any]) -> dict[int, str]:
    """Return the name of each cluster, or its number."""
    return {cluster["id"]: cluster["short"] for cluster in data["clusters"]}


def _name(names: list[str], code: int) -> str:
    return _text((names[code] if code < len(names) else str(code))[:LONGEST])


def _text(text: str) -> str:
    """Escape dollar signs, which matplotlib would read as a formula."""
    return text.replace("$", r"\$")
