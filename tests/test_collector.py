"""The garbage collector is kept away from what stays, and left as it was found."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch  # noqa: F401  so that it is there already

import twincluster
from twincluster.core import torch_for_good, uncollected

FIRST = """
import gc
from twincluster.core import torch_for_good
with torch_for_good():
    assert not gc.isenabled()
    import torch
print(gc.isenabled(), gc.get_freeze_count() > 50_000)
"""


def test_the_collector_is_left_as_it_was() -> None:
    assert gc.isenabled()
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
    with pytest.raises(ValueError), uncollected():
        raise ValueError
    assert gc.isenabled()


def test_what_torch_brings_is_not_looked_through() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    run = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, env=environment, check=True)
    assert run.stdout.split() == ["True", "True"]


def test_where_torch_is_there_already_nothing_is_kept_for_good() -> None:
    before = gc.get_freeze_count()
    with torch_for_good():
        assert gc.isenabled()
    assert gc.get_freeze_count() == before
