"""A machine built by hand, in files like the kernel's, what is judged of it; names of a report."""

from dataclasses import replace
from pathlib import Path

from flexinfer.commands import findings
from flexinfer.commands.findings import Finding
from flexinfer.memory import machine
from flexinfer.memory.machine import Processor, Roots
from flexinfer.memory.trial import Trial
from flexinfer.units import GiB, MiB

THP = "kernel/mm/transparent_hugepage"
PLAIN = Processor("A Processor", virtual=False)
TRIAL = Trial(64 * MiB, 62 * MiB, 40e9, 11 * GiB, None, pinned=True)
NAMES = {
    "instructions",
    "threads",
    "load",
    "memory",
    "cgroups",
    "swap",
    "memory_speed",
    "huge_pages",
    "pinning",
    "disk",
}
FACTS = {
    "instructions": {"chosen", "available", "cap"},
    "threads": {"threads", "online", "allowed", "cpuset_file", "quota", "quota_file", "load"},
    "memory": {
        "total_bytes",
        "available_bytes",
        "limited_by",
        "limit_file",
        "default_budget_bytes",
    },
    "cgroups": {"levels"},
    "swap": {"total_bytes", "used_bytes", "devices"},
    "memory_speed": {"bytes_per_s", "threads"},
    "huge_pages": {
        "enabled",
        "enabled_file",
        "defrag",
        "disabled_for_process",
        "tried_bytes",
        "huge_bytes",
    },
    "pinning": {"limit_bytes", "hard_limit_bytes", "tried_bytes", "pinned"},
    "disk": {"path", "file_system", "direct", "bytes_per_s"},
    "model": {"path", "weights_bytes", "fits"},
}


class Machine:
    """4 processors, 16 GiB of which 12 are available, version 2 control groups, no fault."""

    def __init__(self, folder: Path) -> None:
        self.roots = Roots(folder / "proc", folder / "sys", folder / "cgroup")
        self.proc("cpuinfo", "model name\t: A Processor\nflags\t\t: fpu hypervisor sse\n")
        self.proc("meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {12 << 20} kB\n")
        self.proc("swaps", "Filename\tType\tSize\tUsed\tPriority\n")
        self.proc("loadavg", "0.25 0.10 0.05 1/123 4567\n")
        self.proc("self/status", "RssAnon:\t0 kB\nCpus_allowed_list:\t0-3\nTHP_enabled:\t1\n")
        self.proc("self/cgroup", "0::/a/b\n")
        self.proc(
            "self/mountinfo",
            "27 1 254:0 / / rw - ext4 /dev/vda rw\n"
            "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        )
        self.memlock("unlimited", "unlimited")
        self.sys("devices/system/cpu/online", "0-3\n")
        self.sys(f"{THP}/enabled", "always [madvise] never\n")
        self.sys(f"{THP}/defrag", "always defer defer+madvise [madvise] never\n")
        self.group("a/b")

    def proc(self, name: str, text: str) -> None:
        write(self.roots.proc / name, text)

    def sys(self, name: str, text: str) -> None:
        write(self.roots.sys / name, text)

    def memlock(self, soft: object, hard: object) -> None:
        self.proc("self/limits", f"Limit  Soft  Hard  Units\nMax locked memory {soft} {hard} bytes")

    def group(self, name: str, **files: str) -> None:
        for file, text in files.items():
            write(self.roots.cgroups / name / file.replace("_", "."), text)
        (self.roots.cgroups / name).mkdir(parents=True, exist_ok=True)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def threads(fake: Machine) -> Finding:
    return findings.judge_threads(machine.threads(fake.roots))


def memory(fake: Machine, own_bytes: int = 40 * MiB) -> Finding:
    return findings.judge_memory(machine.memory(fake.roots), own_bytes)


def huge_pages(fake: Machine, huge_bytes: int = 0) -> Finding:
    trial = replace(TRIAL, huge_bytes=huge_bytes)
    return findings.judge_huge_pages(machine.huge_pages(fake.roots), trial)


def pinning(fake: Machine, *, pinned: bool, swap: bool = False) -> Finding:
    trial = replace(TRIAL, pinned=pinned)
    return findings.judge_pinning(machine.lock_limit(fake.roots), trial, swap)
