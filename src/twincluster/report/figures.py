"""Figures of the kinds the paper has, as PNG and SVG: map, training curves, sizes of clusters, confusion matrix."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

from twincluster.errors import InputError
from twincluster.report.gather import Gathered
from twincluster.report.material import Material

FOLDER = "figures"
RESOLUTION = 200  # dots an inch of a PNG
NAMED = 12  # classes or clusters that a figure names
HUES = ("#332288", "#cc6677", "#117733", "#b07d00", "#3f93bd", "#882255", "#2a9d8f", "#77771c", "#aa4499", "#20242a")
SHAPES = ("o", "s", "^", "D", "P")
LONGEST = 18  # letters of a name


def check_installed() -> None:
    """Refuse --figures where they cannot be drawn, before any work is done."""
    if importlib.util.find_spec("matplotlib") is None:
        raise InputError("--figures needs a package: pip install 'twincluster[plots]'")


def write_figures(material: Material, gathered: Gathered) -> Path:
    """RUN/figures with two files for each figure that the run has material for."""
    import matplotlib

    folder = material.run.folder / FOLDER
    folder.mkdir(exist_ok=True)
    data = gathered.data
    with matplotlib.rc_context(
        {"font.size": 8, "axes.spines.top": False, "axes.spines.right": False, "svg.hashsalt": "0"}
    ):
        if "x" in data["map"]:
            _save(_map_figure(data), folder / "map")
        for group in data["curves"]["groups"]:
            _save(_curve_figure(group, data["curves"]["epochs"]), folder / group["title"].lower().replace(" ", "-"))
        if data["curves"]["histograms"]:
            _save(_sizes_figure(data["curves"]["histograms"]), folder / "sizes")
        if "confusion" in data["labels"]:
            _save(_confusion_figure(data["labels"], _called(data)), folder / "confusion")
    return folder


def _save(figure: Any, path: Path) -> None:
    for suffix in (".png", ".svg"):
        figure.savefig(path.with_suffix(suffix), dpi=RESOLUTION, bbox_inches="tight", metadata=_undated(suffix))


def _undated(suffix: str) -> dict[str, None] | None:
    return {"Date": None} if suffix == ".svg" else None  # the same run, the same file


def _figure(width: float, height: float, columns: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.subplots(1, columns, squeeze=False, sharey=True)[0]


def _map_figure(data: dict[str, Any]) -> Any:
    """One colour and shape for each cluster, or for each class where there are labels."""
    figure, (axes,) = _figure(4, 4)
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
    figure, (axes,) = _figure(4, 2.6)
    for line, colour, dashes in zip(group["lines"], HUES, ("-", "--", ":", "-."), strict=False):
        values = [np.nan if value is None else value for value in line["values"]]
        axes.plot(
            epochs, values, dashes, color=colour, label=_text(line["name"]), marker="." if len(epochs) == 1 else ""
        )
    axes.set(xlabel="epoch", title=_text(group["title"]))
    axes.legend(frameon=False)
    return figure


def _sizes_figure(histograms: list[dict[str, Any]]) -> Any:
    figure, parts = _figure(1.6 * len(histograms), 1.8, len(histograms))
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
    figure, (axes,) = _figure(side, 1 + 0.28 * counts.shape[0])
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
    """What stands for each cluster: its name, or its number."""
    return {cluster["id"]: cluster["short"] for cluster in data["clusters"]}


def _name(names: list[str], code: int) -> str:
    return _text((names[code] if code < len(names) else str(code))[:LONGEST])


def _text(text: str) -> str:
    """Letters as they are: matplotlib takes a pair of dollar signs for a formula."""
    return text.replace("$", r"\$")
