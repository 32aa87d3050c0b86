"""Locking against a bare direct read of the same bytes into freshly mapped huge pages, alternating.

python benchmarks/locking.py MODEL.gguf [--bytes 1GiB] [--repeat 5]
"""

import argparse
import ctypes
import statistics
import time
from contextlib import closing
from pathlib import Path

from machine import PIECE_BYTES, bare_read, machine

from flexinfer import _kernels
from flexinfer.executor.model import open_model
from flexinfer.executor.session import kernel_context
from flexinfer.memory.arena import Arena
from flexinfer.memory.budget import cpus_available
from flexinfer.planner.cutting import request_bytes
from flexinfer.planner.preservation import place
from flexinfer.streaming.locking import lock_weights
from flexinfer.streaming.reader import BLOCK_BYTES, Reader
from flexinfer.streaming.ring import Ring
from flexinfer.units import MiB, format_bytes, parse_bytes

SLOTS = 16


def warm(size_bytes: int) -> None:
    """Touch and free as much memory: a host that takes idle memory back makes the first touch slow,
    and that is not what is measured.
    """
    with closing(Arena(size_bytes + SLOTS * PIECE_BYTES)) as arena:
        ctypes.memset(arena.take(arena.size_bytes).address, 1, arena.size_bytes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--bytes", type=parse_bytes, default=1 << 30)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    model = open_model(args.model)
    placement = place("rows", model.weights.matrices, args.bytes)
    slot = -(-request_bytes(model.weights.matrices) // BLOCK_BYTES) * BLOCK_BYTES + 2 * BLOCK_BYTES
    context = kernel_context(cpus_available())

    def interleave(kind: int, source: int, target: int, rows: int, columns: int) -> None:
        _kernels.interleave(context, kind, source, target, rows, columns)

    def lock() -> float:
        with (
            closing(Reader(args.model)) as reader,
            closing(Arena(placement.locked_bytes + SLOTS * slot + MiB)) as arena,
        ):
            started = time.perf_counter()
            ring = Ring(arena.take(SLOTS * slot, BLOCK_BYTES), slot)
            lock_weights(placement, {args.model: reader}, arena, ring, interleave)
            return time.perf_counter() - started

    locks, reads = [], []
    for _ in range(args.repeat):
        warm(placement.locked_bytes)
        locks.append(lock())
        warm(placement.locked_bytes)
        reads.append(bare_read(args.model, 1 << 20, placement.locked_bytes))
    ratios = [a / b for a, b in zip(locks, reads, strict=True)]
    overall = statistics.median(locks) / statistics.median(reads)
    print(f"{args.model.name}; {format_bytes(placement.locked_bytes)} locked; {machine()}")
    print("lock s     " + "  ".join(f"{t:.3f}" for t in locks))
    print("bare read s" + "  ".join(f"{t:.3f}" for t in reads))
    print(f"of medians {overall:.3f}; each {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
