"""One thread for small steps on rows, and as many as before for all else."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from pretend_cuda import pretend_cuda
from small_runs import make
from twincluster.core import FEW, one_thread


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_as_many_as_before_come_back() -> None:
    with one_thread(False):
        assert torch.get_num_threads() == 2
    with suppress(KeyboardInterrupt), one_thread(True):
        assert torch.get_num_threads() == 1
        raise KeyboardInterrupt
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("kind", "few", "expected"), [("rows", FEW, 1), ("rows", 1, 2), ("images", FEW, 2)])
def test_a_run_on_few_numbers_takes_one(kind: str, few: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twincluster.training.trainer.FEW", few)
    trainer, seen = make(kind, "train.epochs=1"), []
    step, finish = trainer.step, trainer.method.finish
    monkeypatch.setattr(trainer, "step", lambda: (seen.append(torch.get_num_threads()), step()))
    monkeypatch.setattr(trainer.method, "finish", lambda embed: (seen.append(torch.get_num_threads()), finish(embed)))
    trainer.run()
    assert set(seen) == {expected}
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_leaves_the_threads_of_the_host_as_they_are() -> None:
    with pretend_cuda():
        trainer = make("rows", "train.device=cuda", "train.precision=float32", "train.compile=false", "train.epochs=1")
        finish, seen = trainer.method.finish, []
        trainer.method.finish = lambda embed: (seen.append(torch.get_num_threads()), finish(embed))
        trainer.run()
    assert seen == [2]
