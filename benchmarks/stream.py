"""How fast weights move: bare direct reads beside ring, prefetcher and locking, alternated.

    python benchmarks/stream.py FILE [--size 1GiB] [--rounds 3] [--json]

Every arena is mapped anew, so first touch counts for all alike, as it does when a model is loaded.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.arena import Arena
from flexinfer.models.weights import Matrix
from flexinfer.planner.placement import PlacedMatrix, Placement, Request
from flexinfer.streaming.locking import lock_weights
from flexinfer.streaming.prefetcher import Prefetcher, SerialStream, Stream
from flexinfer.streaming.probe import probe_disk
from flexinfer.streaming.reader import BLOCK_BYTES, PIECE_BYTES, REQUEST_BYTES, Reader
from flexinfer.streaming.ring import Ring
from flexinfer.units import parse_bytes

SLOTS = 16
COLUMNS = 4096


def bare(path: Path, size: int) -> float:
    """Seconds of one thread's direct reads into freshly mapped huge pages."""
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    with closing(Arena(size)) as arena, arena.take(size, BLOCK_BYTES).view() as memory:
        started = time.perf_counter()
        for start in range(0, size, REQUEST_BYTES):
            os.preadv(file, [memory[start : start + REQUEST_BYTES]], start)
        elapsed = time.perf_counter() - started
    os.close(file)
    return elapsed


def through_ring(path: Path, size: int, make: Callable[..., Stream]) -> tuple[float, float]:
    """Seconds of a sweep of the same bytes through the ring, and of a take that finds its data."""
    requests = [Request(path, s, REQUEST_BYTES) for s in range(0, size, REQUEST_BYTES)]
    with closing(Reader(path)) as reader, closing(Arena(SLOTS * PIECE_BYTES)) as arena:
        ring = Ring(arena.take(SLOTS * PIECE_BYTES, BLOCK_BYTES), PIECE_BYTES)
        with closing(make(requests, {path: reader}, ring)) as stream:
            for index in range(len(requests)):  # first touch of the slots
                stream.take(index)
                stream.release(index)
            started = time.perf_counter()
            for index in range(len(requests)):
                stream.take(index)
                stream.release(index)
            elapsed = time.perf_counter() - started
            time.sleep(0.1)
            started = time.perf_counter()
            for index in range(SLOTS // 2):
                stream.take(index)
            ready = (time.perf_counter() - started) / (SLOTS // 2)
        del ring
    return elapsed, ready


def locking(path: Path, size: int) -> float:
    """Seconds of locking the same bytes, a copy standing for the kernel that interleaves."""
    f32 = BLOCK_TYPES[0]
    tensor = TensorInfo("w", (size // COLUMNS // 4, COLUMNS), f32, path, 0, size)
    placed = PlacedMatrix(Matrix(tensor, 0, "w"), tensor.rows, ())
    placement = Placement((placed,), ())

    def copy(type_id: int, source: int, destination: int, rows: int, columns: int) -> None:
        ctypes.memmove(destination, source, rows * columns * 4)

    arena_bytes = placement.locked_bytes + SLOTS * PIECE_BYTES + BLOCK_BYTES
    with closing(Reader(path)) as reader, closing(Arena(arena_bytes)) as arena:
        ring = Ring(arena.take(SLOTS * PIECE_BYTES, BLOCK_BYTES), PIECE_BYTES)
        started = time.perf_counter()
        lock_weights(placement, {path: reader}, arena, ring, copy)
        elapsed = time.perf_counter() - started
        del ring
    return elapsed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=parse_bytes, default="1GiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    size = min(args.size, args.file.stat().st_size) // REQUEST_BYTES * REQUEST_BYTES
    rounds = []
    for _ in range(args.rounds):
        bare(args.file, size)  # a virtual machine's host may have taken long-idle memory back
        bare_s = bare(args.file, size)
        locking_s = locking(args.file, size)
        ring_s, ready_s = through_ring(args.file, size, Prefetcher)
        serial_s, _ = through_ring(args.file, size, SerialStream)
        rounds.append(
            {
                "bare_gb_per_s": size / bare_s / 1e9,
                "ring_gb_per_s": size / ring_s / 1e9,
                "serial_gb_per_s": size / serial_s / 1e9,
                "locking_over_bare": locking_s / bare_s,
                "take_ready_us": ready_s * 1e6,
                "probe_gb_per_s": probe_disk(args.file).bytes_per_s / 1e9,
            }
        )
    for name in rounds[0]:
        values = [r[name] for r in rounds]
        if not args.json:
            print(f"{name:18} {statistics.median(values):7.2f}   {[round(v, 2) for v in values]}")
    if args.json:
        print(json.dumps({"bytes": size, "rounds": rounds}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
