"""A quick look at how fast a file can be read."""

import time
from contextlib import closing
from pathlib import Path

from flexinfer.memory.arena import Arena
from flexinfer.planner.placement import BLOCK_BYTES, Request
from flexinfer.streaming.prefetcher import Prefetcher
from flexinfer.streaming.reader import PIECE_BYTES, REQUEST_BYTES, Reader
from flexinfer.streaming.ring import Ring

_SLOTS = 4


def measure_bandwidth(path: Path, seconds: float = 0.1) -> float:
    """Bytes/s of streaming `path` as a sweep does, measured for `seconds`; touches 18 MiB.

    Raises ReadError.
    """
    with closing(Reader(path)) as reader, closing(Arena(_SLOTS * PIECE_BYTES)) as arena:
        region = arena.take(_SLOTS * PIECE_BYTES, BLOCK_BYTES)
        region.array("u1", (region.size_bytes,))[::BLOCK_BYTES] = 0  # first touch is not the disk's
        requests = _requests(path, reader.file_bytes)
        stream = Prefetcher(requests, {path: reader}, Ring(region, PIECE_BYTES))
        with closing(stream):
            before_bytes, started, index = reader.read_bytes, time.perf_counter(), 0
            while (elapsed_s := time.perf_counter() - started) < seconds:
                stream.take(index)
                stream.release(index)
                index = (index + 1) % len(requests)
            return (reader.read_bytes - before_bytes) / elapsed_s


def _requests(path: Path, file_bytes: int) -> list[Request]:
    """The whole file, from its middle on: who opened it has just read its beginning."""
    starts = range(0, file_bytes, REQUEST_BYTES)
    middle = len(starts) // 2
    return [
        Request(path, start, min(REQUEST_BYTES, file_bytes - start))
        for start in (*starts[middle:], *starts[:middle])
    ]
