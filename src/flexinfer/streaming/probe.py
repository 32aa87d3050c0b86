"""A quick look at how a file can be read: how fast, how many reads at once, how steadily."""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import chain, cycle
from pathlib import Path
from statistics import median

from flexinfer.memory.arena import Arena, Region
from flexinfer.planner.disk import Disk
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.streaming.reader import REQUEST_BYTES, Reader
from flexinfer.units import MiB

DEPTHS = (1, 2, 4)  # reads in flight that are tried
SECONDS = 0.12  # for all depths together; a first look, and a slow disk's last reads, come on top
_ROUND_S = 0.3  # of all depths; a longer look takes them in turns, as disks change meanwhile
_MEMORY_BYTES = 16 * MiB
_LEAST_BYTES = MiB // 4  # of a read, where a disk is too slow for more
_SHORT_READS, _SHORT_S = 8, 0.01  # for the latency: whichever ends first
_FIRST_READS = 3


def probe_disk(
    path: Path,
    request_bytes: int = REQUEST_BYTES,
    depths: Sequence[int] = DEPTHS,
    seconds: float = SECONDS,
) -> Disk:
    """What reading `path` in a sweep's requests gives. As `measure_reader`."""
    with closing(Reader(path)) as reader:
        return measure_reader(reader, request_bytes, depths, seconds)


def measure_reader(
    reader: Reader,
    request_bytes: int = REQUEST_BYTES,
    depths: Sequence[int] = DEPTHS,
    seconds: float = SECONDS,
) -> Disk:
    """Read a file at several depths, each for its part of `seconds`, in rounds; touches 16 MiB of
    memory.

    A depth's bandwidth follows from the median time of as many reads as are in flight. Pauses are
    too rare for so short a time: they are taken from all depths together and slow each alike. Reads
    are of `request_bytes`, or smaller where a depth's time would not hold two of a thread. Raises
    ReadError.
    """
    rounds = max(1, round(seconds / _ROUND_S))
    most, part_s = max(depths), seconds / rounds / len(depths)
    with Arena(_MEMORY_BYTES) as arena:
        memory = arena.take(_MEMORY_BYTES, BLOCK_BYTES)
        memory.array("u1", (_MEMORY_BYTES,))[::BLOCK_BYTES] = 0  # first touch is not the disk's
        eighth = reader.file_bytes // BLOCK_BYTES // _SHORT_READS * BLOCK_BYTES
        apart = _places(reader, max(BLOCK_BYTES, eighth))
        short = _reads(reader, [memory], apart, BLOCK_BYTES, _SHORT_S, _SHORT_READS)
        first = _reads(reader, [memory], _places(reader, MiB), MiB, part_s, _FIRST_READS)
        quick = int(part_s * MiB / median(_spans(first))) // (2 * most)
        size = max(_LEAST_BYTES, min(request_bytes, quick, _MEMORY_BYTES // most))
        size = size // BLOCK_BYTES * BLOCK_BYTES
        places = _places(reader, size, -(-_FIRST_READS * MiB // size))  # nothing twice
        slots = [memory.part(at, size) for at in range(0, _MEMORY_BYTES - size + 1, size)]

        def ends(depth: int) -> list[float]:
            # All slots in turn, as in a ring: what was written to lately is in a cache.
            shares = [slots[i::depth] for i in range(depth)]
            with ThreadPoolExecutor(depth) as pool:
                each = pool.map(lambda s: _reads(reader, s, places, size, part_s), shares)
                (began, *ended), *others = each
            return sorted(chain((began,), ended, *(ended for _, *ended in others)))

        times = [(depth, ends(depth)) for _ in range(rounds) for depth in depths]
    spans: dict[int, list[float]] = {depth: [] for depth in depths}
    for depth, each in times:
        spans[depth] += _spans(each, depth)
    typical_s = {depth: median(each) for depth, each in spans.items()}
    steady_s = sum(typical_s[depth] / depth * (len(each) - 1) for depth, each in times)
    late_s = [s - typical_s[d] for d, each in spans.items() for s in each if s > typical_s[d]]
    busy = min(1.0, steady_s / sum(each[-1] - each[0] for _, each in times))
    payload_bytes = min(size, reader.file_bytes)
    return Disk(
        {depth: busy * depth * payload_bytes / span_s for depth, span_s in typical_s.items()},
        min(_spans(short)),
        busy,
        sum(s * s for s in late_s) / sum(late_s) if late_s else 0.0,
    )


def _places(reader: Reader, step_bytes: int, skip: int = 0) -> Iterator[int]:
    """Offsets, round and round, for any number of threads. From the file's middle on: who opened it
    has just read its beginning.
    """
    steps = max(1, reader.file_bytes // step_bytes)
    first = (steps // 2 + skip) % steps * step_bytes
    end = steps * step_bytes
    return cycle(chain(range(first, end, step_bytes), range(0, first, step_bytes)))


def _reads(
    reader: Reader,
    slots: Sequence[Region],
    places: Iterator[int],
    size: int,
    seconds: float,
    most: int | None = None,
) -> list[float]:
    """Read piece after piece for `seconds`, or at most `most`: the time at the beginning, and after
    each.
    """
    times = [time.perf_counter()]
    turns = cycle(slots)
    while len(times) == 1 or (times[-1] - times[0] < seconds and len(times) - 1 != most):
        with next(turns).view() as view:
            reader.read(next(places), min(size, reader.file_bytes), view)
        times.append(time.perf_counter())
    return times


def _spans(times: Sequence[float], reads: int = 1) -> list[float]:
    """How long so many reads took, from every time on."""
    return [end - begin for begin, end in zip(times, times[reads:], strict=False)]
