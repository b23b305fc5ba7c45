"""Ctrl-C: what is under way is brought to a point from which the run goes on, and saved. Real signals."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from small_runs import AtCall, images_of, rows, train, without_seconds
from twincluster.core import noted, terminable
from twincluster.runs import Run
from twincluster.training import load_checkpoint

RARELY = "train.checkpoint_minutes=100"


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("method", ["anchored", "tcc"])
def test_an_interrupted_run_has_saved_all_it_did(tmp_path: Path, method: str) -> None:
    images, changes = images_of(rows()), (f"method={method}", RARELY, "train.epochs=3")
    train(images, *changes, folder=tmp_path / "whole")
    for moment in range(1, 13):  # 3 epochs of 3 steps and a row each
        folder = tmp_path / str(moment)
        with pytest.raises(KeyboardInterrupt):
            train(images, *changes, folder=folder, reporter=AtCall(moment, interrupt))
        done = moment - moment // 4  # rows are no steps
        assert load_checkpoint(folder / "checkpoint")[1]["step"] == done
        train(images, *changes, folder=folder, resume=True)
        found, wanted = (without_seconds(Run(run).read_metrics()) for run in (folder, tmp_path / "whole"))
        assert found == wanted
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_folder_to_save_in_an_interrupt_comes_at_once() -> None:
    reporter = AtCall(2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(images_of(rows()), RARELY, "train.epochs=3", reporter=reporter)
    assert reporter.calls_left == 0


def test_a_second_interrupt_does_not_wait() -> None:
    with noted(True) as noticed:
        interrupt()
        assert noticed.asked
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_other_threads_than_the_first_have_no_signals() -> None:
    heard = []

    def work() -> None:
        with noted(True) as noticed:
            heard.append(noticed.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert heard == [False]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_that_is_not_pythons_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Python is embedded; of such a handler it knows nothing but that it is there."""
    known = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda number: None if number == signal.SIGINT else known(number))
    with terminable(), noted(True):
        assert known(signal.SIGTERM) is not signal.SIG_DFL
        assert known(signal.SIGINT) is signal.default_int_handler
    assert known(signal.SIGTERM) is signal.SIG_DFL
