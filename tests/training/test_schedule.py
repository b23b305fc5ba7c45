"""The clock under a wall that the test moves by hand, and the learning rate over a whole run."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from twincluster.config import Optimiser
from twincluster.training import trainer as schedule
from twincluster.training.trainer import Clock, learning_rate


@dataclass
class Wall:
    now: float = 5000.0  # a monotonic clock may start anywhere

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    wall = Wall()
    monkeypatch.setattr(schedule, "time", SimpleNamespace(monotonic=wall.monotonic))
    return wall


def advance(clock: Clock, wall: Wall, steps: int, seconds: float) -> None:
    """Some steps that take some seconds in all; then host and device meet."""
    clock.step += steps
    wall.now += seconds
    clock.meet()


# -- epochs ----------------------------------------------------------------------------------------------------------


def test_by_epochs_steps_alone_decide(wall: Wall) -> None:
    clock = Clock(epochs=3, minutes=0, steps_per_epoch=4)
    seen = []
    while not clock.finished:
        seen.append(clock.progress)
        advance(clock, wall, 1, seconds=1e6 if len(seen) == 5 else 0.001)
    assert seen == [step / 12 for step in range(12)]
    assert clock.progress == 1


def test_no_epochs_are_over_at_once(wall: Wall) -> None:
    assert Clock(epochs=0, minutes=0, steps_per_epoch=4).finished


# -- minutes ---------------------------------------------------------------------------------------------------------


def test_by_minutes_the_wall_decides(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=4)
    advance(clock, wall, 3, seconds=30)
    assert clock.progress == pytest.approx(0.25)
    advance(clock, wall, 1000, seconds=30)  # far beyond the epochs
    assert clock.progress == pytest.approx(0.5)
    assert not clock.finished
    advance(clock, wall, 1, seconds=60)
    assert clock.finished
    advance(clock, wall, 1, seconds=60)
    assert clock.progress == 1


def test_between_two_meetings_steps_count_at_the_measured_pace(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=100)
    assert clock.progress == 0
    clock.step += 10
    wall.now += 20
    assert clock.progress == 0  # nothing was measured yet
    clock.meet()
    clock.step += 10
    wall.now += 0.01  # the host ran ahead of the device
    assert clock.progress == pytest.approx((20 + 10 * 2) / 120)
    clock.step += 40
    assert clock.finished
    wall.now += 39.99
    clock.meet()  # the device was faster than before: the time left is used
    assert clock.progress == pytest.approx(60 / 120)


def test_progress_never_runs_backwards_at_an_even_pace(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=1, steps_per_epoch=10)
    seen = []
    for number in range(1, 60):
        clock.step += 1
        wall.now += 1
        if number % 7 == 0:
            clock.meet()
        seen.append(clock.progress)
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(59 / 60)


def test_what_goes_before_the_first_step_is_taken_off_the_budget(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=10)
    wall.now += 30  # compiling
    clock.begin()
    assert clock.progress == 0
    advance(clock, wall, 10, seconds=45)
    assert clock.seconds == pytest.approx(45)
    assert clock.progress == pytest.approx(0.5)
    advance(clock, wall, 10, seconds=45)
    assert clock.finished  # 120 seconds after it was asked for


def test_a_budget_that_is_spent_before_the_first_step_still_allows_one(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=1, steps_per_epoch=10)
    wall.now += 300
    clock.begin()
    assert not clock.finished


# -- estimates -------------------------------------------------------------------------------------------------------


def test_nothing_is_estimated_before_the_first_meeting(wall: Wall) -> None:
    clock = Clock(epochs=2, minutes=0, steps_per_epoch=10)
    clock.step += 1
    wall.now += 3
    assert clock.remaining is None
    clock.meet()
    assert clock.remaining == pytest.approx(19 * 3)


def test_by_epochs_the_time_before_the_first_step_does_not_slow_the_pace(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=0, steps_per_epoch=10)
    wall.now += 60
    clock.begin()
    advance(clock, wall, 1, seconds=2)
    assert clock.remaining == pytest.approx(9 * 2)


def test_a_slow_first_step_is_soon_forgotten(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=0, steps_per_epoch=100)
    advance(clock, wall, 1, seconds=60)
    for _ in range(20):
        advance(clock, wall, 1, seconds=0.5)
    assert clock.remaining == pytest.approx(79 * 0.5, rel=0.01)


def test_seconds_without_a_step_do_not_slow_the_pace_but_will_come_again(wall: Wall) -> None:
    clock = Clock(epochs=5, minutes=0, steps_per_epoch=2)
    advance(clock, wall, 2, seconds=4)
    advance(clock, wall, 0, seconds=100)  # between epochs
    assert clock.seconds == pytest.approx(104)
    clock.step += 1
    assert clock.elapsed == pytest.approx(106)
    assert clock.remaining == pytest.approx(4 * 104 - 2)


def test_a_busy_machine_does_not_make_the_estimate_jump(wall: Wall) -> None:
    """Every tenth step takes fifty times as long, by chance sooner or later."""
    random, clock = np.random.default_rng(0), Clock(epochs=20, minutes=0, steps_per_epoch=50)
    taken = np.where(random.random(1000) < 0.1, 5.0, 0.1)
    total, estimates = taken.sum(), []
    for seconds in taken:
        advance(clock, wall, 1, seconds=seconds)
        estimates.append(clock.seconds + clock.remaining)  # when it will be over
    after = np.array(estimates)[200:]
    assert (np.abs(after / total - 1) < 0.25).all()
    assert (np.abs(np.diff(after)) < 0.05 * total).all()


def test_a_machine_that_becomes_slower_is_noticed(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=0, steps_per_epoch=400)
    for step in range(300):
        advance(clock, wall, 1, seconds=0.1 if step < 100 else 1.0)
    assert clock.remaining == pytest.approx(100, rel=0.15)


def test_by_minutes_the_estimate_is_the_rest_of_the_budget(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=10)
    advance(clock, wall, 5, seconds=50)
    assert clock.remaining == pytest.approx(70)
    advance(clock, wall, 5, seconds=500)
    assert clock.remaining == 0


# -- resuming --------------------------------------------------------------------------------------------------------


def test_a_resumed_clock_goes_on_where_the_old_one_stopped(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=10)
    advance(clock, wall, 6, seconds=30)
    step, seconds = clock.step, clock.seconds
    wall.now += 86_400  # the machine was off for a day
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=10)
    wall.now += 20  # reading the data again
    clock.resume(step, seconds)
    assert clock.progress == pytest.approx(30 / 120)
    advance(clock, wall, 6, seconds=30)
    assert clock.seconds == pytest.approx(60)
    assert clock.progress == pytest.approx(0.5)
    assert clock.step == 12


def test_a_resumed_clock_measures_its_own_pace(wall: Wall) -> None:
    clock = Clock(epochs=2, minutes=0, steps_per_epoch=50)
    clock.resume(40, 1000.0)
    assert clock.progress == pytest.approx(0.4)
    assert clock.remaining is None
    advance(clock, wall, 10, seconds=5)
    assert clock.remaining == pytest.approx(50 * 0.5)


def test_beginning_keeps_what_was_resumed(wall: Wall) -> None:
    clock = Clock(epochs=1, minutes=2, steps_per_epoch=10)
    clock.resume(6, 30.0)
    wall.now += 20
    clock.begin()
    assert (clock.step, clock.seconds) == (6, 30.0)
    assert clock.progress == pytest.approx(30 / 100)
    advance(clock, wall, 5, seconds=20)
    assert clock.seconds == pytest.approx(50)


# -- learning rate ---------------------------------------------------------------------------------------------------


def test_constant_rate() -> None:
    settings = Optimiser(learning_rate=0.3, schedule="constant")
    assert {learning_rate(settings, progress) for progress in (0.0, 0.2, 0.99, 1.0)} == {0.3}


def test_warm_up_rises_in_a_straight_line() -> None:
    settings = Optimiser(learning_rate=0.4, schedule="constant", warmup=0.2)
    found = [learning_rate(settings, progress) for progress in (0.0, 0.05, 0.1, 0.2, 0.5, 1.0)]
    assert found == pytest.approx([0.0, 0.1, 0.2, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("warmup", [0.0, 0.1, 0.5])
def test_cosine_falls_from_the_full_rate_to_zero(warmup: float) -> None:
    settings = Optimiser(learning_rate=0.4, schedule="cosine", warmup=warmup)
    assert learning_rate(settings, warmup) == pytest.approx(0.4)
    assert learning_rate(settings, warmup + (1 - warmup) / 2) == pytest.approx(0.2)
    assert learning_rate(settings, warmup + (1 - warmup) / 4) == pytest.approx(0.2 * (1 + math.sqrt(0.5)))
    assert learning_rate(settings, 1.0) == pytest.approx(0, abs=1e-12)


@given(st.sampled_from(["constant", "cosine"]), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_the_rate_rises_and_then_never_again(schedule: str, warmup: float, one: float, two: float) -> None:
    settings = Optimiser(learning_rate=2.0, schedule=schedule, warmup=warmup)
    low, high = sorted((one, two))
    first, second = learning_rate(settings, low), learning_rate(settings, high)
    assert 0 <= first <= 2
    assert 0 <= second <= 2
    if high < warmup:
        assert first <= second
    elif low >= warmup:
        assert first >= second
