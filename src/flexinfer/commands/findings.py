"""What the facts about a machine mean for a run: a mark, a line, and what to do about it."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from flexinfer.commands.figures import bytes_rate, count, share
from flexinfer.memory.budget import usable_bytes
from flexinfer.memory.machine import (
    Clock,
    Group,
    HugePages,
    LockLimit,
    Memory,
    Processor,
    SwapDevice,
    Threads,
)
from flexinfer.memory.trial import Trial
from flexinfer.streaming.place import Place
from flexinfer.units import format_bytes

SLOW_DISK_BYTES_PER_S = 500e6
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
UNITS = (".service", ".scope", ".slice")
WHO_HOLDS_IT = "`ps -eo rss,comm --sort=-rss | head` says what holds memory"


class Mark(StrEnum):
    """OK; NOTE: costs something, or will at some time; PROBLEM: stands in the way."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report; `fatal` where nothing can run at all."""

    name: str
    mark: Mark
    text: str
    advice: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    fatal: bool = False


def judge_instructions(
    chosen: str | None, available: list[str], cap: str | None, machine: Processor
) -> Finding:
    """`chosen` is None where FLEXINFER_ISA, the cap, is no name of one."""
    facts = {"chosen": chosen, "available": available, "cap": cap}
    best, names = available[-1], ", ".join(available)

    def found(mark: Mark, text: str, advice: str | None = None) -> Finding:
        return Finding("instructions", mark, text, advice, facts, chosen is None)

    if chosen is None:
        return found(
            Mark.PROBLEM,
            f"FLEXINFER_ISA is {cap!r}, which is not available; available: {names}",
            "`unset FLEXINFER_ISA`, or set it to one of these",
        )
    if chosen != best:
        text = f"{chosen}, by FLEXINFER_ISA; available: {names}"
        return found(Mark.NOTE, text, f"`unset FLEXINFER_ISA`: {best} is faster")
    if len(available) > 1:
        return found(Mark.OK, f"{chosen}; available: {names}")
    text = f"{chosen} alone: right, but many times slower than vectors"
    if machine.virtual:
        return found(
            Mark.PROBLEM, text, "show the guest its host's processor (in QEMU: `-cpu host`)"
        )
    return found(Mark.PROBLEM, text, "use a small model, or a machine with AVX2 or AVX-512 VNNI")


def judge_threads(threads: Threads) -> Finding:
    facts = asdict(threads)
    text = f"{threads.threads} of {count(threads.online, 'processor')}"

    def found(mark: Mark, why: str = "", advice: str | None = None) -> Finding:
        return Finding("threads", mark, text + why, advice, facts)

    if threads.quota_file and threads.quota is not None and threads.quota < threads.allowed:
        # Below one, even a single thread is stopped for a part of every period.
        mark = Mark.PROBLEM if threads.quota < 1 else Mark.NOTE
        why = f": a quota of {threads.quota:.3g} in {short_group(threads.quota_file)}"
        return found(mark, why, lift(threads.quota_file, "CPUQuota=", "--cpus"))
    if threads.cpuset_file:
        why = f": the cpuset of {short_group(threads.cpuset_file)}"
        return found(Mark.NOTE, why, lift(threads.cpuset_file, "AllowedCPUs=", "--cpuset-cpus"))
    if threads.allowed < threads.online:
        advice = f"`taskset -cp 0-{threads.online - 1} $$` gives this shell all of them"
        return found(Mark.NOTE, ": by the affinity of whoever started this (taskset)", advice)
    return found(Mark.OK)


def judge_load(threads: Threads) -> Finding:
    """What others compute is lacking here, in these measurements too."""
    text = f"{threads.load:.3g} on {count(threads.online, 'processor')}"
    facts = {"one_minute": threads.load}
    if 2 * threads.load < threads.online:
        return Finding("load", Mark.OK, text, None, facts)
    text += ": the speeds below suffer from it"
    advice = "`ps -eo pcpu,comm --sort=-pcpu | head` says what runs"
    return Finding("load", Mark.NOTE, text, advice, facts)


def judge_memory(memory: Memory, own_bytes: int) -> Finding:
    """Nothing can run where the interpreter alone takes what there is."""
    available, total = format_bytes(memory.available_bytes), format_bytes(memory.total_bytes)
    budget, advice = format_bytes(memory.default_budget_bytes), WHO_HOLDS_IT
    limited_by = ""
    if memory.limit_file:
        limited_by = ", by " + short_group(memory.limit_file)
        setting = "MemoryHigh" if memory.limit_file.endswith("high") else "MemoryMax"
        advice = lift(memory.limit_file, f"{setting}=infinity", "--memory")
    text = f"{available} of the host's {total}{limited_by}; default budget {budget}"
    mark, fatal = Mark.OK, usable_bytes(memory.available_bytes) <= own_bytes
    if fatal:
        text, mark = f"{text}; flexinfer alone takes {format_bytes(own_bytes)}", Mark.PROBLEM
    elif memory.limit_file or 2 * memory.available_bytes < memory.total_bytes:
        mark = Mark.NOTE
    return Finding("memory", mark, text, None if mark is Mark.OK else advice, asdict(memory), fatal)


def judge_address_space(trial: Trial) -> Finding | None:
    """Told only where as much as may be used cannot be mapped."""
    if trial.refused is None:
        return None
    return Finding(
        "address_space",
        Mark.PROBLEM,
        trial.refused,
        "`ulimit -v unlimited`; or `sudo sysctl vm.overcommit_memory=0`",
        {"refused": trial.refused},
    )


def judge_swap(devices: tuple[SwapDevice, ...]) -> Finding:
    total, used = sum(d.total_bytes for d in devices), sum(d.used_bytes for d in devices)
    facts = {
        "total_bytes": total,
        "used_bytes": used,
        "devices": [asdict(device) for device in devices],
    }
    if not devices:
        return Finding("swap", Mark.OK, "none; no budget counts on it", None, facts)
    names = ", ".join(d.name + (" (in memory)" if d.in_memory else "") for d in devices)
    text = f"{format_bytes(used)} of {format_bytes(total)} used, on {names}"
    short_of_memory = 2 * used > total
    return Finding(
        "swap",
        Mark.NOTE if short_of_memory else Mark.OK,
        text,
        WHO_HOLDS_IT if short_of_memory else None,
        facts,
    )


def judge_groups(groups: tuple[Group, ...]) -> Finding:
    """What each level allows; whether that hurts is told of memory and threads."""
    facts = {"levels": [asdict(group) for group in groups]}
    limits = []
    for group in groups:
        limit, used = group.memory_limit_bytes, format_bytes(group.memory_used_bytes or 0)
        words = [] if limit is None else [f"{format_bytes(limit)} of memory ({used} used)"]
        words += [] if group.cpus is None else [f"{group.cpus:.3g} processors"]
        folder = short(group.folder.removeprefix("/sys/fs/cgroup") or "/")
        limits += [f"{', '.join(words)} in {folder}"] if words else []
    text = "; ".join(limits) or f"no limit, in {count(len(groups), 'level')}"
    return Finding("cgroups", Mark.OK, text, None, facts)


def judge_memory_speed(trial: Trial, threads: int) -> Finding:
    facts = {"bytes_per_s": trial.read_bytes_per_s, "threads": threads}
    text = f"{bytes_rate(trial.read_bytes_per_s)}, read by {count(threads, 'thread')}"
    return Finding("memory_speed", Mark.OK, text, None, facts)


def judge_huge_pages(settings: HugePages, trial: Trial) -> Finding:
    """Direct reads into ordinary pages run at a third of the speed (docs/log.md)."""
    facts = asdict(settings) | {"tried_bytes": trial.touched_bytes, "huge_bytes": trial.huge_bytes}

    def found(mark: Mark, text: str, advice: str | None = None) -> Finding:
        return Finding("huge_pages", mark, text, advice, facts)

    got = f"{format_bytes(trial.huge_bytes)} of {format_bytes(trial.touched_bytes)} given"
    if 2 * trial.huge_bytes >= trial.touched_bytes:
        return found(Mark.OK, f"{got} (transparent_hugepage: {settings.enabled})")
    if settings.enabled is None:
        text = "this kernel has none, so direct reads are up to 3 times slower"
        return found(Mark.NOTE, text, "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")
    if settings.enabled == "never":
        text = "transparent_hugepage is never: direct reads up to 3 times slower"
        return found(Mark.PROBLEM, text, f"`echo madvise | sudo tee {settings.enabled_file}`")
    if settings.disabled_for_process:
        text = f"{got}: switched off for this process (prctl)"
        return found(Mark.NOTE, text, "start flexinfer from a shell or service that allows them")
    if settings.defrag == "never":
        defrag = "/sys/kernel/mm/transparent_hugepage/defrag"
        text = f"{got}: memory is fragmented, and defrag is never"
        return found(Mark.NOTE, text, f"`echo madvise | sudo tee {defrag}`")
    text = f"{got}, though {settings.enabled}: memory is fragmented"
    return found(Mark.NOTE, text, "`echo 1 | sudo tee /proc/sys/vm/compact_memory`")


def judge_pinning(limit: LockLimit, trial: Trial, swap: bool) -> Finding:
    facts = {
        "limit_bytes": limit.soft_bytes,
        "hard_limit_bytes": limit.hard_bytes,
        "tried_bytes": trial.mapped_bytes,
        "pinned": trial.pinned,
    }
    tried = format_bytes(trial.mapped_bytes)
    soft = "unlimited" if limit.soft_bytes is None else format_bytes(limit.soft_bytes)
    enough = limit.soft_bytes is None or limit.soft_bytes >= trial.mapped_bytes
    if trial.pinned:
        why = f"{'' if enough else 'CAP_IPC_LOCK; '}RLIMIT_MEMLOCK {soft}"
        return Finding("pinning", Mark.OK, f"{tried} can be pinned ({why})", None, facts)
    if enough:
        text = f"refused, though RLIMIT_MEMLOCK is {soft}"
        advice = "let the sandbox (in containers: its seccomp profile) allow mlock2"
        return Finding("pinning", Mark.NOTE, text, advice, facts)
    harm = "weights can be swapped out" if swap else "no harm while there is no swap"
    text = f"{tried} cannot be pinned, RLIMIT_MEMLOCK is {soft}: {harm}"
    if limit.hard_bytes is None:
        advice = "`ulimit -l unlimited`"
    elif limit.hard_bytes >= trial.mapped_bytes:
        advice = f"`ulimit -l {limit.hard_bytes >> 10}`"
    else:
        advice = (
            "`* - memlock unlimited` in /etc/security/limits.conf, then log in anew; "
            "a service: LimitMEMLOCK=infinity; a container: --ulimit memlock=-1"
        )
    return Finding("pinning", Mark.NOTE, text, advice, facts)


def judge_clock(clock: Clock | None) -> Finding | None:
    """`powersave` holds the clock down only in drivers that leave it to the governor."""
    if clock is None:
        return None
    facts = asdict(clock)
    limit, hardware = (f"{hz / 1e9:.3g} GHz" for hz in (clock.limit_hz, clock.hardware_limit_hz))
    text = f"up to {limit}" + (f" of {hardware}" if limit != hardware else "")
    text += f", governor {clock.governor} ({clock.driver})"
    self_steering = (clock.driver or "").startswith(("intel_pstate", "amd-pstate-epp"))
    if clock.governor == "powersave" and not self_steering:
        advice = "`sudo cpupower frequency-set -g performance`"
        return Finding("clock", Mark.NOTE, text, advice, facts)
    if clock.limit_hz < 0.9 * clock.hardware_limit_hz:
        advice = f"`sudo cpupower frequency-set -u {clock.hardware_limit_hz // 1_000_000}MHz`"
        return Finding("clock", Mark.NOTE, text, advice, facts)
    return Finding("clock", Mark.OK, text, None, facts)


def judge_disk(place: Place) -> Finding:
    facts, system = asdict(place), place.file_system
    where = "an unknown file system"
    if system:
        device = "/" in system.device
        of = f"on {short(system.device)}" if device else f"at {short(system.mount_point)}"
        where = f"{system.kind} {of}"
    speed = place.bytes_per_s
    how = {True: "direct reads", False: "direct reads are refused", None: "not tried"}[place.direct]
    text = f"{where}: {how}" if speed is None else f"{bytes_rate(speed)} from {where}; {how}"

    def found(mark: Mark, advice: str | None = None) -> Finding:
        return Finding("disk", mark, text, advice, facts)

    if system is not None and system.kind in IN_MEMORY:
        return found(Mark.NOTE, "keep models on a disk: here they take memory, beside the budget")
    if place.direct is False:
        return found(
            Mark.NOTE, "keep models on a local ext4, xfs or btrfs: reads past the cache are faster"
        )
    if speed is not None and speed < SLOW_DISK_BYTES_PER_S:
        return found(Mark.NOTE, "keep models on an NVMe drive, or give more --ram: less is read")
    if speed is None:
        return found(Mark.OK, "`flexinfer doctor MODEL` measures how fast the model's disk is")
    return found(Mark.OK)


def judge_model(path: Path, weights_bytes: int, memory: Memory, resident_bytes: int) -> Finding:
    """Whether all weights would stay in memory with the default budget, nothing else counted."""
    room = max(0, usable_bytes(memory.default_budget_bytes) - resident_bytes)
    facts = {"path": str(path), "weights_bytes": weights_bytes, "fits": weights_bytes <= room}
    size, budget = format_bytes(weights_bytes), format_bytes(memory.default_budget_bytes)
    if weights_bytes <= room:
        text = f"{size} of weights fit in the default budget, {budget}"
        return Finding("model", Mark.OK, text, None, facts)
    text = (
        f"{size} of weights; the default budget is {budget}, so at least "
        f"{share(weights_bytes - room, weights_bytes)} stream for every token"
    )
    return Finding("model", Mark.NOTE, text, "`flexinfer plan MODEL` says how fast that is", facts)


def lift(file: str, unit_setting: str, container_option: str) -> str:
    """How the limit in a file of a control group is raised: by systemd, or where it came from."""
    unit = Path(file).parent.name
    if unit.endswith(UNITS):
        user = " --user" if "/user@" in file and not unit.startswith("user@") else ""
        return f"`systemctl{user} set-property {unit} {unit_setting}`"
    return f"start the container with a larger {container_option}, or raise it in {file}"


def short_group(file: str) -> str:
    """The control group of one of its files."""
    return f"control group {short(str(Path(file).parent).removeprefix('/sys/fs/cgroup') or '/')}"


def short(path: str, width: int = 40) -> str:
    """A path without its middle where it is long."""
    half = (width - 1) // 2
    return path if len(path) <= width else f"{path[:half]}…{path[-half:]}"
