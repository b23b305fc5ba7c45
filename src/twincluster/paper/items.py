"""What can be reproduced, by name: the trainings behind each table or figure, and the function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from twincluster.pages import in_style
from twincluster.paper import figures, tables
from twincluster.paper.figures import describe_network, draw_moons
from twincluster.paper.tables import data_sets, p_values
from twincluster.paper.trainings import Asked, Outcomes, Training


@dataclass(frozen=True)
class Item:
    trainings: Callable[[str], list[Training]]  # by data set
    make: Callable[[Asked, Outcomes], str]  # writes files into the folder and returns the text to print


def comparison(table: int) -> Item:
    return Item(partial(tables.trainings_of, table), partial(tables.compare, table))


def without_training(make: Callable[[Asked], str]) -> Item:
    return Item(lambda data: [], lambda asked, outcomes: make(asked))


def drawn(trainings: Callable[[str], list[Training]], draw: Callable[[Asked, Outcomes], str]) -> Item:
    return Item(trainings, in_style()(draw))


ITEMS: dict[str, Item] = {
    "table1": without_training(data_sets),
    "table2": comparison(2),
    "table3": comparison(3),
    "table4": comparison(4),
    "table5": comparison(5),
    "table6": without_training(p_values),
    "figure1": without_training(in_style()(draw_moons)),
    "figure3": drawn(figures.one_run, figures.draw_map),
    "figure4": drawn(figures.sweep, figures.draw_sweep),
    "figure5": drawn(figures.beside_mice, figures.draw_course),
    "figure6": drawn(figures.one_run, figures.draw_sizes),
    "figure7": without_training(describe_network),
}
