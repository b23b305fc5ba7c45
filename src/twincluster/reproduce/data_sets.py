"""Table 1 of the paper: its data sets, and what is found of them here."""

from __future__ import annotations

import numpy as np

from twincluster.errors import InputError
from twincluster.images.sources import open_source
from twincluster.reproduce.published import SETS
from twincluster.reproduce.trainings import Asked
from twincluster.reproduce.writing import Line, write_table


def data_sets(asked: Asked) -> str:
    """Table 1: what the paper says of its data sets, and what is found here."""
    head = ("data set", "images", "clusters", "pixels", "found here: images", "clusters", "pixels")
    body = [_set_line(name, asked) for name in SETS if asked.data in ("", name)]
    return write_table(
        asked, "table1", "the data sets as the paper describes them, and as they are found here", [head, *body]
    )


def _set_line(name: str, asked: Asked) -> Line:
    title, images, clusters, side = SETS[name]
    told = ("-" if images is None else f"{images:,}", str(clusters or "-"), str(side or "-"))
    try:
        listing = open_source(name, root=asked.root)
    except InputError as error:
        return title, *told, f"none: {error}", "-", "-"
    found = "of many sizes" if listing.array is None else str(listing.array.shape[1])
    n_classes = len(np.unique(listing.labels)) if listing.labels is not None else 0
    return title, *told, f"{len(listing.paths):,}", str(n_classes), found
