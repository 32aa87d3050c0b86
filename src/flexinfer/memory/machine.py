"""What a machine grants this process, as its system files say; nothing is measured here.

Every finder takes the roots of the trees it reads, so a machine can also be a folder.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from flexinfer.memory.budget import (
    available_memory,
    cpu_quota,
    default_budget,
    memory_limit,
    size_table,
)
from flexinfer.memory.cgroups import CGROUPS, PROC, Level, levels, system_text
from flexinfer.units import parse_bytes


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the system shows itself."""

    proc: Path = PROC
    sys: Path = Path("/sys")
    cgroups: Path = CGROUPS

    def text(self, path: str) -> str | None:
        """The contents of a file below /sys, stripped; None where there is none to read."""
        try:
            return system_text(self.sys / path).strip()
        except OSError:
            return None


@dataclass(frozen=True, slots=True)
class Processor:
    """What computes, and whether a hypervisor stands between."""

    name: str | None
    virtual: bool


@dataclass(frozen=True, slots=True)
class Threads:
    """How many threads can be kept busy, and why no more."""

    threads: int
    online: int
    allowed: int  # by affinity
    cpuset_file: str | None  # of the control group that allows no more, where one does
    quota: float | None  # the least of all groups, in processors
    quota_file: str | None
    load: float  # what ran or waited for the disk in the last minute, on average


@dataclass(frozen=True, slots=True)
class Memory:
    """How much memory there is for this process, and what limits it."""

    total_bytes: int
    available_bytes: int
    limited_by: str  # as Availability.where
    limit_file: str | None  # of the control group that limits, where one does
    default_budget_bytes: int


@dataclass(frozen=True, slots=True)
class SwapDevice:
    name: str
    total_bytes: int
    used_bytes: int
    in_memory: bool  # zram


@dataclass(frozen=True, slots=True)
class Group:
    """A control group above this process; None means no limit."""

    folder: str
    version: int
    memory_limit_bytes: int | None
    memory_used_bytes: int | None
    cpus: float | None


@dataclass(frozen=True, slots=True)
class HugePages:
    """The settings for transparent huge pages: None where this kernel has none."""

    enabled: str | None
    enabled_file: str  # that decides for pages of 2 MiB
    defrag: str | None
    disabled_for_process: bool


@dataclass(frozen=True, slots=True)
class LockLimit:
    """RLIMIT_MEMLOCK: None means unlimited."""

    soft_bytes: int | None
    hard_bytes: int | None


@dataclass(frozen=True, slots=True)
class Clock:
    """The first processor's clock."""

    driver: str | None
    governor: str | None
    limit_hz: int
    hardware_limit_hz: int


def processor(roots: Roots) -> Processor:
    """From /proc/cpuinfo; Arm's has no name."""
    text = system_text(roots.proc / "cpuinfo")
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    flags = re.search(r"^flags\s*:\s*(.+)$", text, re.MULTILINE)
    return Processor(
        name[1].strip() if name else None, bool(flags and "hypervisor" in flags[1].split())
    )


def threads(roots: Roots) -> Threads:
    """As `cpus_available`, with the reasons."""
    status = system_text(roots.proc / "self/status")
    mask = re.search(r"^Cpus_allowed_list:\s*(\S+)", status, re.MULTILINE)
    assert mask is not None
    allowed = _count(mask[1])
    online = max(allowed, _count(roots.text("devices/system/cpu/online") or mask[1]))
    cpuset_file = None
    if allowed < online:
        for level in levels("cpuset", roots.proc, roots.cgroups):
            cpus = level.text("cpuset.cpus" if level.version == 1 else "cpuset.cpus.effective")
            if cpus and _count(cpus) == allowed:  # the outermost of these is the reason
                cpuset_file = str(level.folder / "cpuset.cpus")
    quotas = [
        (quota, str(level.folder / ("cpu.max" if level.version == 2 else "cpu.cfs_quota_us")))
        for level in levels("cpu", roots.proc, roots.cgroups)
        if (quota := cpu_quota(level)) is not None
    ]
    quota, quota_file = min(quotas, default=(None, None))
    busy = max(1, int(min(allowed, allowed if quota is None else quota)))
    load = float(system_text(roots.proc / "loadavg").split()[0])
    return Threads(busy, online, allowed, cpuset_file, quota, quota_file, load)


def memory(roots: Roots) -> Memory:
    available = available_memory(roots.proc, roots.cgroups)
    files = [
        str(level.folder / limit[1])
        for level in levels("memory", roots.proc, roots.cgroups)
        if available.where.endswith(f" {level.folder}") and (limit := memory_limit(level))
    ]
    return Memory(
        size_table(roots.proc / "meminfo")["MemTotal"],
        available.bytes,
        available.where,
        files[0] if files else None,
        default_budget(available),
    )


def swap_devices(roots: Roots) -> tuple[SwapDevice, ...]:
    """The lines of /proc/swaps: name, type, size and use in KiB, priority."""
    try:
        lines = system_text(roots.proc / "swaps").splitlines()[1:]
    except OSError:
        return ()
    found = []
    for line in lines:
        name, _, size, used, _ = line.split()
        in_memory = Path(name).name.startswith("zram")
        found.append(SwapDevice(name, int(size) << 10, int(used) << 10, in_memory))
    return tuple(found)


def groups(roots: Roots) -> tuple[Group, ...]:
    """Every level above us that could limit memory or processors, the innermost first."""
    found = {
        level.folder: level
        for controller in ("memory", "cpu")
        for level in levels(controller, roots.proc, roots.cgroups)
    }
    return tuple(_group(level) for level in found.values())


def _group(level: Level) -> Group:
    usage = "memory.current" if level.version == 2 else "memory.usage_in_bytes"
    limit = memory_limit(level)
    return Group(
        str(level.folder),
        level.version,
        limit[0] if limit else None,
        level.number(usage),
        cpu_quota(level),
    )


def huge_pages(roots: Roots) -> HugePages:
    """Newer kernels have a setting per size of page, which may inherit the general one."""
    folder = "kernel/mm/transparent_hugepage"
    of_size = f"{folder}/hugepages-2048kB/enabled"
    enabled, file = _chosen(roots.text(of_size)), of_size
    if enabled in (None, "inherit"):
        enabled, file = _chosen(roots.text(f"{folder}/enabled")), f"{folder}/enabled"
    status = system_text(roots.proc / "self/status")
    return HugePages(
        enabled,
        str(Path("/sys") / file),
        _chosen(roots.text(f"{folder}/defrag")),
        re.search(r"^THP_enabled:\s*0", status, re.MULTILINE) is not None,
    )


def lock_limit(roots: Roots) -> LockLimit:
    """From /proc/self/limits."""
    limits = system_text(roots.proc / "self/limits")
    match = re.search(r"^Max locked memory\s+(\S+)\s+(\S+)", limits, re.MULTILINE)
    assert match is not None
    soft, hard = (None if n == "unlimited" else int(n) for n in match.groups())
    return LockLimit(soft, hard)


def clock(roots: Roots) -> Clock | None:
    """None where the system does not show it, as in most virtual machines."""
    folder = "devices/system/cpu/cpu0/cpufreq"
    limit = roots.text(f"{folder}/scaling_max_freq")
    hardware = roots.text(f"{folder}/cpuinfo_max_freq")
    if not limit or not hardware:
        return None
    return Clock(
        roots.text(f"{folder}/scaling_driver"),
        roots.text(f"{folder}/scaling_governor"),
        int(limit) * 1000,
        int(hardware) * 1000,
    )


def cache_bytes(roots: Roots) -> int:
    """What the last level's caches hold together; 0 where the system does not say."""
    sizes: dict[tuple[int, str], int] = {}  # by level and the processors that share one
    for folder in (roots.sys / "devices/system/cpu").glob("cpu[0-9]*/cache/index[0-9]*"):
        path = str(folder.relative_to(roots.sys))
        level, shared, size = (
            roots.text(f"{path}/{name}") for name in ("level", "shared_cpu_list", "size")
        )
        if level and shared and size:
            sizes[int(level), shared] = parse_bytes(size)
    last = max((level for level, _ in sizes), default=0)
    return sum(size for (level, _), size in sizes.items() if level == last)


def _chosen(text: str | None) -> str | None:
    """The one in brackets: `always [madvise] never`."""
    match = re.search(r"\[(\w+)\]", text or "")
    return match[1] if match else None


def _count(cpus: str) -> int:
    """How many there are in a list such as `0-3,8`."""
    ends = (part.partition("-") for part in cpus.split(","))
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)
