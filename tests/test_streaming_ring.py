"""The ring: each slot has one holder, whatever threads do in whatever order."""

import itertools
import threading
from queue import SimpleQueue

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flexinfer.memory.arena import Region
from flexinfer.streaming.ring import Ring
from streaming_tools import make_ring

pytestmark = pytest.mark.timeout(120)


def test_slots_are_handed_out_in_any_order() -> None:
    ring = make_ring(3, 4096)
    slots = [ring.acquire() for _ in range(3)]
    assert {slot.address for slot in slots if slot} == {slot.address for slot in ring.slots}
    assert slots[1] is not None
    ring.release(slots[1])
    assert ring.acquire() == slots[1]


def test_abort_sends_away_all_who_wait() -> None:
    ring = make_ring(1, 4096)
    ring.acquire()
    found: list[object] = []
    threads = [threading.Thread(target=lambda: found.append(ring.acquire())) for _ in range(3)]
    for thread in threads:
        thread.start()
    ring.abort()
    for thread in threads:
        thread.join()
    assert found == [None] * 3
    ring.release(ring.slots[0])
    assert ring.acquire() is None
    ring.reset()
    assert ring.acquire() == ring.slots[0]


def test_slots_are_equal_aligned_and_apart() -> None:
    ring = make_ring(5, 3 * 4096)
    starts = [slot.address for slot in ring.slots]
    assert all(start % 4096 == 0 for start in starts)
    assert {b - a for a, b in itertools.pairwise(starts)} == {3 * 4096}
    assert isinstance(ring, Ring) and {slot.size_bytes for slot in ring.slots} == {3 * 4096}


class Waiter(threading.Thread):
    """Acquires one slot, as a reading thread does."""

    def __init__(self, ring: Ring) -> None:
        super().__init__(daemon=True)
        self._ring = ring
        self.got: SimpleQueue[Region | None] = SimpleQueue()
        self.start()

    def run(self) -> None:
        self.got.put(self._ring.acquire())


class AnyUse(RuleBasedStateMachine):
    """Acquire, release, abort and reset from many threads, beside a count of free slots.

    Whoever acquires while slots are free gets one; else it waits, for a release or an abort.
    """

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.ring = make_ring(3, 4096)
        self.free = 3
        self.owned: set[int] = set()  # addresses of slots that somebody holds
        self.aborted = False
        self.waiting: list[Waiter] = []

    def _own(self, slot: Region | None) -> Region:
        assert slot is not None and slot.address not in self.owned
        self.owned.add(slot.address)
        return slot

    @rule(target=held)
    def acquire(self) -> object:
        waiter = Waiter(self.ring)
        if self.aborted:
            assert waiter.got.get(timeout=10) is None
            return None
        if self.free:
            self.free -= 1
            return self._own(waiter.got.get(timeout=10))
        self.waiting.append(waiter)
        return None

    @rule(target=held, slot=consumes(held))
    def release(self, slot: Region | None) -> object:
        if slot is None or slot.address not in self.owned:
            return None  # nothing came of that one, or a reset took it back
        self.owned.remove(slot.address)
        waiting = len(self.waiting)
        self.ring.release(slot)
        if self.aborted or not waiting:
            self.free += not self.aborted
            return None
        return self._own(self._first_served())

    def _first_served(self) -> Region | None:
        """What one of those who wait got: whichever the system woke."""
        for _ in range(1000):
            for waiter in self.waiting:
                waiter.join(0.01)
                if not waiter.is_alive():
                    self.waiting.remove(waiter)
                    return waiter.got.get(timeout=10)
        raise AssertionError("a slot was released and nobody got it")

    @rule()
    def abort(self) -> None:
        self.ring.abort()
        self.aborted = True
        for waiter in self.waiting:
            assert waiter.got.get(timeout=10) is None
        self.waiting.clear()

    @rule(count=st.integers(1, 3))
    def reset(self, count: int) -> None:
        """As a stream does: it sends all away before."""
        for _ in range(count):
            self.abort()
        self.ring.reset()
        self.aborted, self.free = False, len(self.ring.slots)
        self.owned.clear()

    @invariant()
    def nobody_waits_beside_a_free_slot(self) -> None:
        assert not (self.waiting and self.free)
        assert self.aborted or self.free + len(self.owned) == len(self.ring.slots)
        assert all(waiter.is_alive() for waiter in self.waiting)

    def teardown(self) -> None:
        self.abort()


TestAnyUse = AnyUse.TestCase
TestAnyUse.settings = settings(
    max_examples=60,
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking would wait for ever
)
