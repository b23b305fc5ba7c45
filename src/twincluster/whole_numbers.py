"""Whole numbers as options of a command: exact, within bounds, and refused with a line that says what is expected."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated

from cyclopts import Parameter, Token

from twincluster.options import LARGEST_SEED


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
