"""How much memory there really is for this process, and whether a budget fits in it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flexinfer.errors import BudgetError
from flexinfer.memory.cgroups import CGROUPS, PROC, Level, levels, system_text
from flexinfer.units import MiB, format_bytes

_NO_LIMIT_BYTES = 1 << 60  # version 1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class Availability:
    """The most that this process can have resident, and what limits it."""

    bytes: int
    where: str  # "host memory" or the folder of a control group


def available_memory(
    proc_root: str | Path = PROC, cgroup_root: str | Path = CGROUPS
) -> Availability:
    """The least over the host and every control group above us of what is free or can be reclaimed.

    Our own memory counts as available, since a budget caps the whole process: the part of it that
    cannot be reclaimed is added back, and page cache (mapped libraries too) is available anyhow.
    Swap is not memory here.
    """
    proc = Path(proc_root)
    status = size_table(proc / "self/status")
    own = status.get("RssAnon", 0) + status.get("RssShmem", 0)
    host = size_table(proc / "meminfo")
    found = [Availability(min(host["MemAvailable"] + own, host["MemTotal"]), "host memory")]
    for level in levels("memory", proc, Path(cgroup_root)):
        if limited := memory_limit(level):
            limit, _ = limited
            free = limit - _unreclaimable_bytes(level) + own
            found.append(Availability(max(0, min(free, limit)), f"control group {level.folder}"))
    return min(found, key=lambda a: a.bytes)


def memory_limit(level: Level) -> tuple[int, str] | None:
    """The most memory that a group may hold, and the file that says so; None without a limit."""
    if level.version == 2:
        candidates = [(level.number(name), name) for name in ("memory.max", "memory.high")]
    else:
        name = "memory.limit_in_bytes"
        # The second one knows of levels above the highest that is visible, too.
        above = level.table("memory.stat").get("hierarchical_memory_limit")
        candidates = [(level.number(name), name), (above, name)]
    return min(
        ((c, n) for c, n in candidates if c is not None and c < _NO_LIMIT_BYTES), default=None
    )


def _unreclaimable_bytes(level: Level) -> int:
    """What a group and those below it hold, less page cache and (version 2) reclaimable slab.

    The file lists hold neither shared memory nor pages locked in place.
    """
    stat = level.table("memory.stat")
    if level.version == 2:
        usage = level.number("memory.current") or 0
        reclaimable = ["active_file", "inactive_file", "slab_reclaimable"]
    else:
        usage = level.number("memory.usage_in_bytes") or 0
        reclaimable = ["total_active_file", "total_inactive_file"]
    return max(0, usage - sum(stat.get(key, 0) for key in reclaimable))


def default_budget(available: Availability) -> int:
    """Bytes to use when none are asked for: what is available less 256 MiB or 5 %, the larger.

    Of less than 1 GiB a quarter is left: small containers have little else in them.
    """
    margin = max(min(256 * MiB, available.bytes // 4), available.bytes // 20)
    return available.bytes - margin


def usable_bytes(ram: int) -> int:
    """What a plan may hand out of a budget: 1 %, at least 16 MiB, is for what lies between."""
    return ram - max(16 * MiB, ram // 100)


def check_budget(ram: int, available: Availability, force: bool = False) -> None:
    """Raises BudgetError where a budget asked for is more than there is, unless `force`.

    A limit of L admits a budget of L: what the kernel holds for us in the group comes out of the
    part that plans leave unused.
    """
    if not force and usable_bytes(ram) > available.bytes:
        raise BudgetError(
            f"--ram {format_bytes(ram)} ({ram} bytes) is more than the "
            f"{format_bytes(available.bytes)} ({available.bytes} bytes) available, "
            f"as limited by {available.where}",
            "ask for less, free some memory, or insist with --force",
        )


def resident_bytes() -> int:
    """Memory of this process that is resident now."""
    return size_table(PROC / "self/status")["VmRSS"]


def peak_resident_bytes() -> int:
    """The most that was ever resident since the program started.

    The kernel's VmHWM; `ru_maxrss` would be that of the parent where the parent was larger.
    """
    return size_table(PROC / "self/status")["VmHWM"]


def cpus_available(proc_root: str | Path = PROC, cgroup_root: str | Path = CGROUPS) -> int:
    """Processors that we may keep busy: by affinity and the quota of every control group."""
    cpus = len(os.sched_getaffinity(0))
    quotas = (cpu_quota(level) for level in levels("cpu", Path(proc_root), Path(cgroup_root)))
    return max(1, int(min([cpus, *(q for q in quotas if q is not None)])))


def cpu_quota(level: Level) -> float | None:
    """The processors' worth of time that a group may take; None without a quota."""
    if level.version == 2:
        quota, _, period = (level.text("cpu.max") or "max").partition(" ")
        return None if quota == "max" else int(quota) / int(period)
    quota_us, period_us = level.number("cpu.cfs_quota_us"), level.number("cpu.cfs_period_us")
    return quota_us / period_us if quota_us and period_us and quota_us > 0 else None


def size_table(path: Path) -> dict[str, int]:
    """A file of lines "Key:   1234 kB", in bytes; other lines are left out."""
    return dict(_entries(system_text(path).splitlines()))


def _entries(lines: list[str]) -> Iterator[tuple[str, int]]:
    for line in lines:
        key, _, value = line.partition(":")
        if value.endswith(" kB"):
            yield key, int(value.split()[0]) * 1024
