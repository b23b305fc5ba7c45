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
    body, missing = [], []
    for name in [asked.data] if asked.data else SETS:
        title, images, clusters, side = SETS.get(name, (name, None, None, None))  # digits, which the paper has not
        told = ("-" if images is None else f"{images:,}", str(clusters or "-"), str(side or "-"))
        try:
            body.append((title, *told, *_found(name, asked)))
        except InputError as error:
            body.append((title, *told, "-", "-", "-"))
            missing.append(str(error))
    about = "the data sets as the paper describes them, and as they are found here"
    return "\n\n".join([write_table(asked, "table1", about, [head, *body]), *missing])


def _found(name: str, asked: Asked) -> Line:
    """Images, clusters and pixels a side."""
    listing = open_source(name, root=asked.root)
    side = "of many sizes" if listing.array is None else str(listing.array.shape[1])
    n_classes = len(np.unique(listing.labels)) if listing.labels is not None else 0
    return f"{len(listing.paths):,}", str(n_classes), side
