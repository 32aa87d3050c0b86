"""Both links at once: what is moved is what was asked for, in any timing, and it can be stopped."""

import ctypes
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from threading import Event

import pytest

from flexinfer.errors import ReadError
from flexinfer.memory.arena import Arena
from flexinfer.planner.placement import Request
from flexinfer.streaming.link import PhaseStreams, Pipeline, Transfer
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream
from flexinfer.streaming.reader import Reader
from flexinfer.streaming.ring import Slot
from streaming_tools import make_ring, write_random

SIZE, SLOT = 4000, 64 * 1024
pytestmark = pytest.mark.timeout(120)


class SlowCopier:
    """Copies within host memory, each after a moment of its own."""

    def copy(self, address: int, size_bytes: int, slot: Slot, given_up: Event) -> None:
        time.sleep(random.random() * 1e-3)
        ctypes.memmove(slot.address, address, size_bytes)


class WaitingCopier:
    """Each copy takes until it is given up: half a minute at most."""

    def __init__(self) -> None:
        self.under_way: SimpleQueue[Event] = SimpleQueue()
        self.given_up: SimpleQueue[bool] = SimpleQueue()

    def copy(self, address: int, size_bytes: int, slot: Slot, given_up: Event) -> None:
        self.under_way.put(given_up)
        self.given_up.put(given_up.wait(30))


class Machine:
    """A file of eight requests, of which the host and a device take some each, and one range of
    host memory that the device takes, too.
    """

    def __init__(self, path: Path, prefetch: bool) -> None:
        self.data = write_random(path, 8 * SIZE)
        self.reader = Reader(path)
        self.requests = [Request(path, SIZE * i, SIZE) for i in range(8)]
        self.ring = make_ring(3, SLOT)
        self.held = Arena(SIZE).take(SIZE)
        ctypes.memmove(self.held.address, bytes(reversed(self.data[:SIZE])), SIZE)
        moved = Transfer(SIZE, address=self.held.address)
        self.phases = {
            "prefill": PhaseStreams((moved, *self.through(1, 2, 5)), tuple(range(8))),
            "decode": PhaseStreams((*self.through(7), moved), (0, 3, 7)),
            "host": PhaseStreams((), tuple(range(8))),
        }
        self.prefetch = prefetch
        self.pipeline = Pipeline(
            self.phases, SlowCopier(), make_ring(3, SLOT), self.read, prefetch=prefetch
        )

    def through(self, *requests: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(SIZE, request=r) for r in requests)

    def read(self, indices: tuple[int, ...]) -> Prefetcher | SerialStream:
        requests = [self.requests[i] for i in indices]
        kind = Prefetcher if self.prefetch else SerialStream
        return kind(requests, {self.reader.path: self.reader}, self.ring)

    def steps(self, phase: str) -> Iterator[tuple[str, int, bytes]]:
        """(who, number, bytes) of a sweep in its order."""
        streams = self.phases[phase]
        through = {t.request: i for i, t in enumerate(streams.transfers)}
        if None in through and through[None] == 0:
            yield "device", 0, bytes(reversed(self.data[:SIZE]))
        for request in streams.requests:
            data = self.data[SIZE * request : SIZE * (request + 1)]
            if request in through:
                yield "device", through[request], data
            else:
                yield "host", request, data
        if through.get(None):
            yield "device", through[None], bytes(reversed(self.data[:SIZE]))

    def sweep(self, phase: str, stop_after: int = 99) -> None:
        self.pipeline.enter(phase)
        ends = {"device": self.pipeline, "host": self.pipeline.disk}
        for count, (who, number, data) in enumerate(self.steps(phase)):
            if count == stop_after:
                return
            address = ends[who].take(number)
            assert ctypes.string_at(address, SIZE) == data
            ends[who].release(number)

    def close(self) -> None:
        self.pipeline.close()
        self.reader.close()


@pytest.mark.parametrize("prefetch", [True, False])
def test_sweeps_of_any_phase_bring_what_is_theirs(tmp_path: Path, prefetch: bool) -> None:
    chance = random.Random(0)
    with closing(Machine(tmp_path / "file", prefetch)) as machine:
        for _ in range(60):
            machine.sweep(chance.choice(["prefill", "prefill", "decode", "host"]))
            if chance.random() < 0.3:  # abandoned somewhere
                machine.sweep(chance.choice(list(machine.phases)), chance.randrange(8))
                chance.choice([machine.pipeline, machine.pipeline.disk]).rewind()
        assert machine.pipeline.moved_bytes >= 60 * SIZE


def test_an_error_of_the_disk_reaches_who_waits_for_the_link(tmp_path: Path) -> None:
    with closing(Machine(tmp_path / "file", True)) as machine:
        machine.sweep("prefill")
        machine.reader.path.write_bytes(b"short")
        with pytest.raises(ReadError):
            for _ in range(3):
                machine.sweep("prefill")


def test_closing_ends_every_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    for phase in ("prefill", "decode", "host"):
        machine = Machine(tmp_path / "file", True)
        machine.sweep(phase, 2)
        machine.close()
        machine.close()
        assert threading.active_count() == before


def test_transfers_of_an_abandoned_sweep_are_given_up() -> None:
    copier, ring = WaitingCopier(), make_ring(3, SLOT)
    held = Arena(SIZE).take(SIZE)
    phases = {"decode": PhaseStreams((Transfer(SIZE, address=held.address),), ())}
    pipeline = Pipeline(phases, copier, ring, lambda requests: None, prefetch=True)
    pipeline.enter("decode")
    first = copier.under_way.get()
    pipeline.rewind()
    assert copier.given_up.get() and first.is_set()
    later = copier.under_way.get()
    while later is first:  # the other thread's
        later = copier.under_way.get()
    assert not later.is_set()  # of the next sweep
    pipeline.close()
    while not copier.given_up.empty():
        assert copier.given_up.get()
