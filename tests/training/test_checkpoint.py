"""Checkpoints: what goes in comes out bit for bit, and no death of the writer leaves one that cannot be read."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import twincluster
from twincluster.core import InputError
from twincluster.training import CHECKPOINT_FILE, has_checkpoint, load_checkpoint, save_checkpoint

PROGRESS = {"epoch": 3, "step_in_epoch": 7, "step": 43, "seconds": 12.75}


def test_round_trip_keeps_every_bit_and_type(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(4, 3, 5, 5, generator=generator)
    table = torch.randn(6, 4, generator=generator)
    tensors = {
        "weight": image.to(memory_format=torch.channels_last),
        "view": table[:, 1:3],  # not contiguous, and shares its memory with the next
        "table": table,
        "half": table.bfloat16(),
        "step": torch.tensor(2**40 + 1),
        "mask": table > 0,
        "special": torch.tensor([float("nan"), float("inf"), -0.0, 1e-45]),
        "trained": torch.nn.Parameter(torch.ones(2)),
        "empty": torch.zeros(0, 4),
    }
    save_checkpoint(tmp_path / "checkpoint", tensors, PROGRESS)
    found, progress = load_checkpoint(tmp_path / "checkpoint")
    assert progress == PROGRESS
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        torch.testing.assert_close(found[name], tensor.detach(), rtol=0, atol=0, equal_nan=True, check_stride=False)
    assert torch.signbit(found["special"])[2]


def test_saving_leaves_tensors_alone_and_nothing_but_one_file(tmp_path: Path) -> None:
    tensor = torch.arange(6.0).view(2, 3)
    for number in range(3):
        save_checkpoint(tmp_path, {"a": tensor + number}, {"step": number})
    assert [file.name for file in tmp_path.iterdir()] == [CHECKPOINT_FILE]
    found, progress = load_checkpoint(tmp_path)
    assert progress == {"step": 2}
    assert torch.equal(found["a"], tensor + 2)


def test_what_is_flushed_may_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Windows wants it."""
    fcntl, flushed = pytest.importorskip("fcntl"), []
    monkeypatch.setattr("os.fsync", lambda file: flushed.append(fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE))
    save_checkpoint(tmp_path, {"a": torch.zeros(2)}, {})
    assert flushed == [os.O_RDWR]


def test_what_was_loaded_does_not_change_when_the_file_is_replaced(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, {"a": torch.zeros(100_000)}, {})
    found, _ = load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, {"a": torch.ones(100_000)}, {})
    assert not found["a"].any()


@pytest.mark.parametrize("rest", [b"", b"half a checkp", b"\xff" * 5000])
def test_a_partial_file_of_a_dead_writer_is_ignored_and_replaced(tmp_path: Path, rest: bytes) -> None:
    partial = tmp_path / f"{CHECKPOINT_FILE}.0123abcd.partial"
    partial.write_bytes(rest)
    assert not has_checkpoint(tmp_path)
    with pytest.raises(InputError, match="nothing to resume"):
        load_checkpoint(tmp_path)
    save_checkpoint(tmp_path, {"a": torch.ones(3)}, {"step": 1})
    assert not partial.exists()
    partial.write_bytes(rest)
    assert has_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path)[1] == {"step": 1}


@pytest.mark.parametrize("moment", ["twincluster.training.trainer.save_file", "os.fsync", "pathlib.Path.replace"])
def test_a_failure_while_saving_keeps_the_old_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    save_checkpoint(tmp_path, {"a": torch.ones(3)}, {"step": 1})

    def fail(*arguments: object, **options: object) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(moment, fail)
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, {"a": torch.zeros(3)}, {"step": 2})
    found, progress = load_checkpoint(tmp_path)
    assert progress == {"step": 1}
    assert found["a"].all()


# A writer saves state after state, each filled with its number. It is killed at some moment, again and again, until it
# has died in the midst of writing at least thrice.
KILLING = """
import os, pathlib, random, signal, sys, time
import torch
from twincluster.training import has_checkpoint, load_checkpoint, save_checkpoint

folder = pathlib.Path(sys.argv[1])
random.seed(0)
number = deaths = 0
while deaths < 3:
    writer = os.fork()
    if writer == 0:
        while True:
            number += 1
            tensors = {name: torch.full((200_000,), float(number)) for name in "abcde"}
            save_checkpoint(folder, tensors, {"step": number})
    while not has_checkpoint(folder):
        time.sleep(0.001)
    time.sleep(random.uniform(0, 0.05))
    os.kill(writer, signal.SIGKILL)
    os.waitpid(writer, 0)
    tensors, progress = load_checkpoint(folder)
    assert all((tensor == progress["step"]).all() for tensor in tensors.values()), "states are mixed"
    assert progress["step"] >= number, "went backwards"
    number = progress["step"]
    left = list(folder.glob("state.safetensors.*.partial"))
    assert len(left) <= 1, "what an earlier writer left is still there"
    deaths += len(left)
    for partial in left:
        partial.unlink()  # so that each death is counted once
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_writer_killed_at_any_moment_leaves_one_whole_state(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(twincluster.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", KILLING, tmp_path], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr


# -- what is not a checkpoint ----------------------------------------------------------------------------------------


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing to resume: .*leave out --resume"):
        load_checkpoint(tmp_path / "checkpoint")


class Trap:
    """Would make a folder when unpickled."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.target),)


def test_foreign_files_are_refused_and_never_unpickled(tmp_path: Path) -> None:
    file = tmp_path / CHECKPOINT_FILE
    save_checkpoint(tmp_path, {"a": torch.ones(1000)}, PROGRESS)
    whole = file.read_bytes()
    trapped = tmp_path / "trapped"
    torch.save({"a": Trap(trapped)}, tmp_path / "pickle")
    save_file({"a": torch.ones(3)}, tmp_path / "no progress")
    save_file({"a": torch.ones(3)}, tmp_path / "no JSON", metadata={"progress": "{"})
    contents = [b"", whole[:5], whole[: len(whole) // 2], whole[:-1], os.urandom(500)]
    contents += [(tmp_path / name).read_bytes() for name in ("pickle", "no progress", "no JSON")]
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(InputError, match="is not a checkpoint of twincluster .*start anew without --resume"):
            load_checkpoint(tmp_path)
    assert not trapped.exists()
