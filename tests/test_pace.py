"""Pace and links of an emulated accelerator, by a clock that only moves when it is told to."""

from collections.abc import Iterator
from threading import Event

import pytest

from flexinfer.ops import pace
from flexinfer.ops.pace import Pace, Way


class Clock:
    """Sleeping oversleeps by `late_s`."""

    def __init__(self) -> None:
        self.now, self.slept, self.late_s = 100.0, 0.0, 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.now += seconds + self.late_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    clock = Clock()
    monkeypatch.setattr(pace, "time", clock)
    yield clock


def test_an_operation_takes_the_longer_of_its_own_time_and_its_charge(clock: Clock) -> None:
    device = Pace()
    clock.now += 3
    device.charge(5)  # its own 3 are inside
    device.wait()
    assert (clock.now, clock.slept) == (105, 2)
    clock.now += 7
    device.charge(5)
    device.wait()
    assert (clock.now, clock.slept) == (112, 2)


def test_charges_follow_each_other_while_the_host_runs_ahead(clock: Clock) -> None:
    device = Pace()
    for _ in range(3):
        clock.now += 1
        device.charge(4)
    assert clock.slept == 0
    device.wait()
    assert clock.now == 112


def test_a_slow_operation_gives_the_next_one_no_credit(clock: Clock) -> None:
    device = Pace()
    clock.now += 10
    device.charge(1)
    device.charge(5)
    device.wait()
    assert clock.now == 115


def test_work_before_a_wait_for_nothing_stays_inside(clock: Clock) -> None:
    device = Pace()
    clock.now += 2
    device.wait()  # nothing was charged yet
    clock.now += 1
    device.charge(5)
    device.wait()
    assert clock.now == 105


def test_time_of_others_is_not_computing(clock: Clock) -> None:
    device = Pace()
    clock.now += 4  # a stall
    device.pass_over(4)
    clock.now += 1
    device.charge(3)
    device.wait()
    assert clock.now == 107
    clock.now += 50  # the host computed
    device.begin()
    device.charge(3)
    device.wait()
    assert clock.now == 160


def test_oversleeping_is_made_up_for(clock: Clock) -> None:
    device = Pace()
    clock.late_s = 0.5
    for _ in range(10):
        clock.now += 1
        device.charge(3)
        device.wait()
    assert clock.now == pytest.approx(100 + 10 * 3 + 0.5)


def test_transfers_share_a_way_and_take_turns(clock: Clock) -> None:
    way = Way()
    assert way.pass_after(100, 2) == 102
    assert way.pass_after(100, 2) == 104  # asked for at the same time
    clock.now = 110
    assert way.pass_after(110, 2) == 112
    assert clock.now == 112


def test_a_transfer_that_is_given_up_leaves_the_way_free(clock: Clock) -> None:
    way, given_up = Way(), Event()
    given_up.set()
    assert way.pass_after(100, 50, given_up) == 100
    assert (clock.now, way.pass_after(100, 2)) == (100, 102)
