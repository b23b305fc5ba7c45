"""What the network of a run makes of its images, for edits that divide a cluster.

torch is imported only when it is asked for. Shapes: m rows, D features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from twincluster.errors import InputError

if TYPE_CHECKING:
    from twincluster.results import Run


def embed_rows(run: Run, rows: np.ndarray) -> np.ndarray:
    """(m,D) for rows of the run, in their order; InputError where an image cannot be read again."""
    from twincluster.export.inputs import Inputs

    inputs = Inputs(run)
    wanted = np.asarray(rows, dtype=np.int64)
    found, there = inputs.features(wanted)
    missing = np.setdiff1d(wanted, there)
    if len(missing):
        lost = inputs.assignments.paths[int(missing[0])][:200]
        why = f" ({inputs.absent})" if inputs.absent else ""
        raise InputError(f"{lost} cannot be read again{why}: put it back, or move it to another cluster first")
    return np.asarray(found[np.searchsorted(there, wanted)])
