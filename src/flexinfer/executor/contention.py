"""What reading and computing cost each other on this machine, at a model's place.

Side by side they share processors and memory, with the host's reader too where the machine is
virtual. One after the other, threads that slept through a read take time to wake: longer where a
machine has been idle for some tenths of a second, so that a few reads would not show it. Both are
measured as a sweep has them: by the streams it takes its requests from, and products between.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, median

import numpy as np

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.arena import Region
from flexinfer.planner.disk import Disk
from flexinfer.planner.placement import BLOCK_BYTES, GROUP_ROWS, Request
from flexinfer.planner.ring import MIN_SLOTS
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream, Stream
from flexinfer.streaming.reader import REQUEST_BYTES, Reader
from flexinfer.streaming.ring import Ring

Q4_0 = BLOCK_TYPES[2]
COLUMNS = 4096
ROUNDS = 3
SPELL_S = 0.12  # of each kind of sweep in a round
LONG = 5  # times as long one after the other, for the machine to fall idle between
BESIDE = (0.0, 1.0, 2.0)  # so much computing beside as much reading, and one product at least
MOST_PRODUCTS = 64  # between two reads
Point = tuple[float, float]
Compute = Callable[[int, int], None]  # the address of a request's rows, and its number


@dataclass(frozen=True, slots=True)
class ReadingBench:
    """Sweeps over a file, a product with each request's rows and products with locked rows between.

    `memory` was touched, and is more than the caches hold: the ring begins it, locked rows are
    its second half.
    """

    context: _kernels.Context
    memory: Region
    reader: Reader

    @property
    def request_bytes(self) -> int:
        most = min(REQUEST_BYTES, self.reader.file_bytes, self.memory.size_bytes // 2 // MIN_SLOTS)
        return most // BLOCK_BYTES * BLOCK_BYTES

    @property
    def rows(self) -> int:
        """Of a product: as many as a request brings."""
        return self.request_bytes // Q4_0.row_bytes(COLUMNS) // GROUP_ROWS * GROUP_ROWS

    @property
    def requests(self) -> Sequence[Request]:
        size = self.request_bytes
        starts = range(0, self.reader.file_bytes - size + 1, size)
        return [Request(self.reader.path, start, size) for start in starts]

    def computing(self, products: int) -> Compute:
        """One product of file rows where they lie, the others of locked rows."""
        x = np.ones((1, COLUMNS), np.float32)
        quantised = np.zeros((1, _kernels.activation_bytes(COLUMNS)), np.uint8)
        _kernels.quantize(self.context, x, quantised)
        out = np.zeros((1, self.rows), np.float32)
        locked = self.memory.address + self.memory.size_bytes // 2
        places = self.memory.size_bytes // 2 // self.request_bytes

        def multiply(address: int, interleaved: bool) -> None:
            where = (Q4_0.ggml_id, interleaved, address, self.rows, COLUMNS)
            _kernels.linear(self.context, *where, x, quantised, out, 0, 0, None)

        def compute(address: int, index: int) -> None:
            for product in range(products):
                place = (index * products + product) % places
                multiply(locked + place * self.request_bytes if product else address, product > 0)

        return compute

    def computed_s(self, compute: Compute, seconds: float) -> float:
        """Alone, per request."""
        slots = self.memory.size_bytes // 2 // self.request_bytes

        def of_slot(index: int) -> None:
            compute(self.memory.address + index % slots * self.request_bytes, index)

        return _usual_s(of_slot, seconds)

    def streamed_s(self, depth: int, compute: Compute, seconds: float) -> float:
        """Per request, so many reads in flight; 0: each when it is needed. Raises ReadError."""
        requests, readers = self.requests, {self.reader.path: self.reader}
        slots = max(MIN_SLOTS, depth + 1)
        ring = Ring(self.memory.part(0, slots * self.request_bytes), self.request_bytes)
        stream: Stream = (
            Prefetcher(requests, readers, ring, depth)
            if depth
            else SerialStream(requests, readers, ring)
        )

        def step(index: int) -> None:
            request = index % len(requests)
            compute(stream.take(request), index)
            stream.release(request)

        try:
            return _usual_s(step, seconds)
        finally:
            stream.close()


def with_contention(disk: Disk, bench: ReadingBench, spell_s: float = SPELL_S) -> Disk:
    """`disk` with what reading and computing cost each other, side by side the medians of several
    rounds; as it is where the file is too small or the disk too slow to tell. Raises ReadError.
    """
    if not bench.rows or disk.bytes_per_s * spell_s < bench.request_bytes:
        return disk
    nothing, one = bench.computing(0), bench.computing(1)
    ratio = bench.streamed_s(disk.depth, nothing, spell_s) / bench.computed_s(one, spell_s)
    counts = {min(MOST_PRODUCTS, max(1, round(beside * ratio))) for beside in BESIDE}
    several = [bench.computing(count) for count in sorted(counts)]
    points: list[list[Point]] = []
    for _ in range(ROUNDS):
        read_s = bench.streamed_s(disk.depth, nothing, spell_s)
        points.append([_point(bench, disk.depth, read_s, compute, spell_s) for compute in several])
    found = [tuple(map(median, zip(*each, strict=True))) for each in zip(*points, strict=True)]
    contention = tuple((at, min(1.0, max(0.0, lost))) for at, lost in found)
    ascending = all(a[0] < b[0] for a, b in pairwise(contention))  # else it was all noise
    serial_s = bench.streamed_s(0, nothing, LONG * spell_s) + bench.computed_s(one, spell_s)
    wait_s = max(0.0, bench.streamed_s(0, one, LONG * spell_s) - serial_s)
    return replace(disk, wait_s=wait_s, contention=contention if ascending else ())


def _point(
    bench: ReadingBench, depth: int, read_s: float, compute: Compute, spell_s: float
) -> Point:
    """Of Disk.contention: computing, and what is lost, for every second's worth of reading."""
    alone_s = bench.computed_s(compute, spell_s / 2)
    together_s = bench.streamed_s(depth, compute, spell_s)
    return alone_s / read_s, (together_s - max(alone_s, read_s)) / read_s


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
