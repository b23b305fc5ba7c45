"""The paper's figures of results: a map of the features, one setting after another, and how training goes."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Mapping

from twincluster.config import make_config
from twincluster.errors import InputError
from twincluster.recipe import load_recipe
from twincluster.report.figures import HUES, blank_figure, save_figure, write_figures
from twincluster.report.page import write_report
from twincluster.reproduce.running import Finished, Outcomes
from twincluster.reproduce.trainings import Asked, Training, by_paper, paper_recipe

# the values of Figure 4 are in a picture alone: these are ours, around the settings that the text gives
ALPHA = (0.1, 0.25, 0.5, 0.75, 0.9)
LAMBDA = (0.2, 0.5, 0.8, 1.0, 2.0)
ROWS = (10, 50, 100, 200)  # of queue P, for each cluster
BATCH = (0.25, 0.5, 1.0, 2.0)  # times that of the paper
MICE = "mice-as-tcc"


def one_run(data: str) -> list[Training]:
    return [by_paper(data)]


def beside_mice(data: str) -> list[Training]:
    """MiCE "with the same optimizer setting", as the paper re-implemented it."""
    return [by_paper(data), by_paper(data, "mice", MICE)]


def sweep(data: str) -> list[Training]:
    """All trainings of Figure 4, each once."""
    points = (training for values in _panels(data).values() for training in values.values())
    return list({training.name: training for training in points}.values())


def _panels(data: str) -> dict[str, dict[float, Training]]:
    """A training for each value of each setting; at the paper's own value it is the one that all figures share."""
    usual = make_config(load_recipe(paper_recipe(data)).settings)
    k, batch = usual.n_clusters, usual.train.batch_size
    panels = {
        "alpha": ("tcc.alpha", ALPHA, usual.tcc.alpha),
        "lambda": ("tcc.gumbel_temperature", LAMBDA, usual.tcc.gumbel_temperature),
        "L": ("tcc.cluster_queue", [rows * k for rows in ROWS], 100 * k),
        "batch": ("train.batch_size", [round(times * batch) for times in BATCH], batch),
    }
    return {
        title: {value: by_paper(data) if value == own else _changed(data, title, field, value) for value in values}
        for title, (field, values, own) in panels.items()
    }


def _changed(data: str, title: str, field: str, value: float) -> Training:
    return by_paper(data, name=f"tcc-{title}-{value:g}", settings=(f"{field}={value:g}",))


def draw_map(asked: Asked, outcomes: Outcomes) -> str:
    """Figure 3: the features of TCC on a map, one colour for each class."""
    return _from_report(asked, outcomes, "map", "figure3")


def draw_sizes(asked: Asked, outcomes: Outcomes) -> str:
    """Figure 6: sizes of the clusters in the course of training."""
    return _from_report(asked, outcomes, "sizes", "figure6")


def _from_report(asked: Asked, outcomes: Outcomes, kind: str, name: str) -> str:
    """One of the figures that any run can have."""
    _, material, gathered = write_report(_first(outcomes, "tcc").run, None, asked.root)
    folder = write_figures(material, gathered)
    for suffix in (".png", ".svg"):
        shutil.copyfile(folder / f"{kind}{suffix}", asked.out / f"{name}{suffix}")
    return _drawn(asked, name)


def draw_sweep(asked: Asked, outcomes: Outcomes) -> str:
    """Figure 4: ACC, NMI and ARI by each of four settings, means over the seeds."""
    panels = _panels(asked.data)
    figure, axes = blank_figure(8, 2.4, len(panels))
    lines = [f"{'':18}{'ACC':>8}{'NMI':>8}{'ARI':>8}"]
    for place, (title, values) in zip(axes, panels.items(), strict=True):
        found = {value: means for value, training in values.items() if (means := _means(outcomes[training.name]))}
        for number, (score, hue) in enumerate(zip(("ACC", "NMI", "ARI"), HUES, strict=False)):
            place.plot([means[number] for means in found.values()], marker=".", color=hue, label=score)
        place.set_xticks(range(len(found)), [f"{value:g}" for value in found])
        place.set(title=title, ylim=(0, 1))
        lines += [f"{f'{title} {value:g}':18}" + "".join(f"{mean:8.3f}" for mean in found[value]) for value in found]
    axes[0].legend(frameon=False)
    save_figure(figure, asked.out / "figure4")
    return "\n".join([*lines, _drawn(asked, "figure4")])


def draw_course(asked: Asked, outcomes: Outcomes) -> str:
    """Figure 5: accuracy on the batches by epochs and by time, of TCC and MiCE, and the DEC loss of TCC."""
    figure, (by_epochs, by_time, dec) = blank_figure(8, 2.4, 3, same_scale=False)
    for name, title, hue in (("tcc", "TCC", HUES[0]), (MICE, "MiCE", HUES[1])):
        metrics = _first(outcomes, name).run.read_metrics()
        epochs, accuracy = [row["epoch"] + 1 for row in metrics], [row["on_batch_acc"] for row in metrics]
        by_epochs.plot(epochs, accuracy, color=hue, label=title)
        by_time.plot([row["seconds"] / 60 for row in metrics], accuracy, color=hue)
        if name == "tcc":
            dec.plot(epochs, [row["dec_loss"] for row in metrics], color=hue)
    by_epochs.set(title="(a) accuracy on batches", xlabel="epoch", ylim=(0, 1))
    by_time.set(title="(b) accuracy on batches", xlabel="minutes", ylim=(0, 1))
    dec.set(title="(c) DEC loss, not trained on", xlabel="epoch")
    dec.ticklabel_format(axis="y", scilimits=(-3, 3))
    by_epochs.legend(frameon=False)
    save_figure(figure, asked.out / "figure5")
    return _drawn(asked, "figure5")


def _first(outcomes: Outcomes, name: str) -> Finished:
    """The run with seed 0, without which there is nothing to draw."""
    outcome = outcomes[name][0]
    if isinstance(outcome, str):
        raise InputError(f"{name} {outcome}, and the figure needs it: see what it said above")
    return outcome


def _means(by_seed: Mapping[int, Finished | str]) -> tuple[float, ...]:
    scores = [outcome.scores for outcome in by_seed.values() if isinstance(outcome, Finished)]
    return tuple(map(statistics.fmean, zip(*((one.acc, one.nmi, one.ari) for one in scores), strict=True)))


def _drawn(asked: Asked, name: str) -> str:
    return f"drawn to {asked.out / name}.png and .svg"
