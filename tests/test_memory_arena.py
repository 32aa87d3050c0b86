"""The arena: its size, alignment, huge pages, pinning, and that its memory really goes back."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flexinfer.errors import BudgetError
from flexinfer.memory.arena import HUGE_PAGE_BYTES, Arena
from flexinfer.memory.budget import resident_bytes
from flexinfer.units import MiB

UNPRIVILEGED = """
import ctypes, os, resource
ctypes.CDLL(None).prctl(24, 14, 0, 0, 0)  # drops CAP_IPC_LOCK: the limit then binds root
resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
os.execv({python!r}, [{python!r}, "-c", {code!r}])
"""


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_takes_are_aligned_and_apart() -> None:
    arena = Arena(3 * MiB)
    assert arena.size_bytes == 4 * MiB
    assert arena.address % HUGE_PAGE_BYTES == 0
    first, second, third = arena.take(100), arena.take(1), arena.take(5000, alignment=4096)
    assert first.address == arena.address
    assert second.address == arena.address + 128
    assert third.address == arena.address + 4096
    assert arena.used_bytes == 4096 + 5000


def test_more_than_the_plan_is_refused_with_both_numbers() -> None:
    arena = Arena(2 * MiB)
    arena.take(2 * MiB - 64)
    with pytest.raises(BudgetError, match=r"has 64 left, 65 were asked for"):
        arena.take(65)
    arena.take(64)


def test_more_than_the_system_maps_is_refused() -> None:
    with pytest.raises(BudgetError, match="cannot map"):
        Arena(1 << 50)


def test_views_and_arrays_share_the_memory() -> None:
    arena = Arena(1)
    region = arena.take(64)
    values = region.array(np.float32, (2, 3))
    values[:] = [[1, 2, 3], [4, 5, 6]]
    assert values.ctypes.data == region.address
    assert bytes(region.part(4, 8).view()) == np.array([2, 3], np.float32).tobytes()
    region.part(4, 4).view()[:] = np.float32(9).tobytes()
    assert values[0, 1] == 9


def test_memory_is_resident_when_touched_and_gone_when_closed() -> None:
    arena = Arena(64 * MiB)
    before = resident_bytes()
    values = arena.take(64 * MiB).array(np.uint8, (64 * MiB,))
    assert resident_bytes() - before < 2 * MiB
    values[:] = 1
    assert 63 * MiB < resident_bytes() - before < 66 * MiB
    with pytest.raises(BufferError, match="still in use"):
        arena.close()
    del values
    arena.close()
    assert resident_bytes() - before < 2 * MiB


def test_huge_pages_are_given_and_counted() -> None:
    arena = Arena(8 * MiB)
    region = arena.take(8 * MiB)
    assert arena.huge_bytes() == 0
    region.array(np.uint8, (8 * MiB,))[: 4 * MiB] = 1
    assert arena.huge_bytes() == 4 * MiB


def test_pinning_brings_nothing_in() -> None:
    arena = Arena(64 * MiB)
    region = arena.take(64 * MiB)
    before = resident_bytes()
    assert arena.pin()
    assert resident_bytes() - before < 2 * MiB
    region.array(np.uint8, (64 * MiB,))[: 2 * MiB] = 1
    locked = next(n for n in status_lines() if n.startswith("VmLck"))
    assert int(locked.split()[1]) * 1024 >= 64 * MiB
    assert arena.huge_bytes() == 2 * MiB


def status_lines() -> list[str]:
    return Path("/proc/self/status").read_text().splitlines()


def test_a_small_memlock_limit_is_told_not_raised() -> None:
    code = (
        "from flexinfer.memory.arena import Arena\n"
        "arena = Arena(4 << 20)\n"
        "region = arena.take(4 << 20)\n"
        "print(arena.pin())\n"
        "region.view()[:] = bytes(4 << 20)\n"
        "print(arena.pin())\n"
    )
    assert run(UNPRIVILEGED.format(python=sys.executable, code=code)) == "False\nFalse"
    assert run(code) == "True\nTrue"
