"""What is made of a machine's facts: machines built by hand, each with one fault."""

from dataclasses import replace
from pathlib import Path

import pytest

from doctor_tools import PLAIN, THP, TRIAL, Machine, huge_pages, memory, pinning, threads, write
from flexinfer.commands import findings
from flexinfer.commands.findings import Mark
from flexinfer.memory import machine
from flexinfer.streaming.place import FileSystem, Place
from flexinfer.units import GiB, MiB

CPUFREQ = "devices/system/cpu/cpu0/cpufreq"


@pytest.fixture
def fake(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_machine_without_fault(fake: Machine) -> None:
    found = [
        findings.judge_instructions("avx512", ["scalar", "avx512"], None, PLAIN),
        threads(fake),
        findings.judge_load(machine.threads(fake.roots)),
        memory(fake),
        findings.judge_groups(machine.groups(fake.roots)),
        findings.judge_swap(machine.swap_devices(fake.roots)),
        findings.judge_memory_speed(TRIAL, 4),
        huge_pages(fake, 62 * MiB),
        pinning(fake, pinned=True),
    ]
    assert {f.mark for f in found} == {Mark.OK} and {f.advice for f in found} == {None}
    assert [f.text for f in found] == [
        "avx512; available: scalar, avx512",
        "4 of 4 processors",
        "0.25 on 4 processors",
        "12 GiB of the host's 16 GiB; default budget 11.4 GiB",
        "no limit, in 3 levels",
        "none; no budget counts on it",
        "40 GB/s, read by 4 threads",
        "62 MiB of 64 MiB given (transparent_hugepage: madvise)",
        "11 GiB can be pinned (RLIMIT_MEMLOCK unlimited)",
    ]
    assert findings.judge_address_space(TRIAL) is None
    assert findings.judge_clock(machine.clock(fake.roots)) is None


def test_a_quota_of_half_a_processor(fake: Machine) -> None:
    fake.group("a/b", cpu_max="200000 100000")
    fake.group("a", cpu_max="50000 100000")
    found = threads(fake)
    file = fake.roots.cgroups / "a/cpu.max"
    assert (found.mark, found.facts["threads"], found.facts["quota"]) == (Mark.PROBLEM, 1, 0.5)
    assert found.text.startswith("1 of 4 processors: a quota of 0.5 in control group ")
    assert found.advice == f"start the container with a larger --cpus, or raise it in {file}"
    fake.group("a", cpu_max="150000 100000")
    assert (threads(fake).mark, threads(fake).facts["threads"]) == (Mark.NOTE, 1)
    fake.group("a", cpu_max="900000 100000")
    fake.group("a/b", cpu_max="max 100000")
    assert threads(fake).mark == Mark.OK


def test_fewer_processors_by_affinity_or_by_cpuset(fake: Machine) -> None:
    fake.proc("self/status", "RssAnon:\t0 kB\nCpus_allowed_list:\t0,2\n")
    assert threads(fake).text.startswith("2 of 4 processors: by the affinity")
    assert threads(fake).advice == "`taskset -cp 0-3 $$` gives this shell all of them"
    for group in ("a", "a/b"):
        write(fake.roots.cgroups / group / "cpuset.cpus.effective", "0,2\n")
    write(fake.roots.cgroups / "cpuset.cpus.effective", "0-3\n")
    found = threads(fake)
    assert found.facts["cpuset_file"] == str(fake.roots.cgroups / "a/cpuset.cpus")
    assert found.mark == Mark.NOTE and "--cpuset-cpus" in str(found.advice)


def test_a_busy_machine(fake: Machine) -> None:
    fake.proc("loadavg", "6.94 1 1 1/2 3\n")
    found = findings.judge_load(machine.threads(fake.roots))
    assert found.mark == Mark.NOTE and found.text.startswith("6.94 on 4 processors: ")


@pytest.mark.parametrize(
    ("limits", "file"),
    [
        ({"memory_max": "536870912"}, "memory.max"),
        ({"memory_max": "max", "memory_high": "536870912"}, "memory.high"),
    ],
)
def test_a_control_group_limits_memory(fake: Machine, limits: dict[str, str], file: str) -> None:
    fake.group("a", memory_current="0", **limits)
    found = memory(fake)
    assert found.mark == Mark.NOTE and not found.fatal
    assert found.facts["limit_file"] == str(fake.roots.cgroups / "a" / file)
    assert found.text.startswith("512 MiB of the host's 16 GiB, by control group ")
    assert found.text.endswith("; default budget 384 MiB")
    assert str(found.advice).endswith(f"--memory, or raise it in {found.facts['limit_file']}")
    levels = findings.judge_groups(machine.groups(fake.roots))
    assert levels.text.startswith("512 MiB of memory (0 B used) in ")
    assert [level["memory_limit_bytes"] for level in levels.facts["levels"]] == [
        None,
        512 * MiB,
        None,
    ]


def test_advice_on_units_of_systemd() -> None:
    service = "/sys/fs/cgroup/system.slice/llm.service/memory.max"
    scope = "/sys/fs/cgroup/user.slice/user-1.slice/user@1.service/app.slice/run-1.scope/cpu.max"
    assert findings.lift(service, "MemoryMax=infinity", "--memory") == (
        "`systemctl set-property llm.service MemoryMax=infinity`"
    )
    assert findings.lift(scope, "CPUQuota=", "--cpus") == (
        "`systemctl --user set-property run-1.scope CPUQuota=`"
    )


def test_memory_that_others_hold_and_memory_too_small_to_run(fake: Machine) -> None:
    fake.proc("meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {3 << 20} kB\n")
    assert memory(fake).mark == Mark.NOTE and "ps -eo rss" in str(memory(fake).advice)
    fake.group("a", memory_max=str(48 * MiB), memory_current="0")
    assert memory(fake, 31 * MiB).mark == Mark.NOTE
    found = memory(fake, 32 * MiB)  # with a margin of 16
    assert (found.mark, found.fatal) == (Mark.PROBLEM, True)
    assert found.text.endswith("flexinfer alone takes 32 MiB")


def test_swap_in_memory_and_nearly_full(fake: Machine) -> None:
    head = "Filename\tType\tSize\tUsed\tPriority\n"
    fake.proc("swaps", f"{head}/dev/zram0 partition {1 << 20} {1 << 18} 100\n")
    found = findings.judge_swap(machine.swap_devices(fake.roots))
    assert (found.mark, found.text) == (
        Mark.OK,
        "256 MiB of 1 GiB used, on /dev/zram0 (in memory)",
    )
    fake.proc("swaps", f"{head}/swapfile file {1 << 20} {1 << 20} -2\n")
    assert findings.judge_swap(machine.swap_devices(fake.roots)).mark == Mark.NOTE


def test_huge_pages_never(fake: Machine) -> None:
    fake.sys(f"{THP}/enabled", "always madvise [never]\n")
    found = huge_pages(fake)
    assert found.mark == Mark.PROBLEM and found.facts["enabled"] == "never"
    assert found.advice == ("`echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled`")


def test_a_setting_for_pages_of_2_mib_goes_before_the_general_one(fake: Machine) -> None:
    fake.sys(f"{THP}/hugepages-2048kB/enabled", "always inherit madvise [never]\n")
    assert "hugepages-2048kB/enabled`" in str(huge_pages(fake).advice)
    fake.sys(f"{THP}/hugepages-2048kB/enabled", "always [inherit] madvise never\n")
    fake.sys(f"{THP}/enabled", "[always] madvise never\n")
    assert huge_pages(fake, 64 * MiB).text.endswith("(transparent_hugepage: always)")


def test_huge_pages_allowed_and_yet_not_given(fake: Machine) -> None:
    assert "compact_memory" in str(huge_pages(fake).advice)
    fake.sys(f"{THP}/defrag", "always defer defer+madvise madvise [never]\n")
    assert str(huge_pages(fake).advice).endswith("transparent_hugepage/defrag`")
    fake.proc("self/status", "Cpus_allowed_list:\t0-3\nTHP_enabled:\t0\n")
    assert "switched off for this process" in huge_pages(fake).text
    (fake.roots.sys / THP / "enabled").unlink()
    assert "this kernel has none" in huge_pages(fake).text
    assert huge_pages(fake).mark == Mark.NOTE


@pytest.mark.parametrize(
    ("soft", "hard", "advice"),
    [
        (65536, "unlimited", "`ulimit -l unlimited`"),
        (65536, 16 * GiB, f"`ulimit -l {16 << 20}`"),
        (65536, 65536, "/etc/security/limits.conf"),
        ("unlimited", "unlimited", "seccomp"),
    ],
)
def test_memory_that_cannot_be_pinned(
    fake: Machine, soft: object, hard: object, advice: str
) -> None:
    fake.memlock(soft, hard)
    found = pinning(fake, pinned=False)
    assert found.mark == Mark.NOTE and advice in str(found.advice)


def test_a_small_memlock_harms_where_there_is_swap_unless_lifted(fake: Machine) -> None:
    fake.memlock(65536, 65536)
    assert pinning(fake, pinned=False, swap=True).text == (
        "11 GiB cannot be pinned, RLIMIT_MEMLOCK is 64 KiB: weights can be swapped out"
    )
    assert "no harm" in pinning(fake, pinned=False).text
    assert pinning(fake, pinned=True).text == (
        "11 GiB can be pinned (CAP_IPC_LOCK; RLIMIT_MEMLOCK 64 KiB)"
    )


@pytest.mark.parametrize(
    ("governor", "driver", "limit_khz", "advice"),
    [
        ("performance", "acpi-cpufreq", 4_500_000, None),
        ("powersave", "intel_pstate", 4_500_000, None),
        ("powersave", "acpi-cpufreq", 4_500_000, "`sudo cpupower frequency-set -g performance`"),
        ("schedutil", "acpi-cpufreq", 1_500_000, "`sudo cpupower frequency-set -u 4500MHz`"),
    ],
)
def test_the_clock(
    fake: Machine, governor: str, driver: str, limit_khz: int, advice: str | None
) -> None:
    fake.sys(f"{CPUFREQ}/scaling_governor", governor)
    fake.sys(f"{CPUFREQ}/scaling_driver", driver)
    fake.sys(f"{CPUFREQ}/scaling_max_freq", str(limit_khz))
    fake.sys(f"{CPUFREQ}/cpuinfo_max_freq", "4500000\n")
    found = findings.judge_clock(machine.clock(fake.roots))
    assert found is not None and found.advice == advice


def test_instruction_sets(fake: Machine) -> None:
    capped = findings.judge_instructions("scalar", ["scalar", "avx512"], "scalar", PLAIN)
    assert capped.advice == "`unset FLEXINFER_ISA`: avx512 is faster"
    alone = findings.judge_instructions("scalar", ["scalar"], None, PLAIN)
    guest = findings.judge_instructions("scalar", ["scalar"], None, machine.processor(fake.roots))
    assert alone.mark == guest.mark == Mark.PROBLEM
    assert "-cpu host" in str(guest.advice) and "-cpu host" not in str(alone.advice)


def test_a_slow_disk() -> None:
    place = Place("m.gguf", FileSystem("ext4", "/dev/sda1", "/"), True, 120e6)
    found = findings.judge_disk(place)
    assert (found.mark, found.text) == (
        Mark.NOTE,
        "0.12 GB/s from ext4 on /dev/sda1; direct reads",
    )
    assert findings.judge_disk(replace(place, bytes_per_s=3e9)).advice is None


def test_whether_a_model_fits(fake: Machine) -> None:
    facts = machine.memory(fake.roots)
    room = facts.default_budget_bytes - facts.default_budget_bytes // 100 - 40 * MiB
    for weights_bytes, fits in ((room, True), (room + 1, False)):
        found = findings.judge_model(Path("m.gguf"), weights_bytes, facts, 40 * MiB)
        assert (found.facts["fits"], found.mark == Mark.OK) == (fits, fits)
    found = findings.judge_model(Path("m.gguf"), 2 * room, facts, 40 * MiB)
    assert "at least 50 % stream" in found.text
