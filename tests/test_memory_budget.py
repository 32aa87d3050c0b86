"""What is available, on trees of /proc and cgroups built by hand, and in real control groups."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from flexinfer.errors import BudgetError
from flexinfer.memory import budget
from flexinfer.memory.budget import Availability, available_memory, check_budget, cpus_available
from flexinfer.units import GiB, MiB

V1_NO_LIMIT = "9223372036854771712"
V1_MOUNT = "35 31 0:32 {root} /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {root} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw"
OWN = 50 * MiB


class Tree:
    """A fake machine: 16 GiB, 12 available, and a process with 50 MiB of memory of its own."""

    def __init__(self, folder: Path, mounts: list[str], own: list[str]) -> None:
        self.proc, self.cgroup = folder / "proc", folder / "cgroup"
        self.cgroup.mkdir()
        write(self.proc / "meminfo", f"MemTotal: {16 * GiB >> 10} kB\nMemAvailable: {12 << 20} kB")
        rss = f"VmRSS:\t{80 << 10} kB\nRssAnon:\t{48 << 10} kB\nRssFile:\t{30 << 10} kB\n"
        write(self.proc / "self/status", f"Name:\tx\n{rss}RssShmem:\t{2 << 10} kB\nThreads:\t1")
        write(
            self.proc / "self/mountinfo", "\n".join(["22 27 0:21 / /proc rw - proc p rw", *mounts])
        )
        write(self.proc / "self/cgroup", "\n".join(own))

    def v1(
        self, group: str, limit: int | str, used: int = OWN, cache: int = 0, **stat: int
    ) -> None:
        stat = {
            "cache": 1,
            "total_active_file": cache // 2,
            "total_inactive_file": cache // 2,
        } | stat
        folder = self.cgroup / "memory" / group
        write(folder / "memory.limit_in_bytes", f"{limit}\n")
        write(folder / "memory.usage_in_bytes", f"{used}\n")
        write(folder / "memory.stat", table(stat))

    def v2(
        self, group: str, limit: int | str, used: int = OWN, cache: int = 0, high: str = "max"
    ) -> None:
        folder = self.cgroup / group
        stat = {"anon": OWN, "file": cache, "active_file": 0, "inactive_file": cache}
        write(folder / "memory.max", f"{limit}\n")
        write(folder / "memory.high", f"{high}\n")
        write(folder / "memory.current", f"{used}\n")
        write(folder / "memory.stat", table(stat | {"slab_reclaimable": 0}))

    def available(self) -> Availability:
        return available_memory(self.proc, self.cgroup)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def table(values: Mapping[str, int]) -> str:
    return "".join(f"{key} {value}\n" for key, value in values.items())


HOST = Availability(12 * GiB + OWN, "host memory")


def test_without_control_groups_the_host_limits(tmp_path: Path) -> None:
    assert Tree(tmp_path, [], ["0::/"]).available() == HOST


def test_v2_max_means_no_limit(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a"])
    tree.v2("a", "max")
    assert tree.available() == HOST


def test_v2_own_memory_and_page_cache_are_available(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a"])
    tree.v2("a", GiB, used=GiB - MiB, cache=900 * MiB)
    expected = GiB - (GiB - MiB - 900 * MiB) + OWN
    assert tree.available() == Availability(expected, f"control group {tree.cgroup / 'a'}")


def test_v2_memory_high_limits_too(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a"])
    tree.v2("a", 2 * GiB, high=str(GiB))
    assert tree.available().bytes == GiB


@pytest.mark.parametrize("tightest", ["a", "a/b", "a/b/c"])
def test_v2_any_level_can_be_the_tightest(tmp_path: Path, tightest: str) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a/b/c"])
    for group in ("a", "a/b", "a/b/c"):
        tree.v2(group, GiB if group == tightest else 2 * GiB)
    assert tree.available() == Availability(GiB, f"control group {tree.cgroup / tightest}")


def test_v2_neighbours_in_a_parent_count(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a/b"])
    tree.v2("a/b", "max")
    tree.v2("a", GiB, used=OWN + 300 * MiB)
    assert tree.available().bytes == GiB - 300 * MiB


def test_a_full_group_has_nothing_left_rather_than_less(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a"])
    tree.v2("a", GiB, used=2 * GiB)
    assert tree.available().bytes == 0


def test_v1_sentinel_means_no_limit(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V1_MOUNT.format(root="/")], ["4:memory:/a", "0::/"])
    tree.v1("a", V1_NO_LIMIT, hierarchical_memory_limit=int(V1_NO_LIMIT))
    tree.v1("", V1_NO_LIMIT)
    assert tree.available() == HOST


def test_v1_page_cache_is_available_at_every_level(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V1_MOUNT.format(root="/")], ["5:cpu:/x", "4:memory:/a/b"])
    tree.v1("a/b", 2 * GiB, used=2 * GiB, cache=2 * GiB - OWN)
    tree.v1("a", GiB, used=GiB, cache=GiB - OWN - 10 * MiB)
    assert tree.available() == Availability(
        GiB - 10 * MiB, f"control group {tree.cgroup / 'memory/a'}"
    )


def test_v1_a_limit_above_the_visible_levels_counts(tmp_path: Path) -> None:
    tree = Tree(tmp_path, [V1_MOUNT.format(root="/docker/abc")], ["4:memory:/docker/abc"])
    tree.v1("", V1_NO_LIMIT, hierarchical_memory_limit=GiB)
    assert tree.available().bytes == GiB


@pytest.mark.parametrize(
    ("root", "own"),
    [
        ("/docker/abc", "/docker/abc/inner"),  # a bind mount of our group
        ("/docker/abc", "/elsewhere"),  # a mount that does not show where we are
        ("/", "/../../outside"),  # a namespace that does not hold us
        ("/", "/gone"),
    ],
)
def test_where_our_path_is_not_in_sight_the_top_of_the_mount_counts(
    tmp_path: Path, root: str, own: str
) -> None:
    tree = Tree(tmp_path, [V2_MOUNT.format(root=root)], [f"0::{own}"])
    tree.v2("", GiB)
    tree.v2("inner", 2 * GiB)
    assert tree.available() == Availability(GiB, f"control group {tree.cgroup}")


def test_hybrid_takes_the_hierarchy_that_has_the_controller(tmp_path: Path) -> None:
    unified = V2_MOUNT.format(root="/").replace("/sys/fs/cgroup ", "/sys/fs/cgroup/unified ")
    tree = Tree(tmp_path, [V1_MOUNT.format(root="/"), unified], ["4:memory:/a", "0::/b"])
    write(tree.cgroup / "unified/b/cgroup.procs", "1\n")
    tree.v1("a", GiB)
    assert tree.available().bytes == GiB


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    mount = V1_MOUNT.format(root="/").replace("cgroup/memory", r"cgroup/my\040groups")
    tree = Tree(tmp_path, [mount], ["4:memory:/"])
    tree.v1("../my groups", GiB)
    assert tree.available().bytes == GiB


def test_default_leaves_a_margin() -> None:
    assert budget.default_budget(Availability(GiB, "x")) == GiB - 256 * MiB
    assert budget.default_budget(Availability(20 * GiB, "x")) == 19 * GiB
    assert budget.default_budget(Availability(160 * MiB, "x")) == 120 * MiB
    assert budget.default_budget(Availability(0, "x")) == 0


def test_usable_is_less_by_the_larger_of_16_mib_and_1_percent() -> None:
    assert budget.usable_bytes(GiB) == GiB - 16 * MiB
    assert budget.usable_bytes(100 * GiB) == 99 * GiB


def test_a_budget_above_what_there_is_names_both_numbers_and_force() -> None:
    available = Availability(GiB, "control group /x")
    check_budget(GiB, available)
    check_budget(GiB + 16 * MiB, available)
    with pytest.raises(BudgetError, match=r"1140850688 bytes.*1073741824 bytes.*/x") as caught:
        check_budget(GiB + 64 * MiB, available)
    assert caught.value.hint and "--force" in caught.value.hint
    check_budget(GiB + 64 * MiB, available, force=True)


@pytest.mark.parametrize(
    ("quota", "cpus"), [("max 100000", 8), ("250000 100000", 2), ("50000 100000", 1)]
)
def test_cpus_follow_a_v2_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    tree = Tree(tmp_path, [V2_MOUNT.format(root="/")], ["0::/a/b"])
    write(tree.cgroup / "a/cpu.max", quota)
    write(tree.cgroup / "a/b/cpu.max", "max 100000")
    assert cpus_available(tree.proc, tree.cgroup) == cpus


@pytest.mark.parametrize(("quota_us", "cpus"), [(-1, 8), (300000, 3), (5000, 1)])
def test_cpus_follow_a_v1_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota_us: int, cpus: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    mount = "36 31 0:33 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"
    tree = Tree(tmp_path, [mount], ["3:cpu,cpuacct:/a"])
    write(tree.cgroup / "cpu,cpuacct/a/cpu.cfs_quota_us", f"{quota_us}\n")
    write(tree.cgroup / "cpu,cpuacct/a/cpu.cfs_period_us", "100000\n")
    assert cpus_available(tree.proc, tree.cgroup) == cpus


def test_this_process_has_a_size_and_a_peak() -> None:
    peak = budget.peak_resident_bytes()
    assert 10 * MiB < budget.resident_bytes() <= peak
    block = b"x" * (peak + 64 * MiB - budget.resident_bytes())
    del block
    assert budget.peak_resident_bytes() >= peak + 60 * MiB
    assert budget.resident_bytes() < budget.peak_resident_bytes() - 32 * MiB


# Real control groups: these need root (as in CI) and a memory controller.

REPORT = """
import json, sys
from flexinfer.memory.budget import available_memory, check_budget, usable_bytes
{work}
found = available_memory()
check_budget({limit}, found)
print(json.dumps([found.bytes, found.where]))
"""


class Group:
    """A real control group with a limit, removed at the end."""

    def __init__(self, folder: Path, limit: int, v1: bool) -> None:
        folder.mkdir()
        self.folder, self.limit, self.v1 = folder, limit, v1
        (folder / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text(str(limit))

    def usage(self) -> int:
        name = "memory.usage_in_bytes" if self.v1 else "memory.current"
        return int((self.folder / name).read_text())

    def start(self, code: str) -> "subprocess.Popen[str]":
        enter = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$0" -c "$1"'
        return subprocess.Popen(
            ["sh", "-c", enter, sys.executable, code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def available(self, work: str = "", budget: int = 0) -> Availability:
        with self.start(REPORT.format(work=work, limit=budget)) as child:
            out, _ = child.communicate(timeout=60)
        assert child.returncode == 0
        return Availability(*json.loads(out))


@pytest.fixture
def groups() -> Iterator[tuple[Group, Group]]:
    """An outer group of 320 MiB and an inner one of 640."""
    v1 = Path("/sys/fs/cgroup/memory/memory.limit_in_bytes").exists()
    top = Path("/sys/fs/cgroup/memory" if v1 else "/sys/fs/cgroup")
    outer = Group(top / f"flexinfer-test-{os.getpid()}", 320 * MiB, v1)
    if not v1:
        (outer.folder / "cgroup.subtree_control").write_text("+memory")
    inner = Group(outer.folder / "inner", 640 * MiB, v1)
    yield outer, inner
    inner.folder.rmdir()
    outer.folder.rmdir()


@pytest.mark.timeout(60)
def test_in_a_real_group_its_whole_limit_may_be_asked_for(groups: tuple[Group, Group]) -> None:
    outer, inner = groups
    found = inner.available(budget=outer.limit)
    assert found.where == f"control group {outer.folder}"
    assert outer.limit - 16 * MiB <= found.bytes <= outer.limit


@pytest.mark.timeout(60)
def test_in_a_real_group_full_of_page_cache(groups: tuple[Group, Group], tmp_path: Path) -> None:
    outer, inner = groups
    file = tmp_path / "cached"
    with file.open("wb") as hole:
        hole.truncate(400 * MiB)
    work = f"with open({str(file)!r}, 'rb') as f:\n    while f.read(1 << 20): pass"
    found = inner.available(work, budget=outer.limit)
    assert outer.usage() > 200 * MiB
    assert outer.limit - 24 * MiB <= found.bytes <= outer.limit


@pytest.mark.timeout(60)
def test_in_a_real_group_own_memory_counts_as_available(groups: tuple[Group, Group]) -> None:
    outer, inner = groups
    found = inner.available("block = b'x' * (100 << 20)", budget=outer.limit)
    assert outer.limit - 16 * MiB <= found.bytes <= outer.limit


@pytest.mark.timeout(60)
def test_in_a_real_group_a_neighbour_counts_as_used(groups: tuple[Group, Group]) -> None:
    outer, inner = groups
    with inner.start("block = b'x' * (100 << 20); print(1, flush=True); input()") as neighbour:
        assert neighbour.stdout and neighbour.stdout.readline() == "1\n"
        found = inner.available()
        neighbour.communicate("\n", timeout=30)
    assert outer.limit - 130 * MiB <= found.bytes <= outer.limit - 100 * MiB
