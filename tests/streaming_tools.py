"""What the tests of streaming share: files of known bytes, rings, and reads of a payload."""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np

from flexinfer.memory.arena import Arena
from flexinfer.planner.placement import Request
from flexinfer.streaming.reader import BLOCK_BYTES, Pread
from flexinfer.streaming.ring import Ring


def write_random(path: Path, size_bytes: int, seed: int = 0) -> bytes:
    """Fill a file; returns what is in it."""
    data = np.random.default_rng(seed).bytes(size_bytes)
    path.write_bytes(data)
    return data


def make_ring(slots: int, slot_bytes: int) -> Ring:
    arena = Arena(slots * slot_bytes)
    return Ring(arena.take(slots * slot_bytes, BLOCK_BYTES), slot_bytes)


def payload(address: int, request: Request) -> bytes:
    return ctypes.string_at(address, request.size_bytes)


def faulty(pread: Pread, fault: Callable[[int, int], int | None]) -> Pread:
    """`pread` with faults: `fault(offset, length)` raises, or returns what to cut the read to."""

    def read(file: int, buffers: list[memoryview], offset: int) -> int:
        cut = fault(offset, len(buffers[0]))
        return pread(file, buffers if cut is None else [buffers[0][:cut]], offset)

    return read
