"""Machines from presets and from TOML files: what they say, and how a mistake is named."""

import re
from pathlib import Path

import pytest

from flexinfer.cli import main
from flexinfer.errors import FormatError, OptionError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import AttentionRates, Glue, KernelRates, Link
from flexinfer.planner.hardware_file import (
    disk_from_table,
    disk_table,
    host_from_table,
    host_table,
    read_hardware,
)
from flexinfer.planner.presets import PRESETS, preset
from flexinfer.planner.tables import Table
from flexinfer.units import GiB

WHOLE = """
name = "shed"
[disk]
bytes_per_s = 2e9
latency_s = 5e-5
[host]
memory_bytes = "64GiB"
memory_bytes_per_s = 5e10
[host.kernels.any]
ops_per_s = 1e12
[host.kernels.Q4_0]
bytes_per_s = 4e10
streamed_bytes_per_s = 3e10
streamed_group_s = 1e-7
ops_per_s = [[1, 8e10], [64, 2e12]]
result_s = 3e-10
[device]
memory_bytes = "8GiB"
memory_bytes_per_s = 2.5e11
[device.ops_per_s]
any = 2e13
F32 = 1e13
[device.to_device]
bytes_per_s = 1.2e10
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "machine.toml"
    path.write_text(text)
    return path


def test_a_file_says_what_a_machine_gives(tmp_path: Path) -> None:
    shed = read_hardware(written(tmp_path, WHOLE))
    assert (shed.name, shed.source) == ("shed", "file")
    assert shed.disk == Disk({1: 1.4e9, 2: 2e9}, 5e-5) and shed.disk_bytes_per_s == 2e9
    assert shed.host.memory_bytes == 64 * GiB
    assert shed.host.kernels["Q4_0"] == KernelRates(
        4e10, 3e10, ((1, 8e10), (64, 2e12)), 1e-7, 3e-10
    )
    assert shed.host.kernels["Q6_K"] == KernelRates(5e10, 2.5e10, ((1, 1e12),))
    assert set(shed.host.kernels) == {kind.name for kind in BLOCK_TYPES.values()}
    assert shed.host.attention == (AttentionRates(128, 1, 2e12, 2e12),)
    assert shed.device is not None and shed.device.memory_bytes == 8 * GiB
    assert (shed.device.ops_per_s["F32"], shed.device.ops_per_s["BF16"]) == (1e13, 2e13)
    assert shed.device.to_device == shed.device.to_host == Link(1.2e10)


def test_a_device_is_not_needed_and_a_name_neither(tmp_path: Path) -> None:
    text = WHOLE.split("[device]")[0].replace('name = "shed"', "")
    machine = read_hardware(written(tmp_path, text))
    assert machine.device is None and machine.name == "machine"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("bytes_per_s = 2e9", "bytes_per_s = -1", "disk: bytes_per_s is -1; it must be a number"),
        ("bytes_per_s = 2e9", "bytes_per_s = nan", "disk: bytes_per_s is nan"),
        ("bytes_per_s = 2e9", "bytes_per_s = true", "disk: bytes_per_s is True"),
        ("bytes_per_s = 2e9", "", "disk: bytes_per_s is missing"),
        ("latency_s = 5e-5", "latency_ms = 5", "disk: latency_ms is not known"),
        ("latency_s = 5e-5", "latency_s = -5", "latency_s is -5; it must be a number, 0 to 3600"),
        ("latency_s = 5e-5", "busy = 0", "disk: busy is 0; it must be a number, 1e-06 to 1"),
        ("latency_s = 5e-5", "busy = 1.5", "disk: busy is 1.5"),
        ("bytes_per_s = 2e9", 'bytes_per_s_at = { "٢" = 2e9 }', "٢ is no number of reads in"),
        ("bytes_per_s = 2e9", 'bytes_per_s_at = { "0" = 2e9 }', "0 is no number of reads in"),
        ("[[1, 8e10], [64, 2e12]]", "[[1.5, 8e10]]", "tokens is 1.5; it must be a whole number"),
        ('memory_bytes = "64GiB"', 'memory_bytes = "2000PiB"', "memory_bytes is '2000PiB'"),
        ('memory_bytes = "64GiB"', "memory_bytes = 2000000000000000000", "at most 1024 PiB"),
        ('name = "shed"', f"name = {'[' * 5000}", "not TOML"),
        ('name = "shed"', f"name = {'9' * 5000}", "not TOML"),
        ('memory_bytes = "64GiB"', 'memory_bytes = "much"', "host: memory_bytes is 'much'"),
        ('memory_bytes = "8GiB"', "", "device: memory_bytes is missing"),
        ("[host.kernels.Q4_0]", "[host.kernels.Q4_7]", "kernels: Q4_7 is no block type"),
        ("[[1, 8e10], [64, 2e12]]", "[[64, 8e10], [1, 2e12]]", "ascending"),
        ("[[1, 8e10], [64, 2e12]]", "[[64]]", "pairs of tokens and a rate"),
        ("[[1, 8e10], [64, 2e12]]", "[]", "Q4_0: ops_per_s is empty"),
        ("[device.to_device]", "[device.sideways]", "device: to_device is missing"),
        ("[disk]", "[disk]\ncontention = 3", "pairs of computing and what is lost"),
        ("[disk]", "[disk]\ncontention = [[1, 1.5]]", "disk: contention: what is lost is 1.5"),
        ("[disk]", "[disk]\ncontention = [[1, 0.5], [1, 0.6]]", "must go by ascending computing"),
        ("[disk]", "disk = 3\n[dusk]", "disk is 3; it must be a table"),
        ('name = "shed"', "name = 3", "name is 3"),
        ("[disk]", "[disk", "not TOML"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, old: str, new: str, named: str) -> None:
    assert old in WHOLE
    path = written(tmp_path, WHOLE.replace(old, new, 1))
    with pytest.raises(FormatError, match=re.escape(named)) as refused:
        read_hardware(path)
    assert str(path) in str(refused.value) and refused.value.hint


FULL = (
    WHOLE.replace(
        "latency_s",
        "busy = 0.9\npause_s = 0.1\nwait_s = 1e-4\nlatency_s",
    ).replace(
        "[device]\n",
        """[host.glue]
layer_s = 1e-6
sample_per_s = 1e9
[[host.attention]]
head_dim = 128
group = 4
one_ops_per_s = 2.5e10
many_ops_per_s = 4e10
[device]
layer_s = 1e-4
""",
    )
    + "latency_s = 1e-5\n[device.to_host]\nbytes_per_s = 1e10\nlatency_s = 1e-5\n"
)
NUMBERS = list(re.finditer(r"(?<=[ \[,])[0-9][0-9.e+-]*(?=[\n\],])", FULL))


def other(found: re.Match[str], value: str) -> str:
    """The file with one of its numbers changed."""
    return FULL[: found.start()] + value + FULL[found.end() :]


def key(found: re.Match[str]) -> str:
    return FULL[: found.start()].rpartition("\n")[2].partition(" ")[0]


@pytest.mark.parametrize("found", NUMBERS, ids=key)
@pytest.mark.parametrize("value", ["1e300", "1e-300", "-1.0", "nan", "inf", '"٤"', "false"])
def test_a_number_beyond_reckoning_is_named_with_its_limits(
    tmp_path: Path, found: re.Match[str], value: str
) -> None:
    path = written(tmp_path, other(found, value))
    if value == "1e-300" and re.search(r"(?<!per)_s$", key(found)):
        assert read_hardware(path).device  # no time at all, and harmless
        return
    with pytest.raises(FormatError, match=rf"{path}: .*it must be a number, \S+ to \S+$"):
        read_hardware(path)


@pytest.mark.parametrize("found", [n for n in NUMBERS if n[0] not in ("1", "64")], ids=key)
def test_at_its_limits_a_machine_still_has_a_plan(tmp_path: Path, found: re.Match[str]) -> None:
    with pytest.raises(FormatError) as refused:
        read_hardware(written(tmp_path, other(found, "-1.0")))
    ((least, most),) = re.findall(r"(\S+) to (\S+)$", str(refused.value))
    for text in (other(found, least), other(found, most)):
        assert_planned(written(tmp_path, text))


@pytest.mark.parametrize("points", ["[[1e-6, 1]]", "[[1e6, 1]]", "[[1e-6, 0], [1e6, 1]]"])
def test_with_contention_at_its_limits_a_machine_still_has_a_plan(
    tmp_path: Path, points: str
) -> None:
    assert_planned(written(tmp_path, FULL.replace("[disk]", f"[disk]\ncontention = {points}")))


@pytest.mark.parametrize("limit", ["1", "1e18"])
def test_with_all_rates_at_a_limit_a_machine_still_has_a_plan(tmp_path: Path, limit: str) -> None:
    text = re.sub(r"(?<=per_s = )[0-9.e+]+|(?<=, )[0-9.]+e[0-9]+", limit, FULL)
    assert text.count(limit + "\n") >= 9
    assert_planned(written(tmp_path, text))


def assert_planned(path: Path) -> None:
    argv = ["plan", "llama-3-8b", "--type", "Q4_0", "--hardware", str(path)]
    for more in ([], ["--ram", "3GiB", "--sweep"], ["--target-tokens-per-s", "1"]):
        assert main([*argv, *more]) == 0


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"none\.toml: No such file"):
        read_hardware(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["icl-a100", "spr-h100", "laptop", "desktop", "mini-pc"])
def test_presets_are_whole(name: str) -> None:
    machine = preset(name)
    host = machine.host
    assert (machine.name, machine.source) == (name, "preset")
    assert set(host.kernels) == {kind.name for kind in BLOCK_TYPES.values()}
    assert host.memory_bytes and (machine.device is None) == (name == "mini-pc")
    for rates in host.kernels.values():
        assert 0 < rates.streamed_bytes_per_s <= rates.bytes_per_s <= host.memory_bytes_per_s
    assert machine.disk.at(1) < machine.disk.bytes_per_s
    assert host.memory_bytes_per_s > machine.disk_bytes_per_s


def test_the_papers_servers_are_as_their_data_sheets_say() -> None:
    a, b = PRESETS["icl-a100"], PRESETS["spr-h100"]
    assert a.device and b.device
    assert (a.host.memory_bytes, b.host.memory_bytes) == (256 * GiB, 512 * GiB)
    assert (a.device.memory_bytes, b.device.memory_bytes) == (40 * GiB, 80 * GiB)
    assert a.host.memory_bytes_per_s == pytest.approx(0.8 * 8 * 3.2e9 * 8)
    assert b.host.memory_bytes_per_s == pytest.approx(0.8 * 8 * 4.8e9 * 8)
    assert b.device.to_device.bytes_per_s == 2 * a.device.to_device.bytes_per_s


def test_an_unknown_machine_is_named_beside_the_known() -> None:
    with pytest.raises(OptionError, match="'abacus'") as refused:
        preset("abacus")
    assert "icl-a100, spr-h100, laptop, desktop, mini-pc" in str(refused.value.hint)
    assert "emulated:small" in str(refused.value.hint)


def test_hardware_survives_being_stored() -> None:
    for machine in PRESETS.values():
        host = host_from_table(Table(host_table(machine.host), "stored"))
        assert host == machine.host
        assert disk_from_table(Table(disk_table(machine.disk), "stored")) == machine.disk


def test_glue_without_rates_is_free() -> None:
    values = {
        "memory_bytes_per_s": 1e9,
        "kernels": {"any": {"ops_per_s": 1e9}},
        "glue": {"layer_s": 1e-3},
    }
    assert host_from_table(Table(values, "x")).glue == Glue(layer_s=1e-3)
