"""A try of memory as a run takes it: huge pages, pinning, the speed of reading."""

import ctypes
from contextlib import closing
from dataclasses import dataclass

from flexinfer import _kernels
from flexinfer.errors import BudgetError
from flexinfer.memory.arena import HUGE_PAGE_BYTES, Arena
from flexinfer.units import MiB

_TOUCHED_BYTES = 64 * MiB  # beyond most caches


@dataclass(frozen=True, slots=True)
class Trial:
    """What came of it."""

    touched_bytes: int
    huge_bytes: int  # of those touched
    read_bytes_per_s: float
    mapped_bytes: int
    refused: str | None  # why no more could be mapped
    pinned: bool  # whether all that was mapped could be pinned


def try_memory(context: _kernels.Context, spare_bytes: int, budget_bytes: int) -> Trial:
    """Map and pin `budget_bytes`, touch half of `spare_bytes`, from 2 to 64 MiB, for a moment.

    Pinning memory that is not touched is free, and bound by the limit all the same.
    """
    touched = min(_TOUCHED_BYTES, max(HUGE_PAGE_BYTES, spare_bytes // 2))
    touched -= touched % HUGE_PAGE_BYTES
    mapped, refused = max(touched, budget_bytes), None
    try:
        arena = Arena(mapped)
    except BudgetError as error:
        arena, mapped, refused = Arena(touched), touched, str(error)
    with closing(arena):
        address = arena.take(mapped, HUGE_PAGE_BYTES).address
        ctypes.memset(address, 1, touched)
        huge = arena.huge_bytes()
        speed = _kernels.read_bandwidth(context, address, touched, 3)
        return Trial(touched, huge, speed, mapped, refused, arena.pin())
