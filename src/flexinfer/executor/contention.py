"""What reading and computing cost each other on this machine, at a model's place.

Side by side they share processors and memory, those of the host's reader too where the machine is
virtual. One after the other, threads that slept through a read take time to wake: longer where a
machine has been idle for some tenths of a second, so that a few reads would not show it.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from statistics import fmean, median
from threading import Event

import numpy as np

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.arena import Region
from flexinfer.planner.disk import Disk
from flexinfer.planner.placement import BLOCK_BYTES, GROUP_ROWS
from flexinfer.streaming.reader import REQUEST_BYTES, Reader

Q4_0 = BLOCK_TYPES[2]
COLUMNS = 4096
ROUNDS = 3
SPELL_S = 0.2  # of each of the four ways in a round
LEAST_SHARE = 0.05
LEAST_READS = 8


@dataclass(frozen=True, slots=True)
class ReadingBench:
    """A reader, and products of one token with as many rows as a request has. `memory` was touched
    and is more than the caches hold.
    """

    context: _kernels.Context
    memory: Region
    reader: Reader

    @property
    def request_bytes(self) -> int:
        most = min(REQUEST_BYTES, self.reader.file_bytes, self.memory.size_bytes // 2)
        return most // BLOCK_BYTES * BLOCK_BYTES

    @property
    def rows(self) -> int:
        return self.request_bytes // Q4_0.row_bytes(COLUMNS) // GROUP_ROWS * GROUP_ROWS

    def part(self, index: int) -> Region:
        parts = self.memory.size_bytes // self.request_bytes
        return self.memory.part(index % parts * self.request_bytes, self.request_bytes)

    def read(self, index: int) -> None:
        place = index % (self.reader.file_bytes // self.request_bytes) * self.request_bytes
        with self.part(index).view() as view:
            self.reader.read(place, self.request_bytes, view)

    def product(self, locked: bool) -> Callable[[int], None]:
        x = np.ones((1, COLUMNS), np.float32)
        quantised = np.zeros((1, _kernels.activation_bytes(COLUMNS)), np.uint8)
        _kernels.quantize(self.context, x, quantised)
        out = np.zeros((1, self.rows), np.float32)

        def multiply(index: int) -> None:
            where = (Q4_0.ggml_id, locked, self.part(index).address, self.rows, COLUMNS)
            _kernels.linear(self.context, *where, x, quantised, out, 0, 0, None)

        return multiply


def with_contention(disk: Disk, bench: ReadingBench, spell_s: float = SPELL_S) -> Disk:
    """`disk` with its `wait_s` and shares as measured, each the median of several rounds; as it is
    where the file is too small to tell. Raises ReadError.
    """
    if not bench.rows:
        return disk
    found = [(_wait_s(bench, spell_s), *_shares(bench, disk.depth, spell_s)) for _ in range(ROUNDS)]
    wait_s, computing, reading = map(median, zip(*found, strict=True))
    return _shared(replace(disk, wait_s=max(0.0, wait_s)), computing, reading)


def with_shares(disk: Disk, bench: ReadingBench, spell_s: float) -> Disk:
    """`disk` with its shares as found at one look; as it is where that brings too few reads."""
    if not bench.rows or disk.bytes_per_s * spell_s < LEAST_READS * bench.request_bytes:
        return disk
    return _shared(disk, *_shares(bench, disk.depth, spell_s))


def _shared(disk: Disk, computing: float, reading: float) -> Disk:
    computing = min(1.0, max(LEAST_SHARE, computing))
    # Less than the rest of the time would be slower than one after the other.
    reading = min(1.0, max(1.0 - computing, reading))
    return replace(disk, computing_share=computing, reading_share=reading)


def _wait_s(bench: ReadingBench, spell_s: float) -> float:
    """What a read and then a product with what was read take beyond each by itself."""
    product = bench.product(locked=False)

    def both(index: int) -> None:
        bench.read(index)
        product(index)

    return _usual_s(both, spell_s) - _usual_s(bench.read, spell_s) - _usual_s(product, spell_s / 4)


def _shares(bench: ReadingBench, depth: int, spell_s: float) -> tuple[float, float]:
    """Of its own speed each, that of computing and that of reading, while both go on."""
    product = bench.product(locked=True)
    alone_s = _usual_s(product, spell_s / 4)
    stop, places = Event(), count()
    before = bench.reader.read_bytes

    def read_on() -> None:
        while not stop.is_set():
            bench.read(next(places))

    def bytes_per_s(meanwhile: Callable[[], float]) -> tuple[float, float]:
        nonlocal before
        started, before = time.perf_counter(), bench.reader.read_bytes
        found = meanwhile()
        return found, (bench.reader.read_bytes - before) / (time.perf_counter() - started)

    def idle() -> float:
        time.sleep(spell_s / 2)
        return 0.0

    with ThreadPoolExecutor(depth) as pool:
        readers = [pool.submit(read_on) for _ in range(depth)]
        try:
            _, reading = bytes_per_s(idle)
            beside_s, beside = bytes_per_s(lambda: _usual_s(product, spell_s))
        finally:
            stop.set()
    for reader in readers:
        reader.result()  # an error of its own
    return alone_s / beside_s, beside / reading if reading else 1.0


def _usual_s(call: Callable[[int], None], seconds: float) -> float:
    """The mean time of a call, of those in the second half of `seconds`."""
    times: list[float] = []
    started = ended = time.perf_counter()
    while ended - started < seconds or len(times) < 2:
        began = ended
        call(len(times))
        ended = time.perf_counter()
        times.append(ended - began)
    return fmean(times[len(times) // 2 :])
