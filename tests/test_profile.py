"""`flexinfer profile`: what is measured, stored, found again, and used."""

import errno
import json
import os
from contextlib import closing
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

import pytest

from cli_tools import flexinfer
from flexinfer import _kernels
from flexinfer.errors import ReadError
from flexinfer.executor.contention import ReadingBench, with_contention
from flexinfer.executor.overhead import engine_overhead
from flexinfer.executor.profile import measure_disk, touched_memory, usual
from flexinfer.executor.profiles import (
    Profile,
    disk_place,
    load_profile,
    profile_key,
    store_profile,
)
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import AttentionRates, Glue, Host, KernelRates
from flexinfer.planner.hardware_file import disk_table
from flexinfer.planner.presets import PRESETS
from flexinfer.streaming.reader import Reader
from flexinfer.units import MiB

LAPTOP = PRESETS["laptop"]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_of_several_rounds_each_figure_is_of_the_mean_time() -> None:
    def host(x: float) -> Host:
        kernels = {"Q4_0": KernelRates(x, 2 * x, ((1, x), (8, 3 * x)), 1 / x)}
        attention = (AttentionRates(64, 1, x, 2 * x), AttentionRates(128, 4, 2 * x, x, "Q8_0"))
        return Host(x, kernels, attention, Glue(layer_s=1 / x, replayed_tokens=16, norm_per_s=x))

    def rounded(host: Host) -> object:
        return json.loads(json.dumps(asdict(host)), parse_float=lambda text: round(float(text), 9))

    found = usual([host(2.0), host(3.0), host(6.0)])
    assert rounded(found) == rounded(host(3.0))
    assert [type(n) for n, _ in found.kernels["Q4_0"].ops_per_s] == [int, int]


def test_a_round_that_was_held_up_counts_twice_the_usual_at_most() -> None:
    slow = [Glue(layer_s=s, norm_per_s=1 / s) for s in (1.0, 1.0, 50.0)]
    found = usual(slow)
    assert (found.layer_s, found.norm_per_s) == pytest.approx((4 / 3, 3 / 4))


@pytest.fixture
def context() -> _kernels.Context:
    return _kernels.Context(2)


def test_the_command_measures_stores_and_is_used_by_plan(smollm_path: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    before = flexinfer("plan", smollm_path, **cache)
    assert "`flexinfer profile MODEL` knows better" in before.stdout
    done = flexinfer("profile", smollm_path, "--json", "--threads", "2", **cache)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert json.loads(Path(found["path"]).read_text())["host"] == found["host"]
    host, disk = found["host"], found["disks"][found["place"]]
    assert found["machine"]["threads"] == 2 and Path(found["path"]).is_relative_to(tmp_path)
    assert set(host["kernels"]) == {
        "F32",
        "F16",
        "BF16",
        "Q4_0",
        "Q4_1",
        "Q5_0",
        "Q5_1",
        "Q8_0",
    } | {f"Q{n}_K" for n in range(2, 7)} | {"IQ4_NL", "IQ4_XS", "MXFP4"}
    for rates in host["kernels"].values():
        assert 0 < rates["streamed_bytes_per_s"] <= rates["bytes_per_s"]
        assert rates["bytes_per_s"] <= host["memory_bytes_per_s"]
        tokens = [count for count, _ in rates["ops_per_s"]]
        assert tokens == sorted(set(tokens))
    shapes = {(shape["head_dim"], shape["group"]) for shape in host["attention"]}
    assert (64, 3) in shapes  # the model's own
    assert disk["bytes_per_s_at"]["1"] > 0 and 0 < disk["busy"] <= 1

    after = json.loads(flexinfer("plan", smollm_path, "--threads=2", "--json", **cache).stdout)
    assert after["hardware_source"] == "profile"
    assert after["disk_bytes_per_s_at_depth"] == disk["bytes_per_s_at"]
    assert after["memory_bytes_per_s"] == host["memory_bytes_per_s"]
    other = json.loads(flexinfer("plan", smollm_path, "--threads=1", "--json", **cache).stdout)
    assert other["hardware_source"] == "probe"


def test_what_is_stored_is_found_again(cache: Path, context: _kernels.Context) -> None:
    key = profile_key(context)
    assert load_profile(key) is None
    profile = Profile(LAPTOP.host, {"here": LAPTOP.disk})
    store_profile(key, profile)
    assert load_profile(key) == profile
    assert [path.parent for path in cache.rglob("*.json")] == [cache / "flexinfer"]
    assert profile.hardware(LAPTOP.disk).source == "profile"


@pytest.mark.parametrize("field", ["processor", "processors", "threads", "isa", "version"])
def test_of_another_machine_there_is_none(
    cache: Path, context: _kernels.Context, field: str
) -> None:
    key = profile_key(context)
    store_profile(key, Profile(LAPTOP.host, {}))
    value = getattr(key, field)
    other = replace(key, **{field: value + 1 if isinstance(value, int) else value + "x"})
    assert load_profile(other) is None
    # Nor where its file has the other's name.
    other.path.write_text(key.path.read_text())
    assert load_profile(other) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: "[" * 100_000,
        lambda text: text.replace('"memory_bytes_per_s": ', '"memory_bytes_per_s": 1e-300, "": '),
        lambda text: text.replace('"form": 1', '"form": 0'),
        lambda text: text.replace('"memory_bytes_per_s": ', '"memory_bytes_per_s": -'),
        lambda text: text.replace('"disks": {}', '"disks": 3'),
        lambda text: text.replace('"host"', '"guest"'),
    ],
)
def test_a_damaged_profile_is_none(cache: Path, context: _kernels.Context, damage) -> None:
    key = profile_key(context)
    store_profile(key, Profile(LAPTOP.host, {}))
    whole = key.path.read_text()
    assert damage(whole) != whole
    key.path.write_text(damage(whole))
    assert load_profile(key) is None


def test_a_disk_that_was_not_profiled_is_probed(smollm_path: Path, tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path)}
    key = profile_key(_kernels.Context(2))
    path = tmp_path / "flexinfer" / key.path.name
    path.parent.mkdir()
    elsewhere = Disk({1: 123e9})
    stored = {"form": 1, "machine": asdict(key), "host": asdict(LAPTOP.host)}
    stored["host"]["glue"] = {}
    for place, rate in (("elsewhere", False), (disk_place(smollm_path), True)):
        stored["disks"] = {place: disk_table(elsewhere)}
        path.write_text(json.dumps(stored))
        plan = json.loads(flexinfer("plan", smollm_path, "--threads=2", "--json", **cache).stdout)
        assert plan["hardware_source"] == "profile"
        assert (plan["disk_bytes_per_s"] == 123e9) == rate


def test_a_folder_that_cannot_be_written_is_named(smollm_path: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = flexinfer("profile", "--threads=1", XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.returncode == 2
    assert f"cannot be stored in {tmp_path}/file/flexinfer" in done.stderr
    assert "XDG_CACHE_HOME" in done.stderr


def test_the_disk_is_measured_at_the_files_place(tmp_path: Path, context: _kernels.Context) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(9 * MiB))
    disk = measure_disk(path, context, seconds=0.02)
    assert disk.bytes_per_s > 0 and disk.latency_s > 0 and 0 < disk.busy <= 1
    assert 0 <= disk.wait_s < 0.01
    assert all(at > 0 and 0 <= lost <= 1 for at, lost in disk.contention)
    assert str(disk_place(path)).startswith(disk_place(tmp_path))


@pytest.mark.parametrize(("file_bytes", "bytes_per_s"), [(100, 1e9), (MiB, 1e6)])
def test_a_small_file_or_a_slow_disk_tells_nothing_of_what_reading_costs(
    tmp_path: Path, context: _kernels.Context, file_bytes: int, bytes_per_s: float
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(file_bytes))
    with touched_memory() as memory, closing(Reader(path)) as reader:
        disk = Disk({1: bytes_per_s})
        assert with_contention(disk, ReadingBench(context, memory, reader)) is disk


def test_a_disk_that_fails_beside_computing_is_said_to_fail(
    tmp_path: Path, context: _kernels.Context
) -> None:
    path = tmp_path / "weights"
    path.write_bytes(bytes(MiB))
    reads = count()

    def read(file: int, buffers: list[memoryview], offset: int) -> int:
        if next(reads) > 20:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(file, buffers, offset)

    with (
        pytest.raises(ReadError, match="Input/output error"),
        touched_memory() as memory,
        closing(Reader(path, read)) as reader,
    ):
        with_contention(Disk({1: 1e9}), ReadingBench(context, memory, reader), 0.01)


def test_the_engines_own_time_is_no_models(context: _kernels.Context) -> None:
    own = engine_overhead(context)
    assert min(own.layer_s, own.called_layer_s, own.sweep_s) >= 0 and own.row_s > 0
    assert own.called_layer_s + own.sweep_s > 0
