"""The state of an interrupted run in one safetensors file: tensors in its body, progress as JSON in its header.

One file can be replaced atomically, so a reader finds the old state or the new one, never half of each; and nothing in
it is ever unpickled.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from twincluster.core import SEAL, InputError, check_seal, record_of, seal, unfinished

FILE = "state.safetensors"


@dataclass(frozen=True)
class _Progress:
    """Types of what a trainer saves."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    seconds: float = 0.0


def save(folder: Path, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
    folder.mkdir(exist_ok=True)  # not its parents: a run that was deleted meanwhile stays so
    # cloned: safetensors refuses tensors that share memory, such as channels-last views of one buffer
    body = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}
    with unfinished(folder / FILE) as partial:
        try:
            save_file(body, partial, metadata={"progress": json.dumps(progress), **SEAL})
        except SafetensorError as error:  # in which safetensors hides what the system said
            if number := re.search(r"os error (\d+)", str(error)):
                raise OSError(int(number[1]), os.strerror(int(number[1])), str(partial)) from error
            raise
        seal(partial)


def exists(folder: Path) -> bool:
    return (folder / FILE).is_file()


def load(folder: Path, needed: Iterable[str] = ()) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors and the progress; refuse a damaged file, and a progress without the `needed` entries."""
    target = folder / FILE
    if not exists(folder):
        raise InputError(f"nothing to resume: {target} does not exist; leave out --resume to start anew")
    try:
        with safe_open(target, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a mapping)
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
        record_of(_Progress, progress, "progress")
        if missing := [name for name in needed if name not in progress]:
            raise ValueError(f"progress has no {missing[0]}")
        check_seal(target)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else error
        raise InputError(
            f"{target} is not a checkpoint of twincluster ({problem}); start anew without --resume"
        ) from error
    return tensors, progress


def refuse_other(folder: Path, saved: dict[str, Tensor], state: dict[str, Tensor]) -> None:
    """Every tensor of the state must be there, in its shape: copying would spread one row over all of them."""
    other = [name for name, tensor in state.items() if name not in saved or saved[name].shape != tensor.shape]
    if other:
        raise InputError(
            f"{folder / FILE} is of another method, or of other code of it: {other[0]} is not in it, or has another "
            "shape; start anew without --resume"
        )
