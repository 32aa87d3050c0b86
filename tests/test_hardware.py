"""Machines from presets and from TOML files: what they say, and how a mistake is named."""

import re
from pathlib import Path

import pytest

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
ops_per_s = [[1, 8e10], [64, 2e12]]
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
    assert shed.host.kernels["Q4_0"] == KernelRates(4e10, 3e10, ((1, 8e10), (64, 2e12)))
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
        ("latency_s = 5e-5", "latency_s = -5", "latency_s is -5; it must be a number, 0 or more"),
        ('memory_bytes = "64GiB"', 'memory_bytes = "much"', "host: memory_bytes is 'much'"),
        ('memory_bytes = "8GiB"', "", "device: memory_bytes is missing"),
        ("[host.kernels.Q4_0]", "[host.kernels.Q4_7]", "kernels: Q4_7 is no block type"),
        ("[[1, 8e10], [64, 2e12]]", "[[64, 8e10], [1, 2e12]]", "ascending"),
        ("[[1, 8e10], [64, 2e12]]", "[[64]]", "pairs of tokens and a rate"),
        ("[[1, 8e10], [64, 2e12]]", "[]", "Q4_0: ops_per_s is empty"),
        ("[device.to_device]", "[device.sideways]", "device: to_device is missing"),
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
