"""`flexinfer bench --kernels` and what it measures with."""

import ctypes
import json
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli_tools import flexinfer
from doctor_tools import Machine
from factory import make_gguf
from flexinfer import _kernels
from flexinfer.arguments import parser
from flexinfer.commands.bench_kernels import OF_MODELS, TOKENS
from flexinfer.executor.kernel_rates import arithmetic_per_s, result_s, streamed_rates
from flexinfer.executor.rates import (
    COLUMNS,
    FIRST_ROWS,
    ProductRate,
    Times,
    measure_bounds,
    measure_product,
)
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory import machine
from flexinfer.memory.arena import Arena
from flexinfer.units import MiB

Q4_0, F16 = BLOCK_TYPES[2], BLOCK_TYPES[1]


@pytest.mark.parametrize("locked", [True, False])
@pytest.mark.parametrize(
    ("kind", "tokens", "rows"),
    [
        (Q4_0, 1, 4 * MiB // (COLUMNS // 32 * 18) // 16 * 16),  # all that the memory holds
        (F16, 1, 512),
        (F16, 64, 512),
    ],
)
def test_a_product_is_as_large_as_memory_and_time_allow(
    kind: object, tokens: int, rows: int, locked: bool
) -> None:
    context = _kernels.Context(2)
    with closing(Arena(4 * MiB)) as arena:
        memory = arena.take(4 * MiB)
        ctypes.memset(memory.address, 1, memory.size_bytes)
        rate = measure_product(context, kind, tokens, memory, locked=locked, repeats=2)
    assert (rate.rows, rate.tokens, rate.locked) == (rows, tokens, locked)
    assert len(rate.times.seconds) == 2
    assert rate.weight_bytes == rows * kind.row_bytes(COLUMNS)
    assert rate.bytes_per_s == rate.weight_bytes / rate.times.best_s
    assert rate.ops_per_s == 2 * rows * COLUMNS * tokens / rate.times.best_s


def test_few_rows_do_where_more_would_take_long() -> None:
    with closing(Arena(4 * MiB)) as arena:
        memory = arena.take(4 * MiB)
        rate = measure_product(_kernels.Context(2, "scalar"), Q4_0, 2048, memory, repeats=1)
    assert rate.rows == FIRST_ROWS


def product(columns: int, rows: int, tokens: int, seconds: float) -> ProductRate:
    return ProductRate(Q4_0, tokens, False, rows, columns, Times((seconds,)))


def test_what_file_rows_take_by_byte_and_by_group() -> None:
    def streamed(columns: int, group_s: float) -> ProductRate:
        rows = (1 << 24) // columns
        seconds = rows / 16 * group_s + rows * Q4_0.row_bytes(columns) / 16e9
        return product(columns, rows, 1, seconds)

    wide = streamed(4096, 1e-7)
    assert streamed_rates(wide, streamed(256, 1e-7)) == pytest.approx((16e9, 1e-7))
    # Noise: groups that seem to take less than nothing take nothing.
    rate, group_s = streamed_rates(wide, streamed(256, -1e-8))
    assert group_s == 0.0 and rate == pytest.approx(wide.bytes_per_s)


@given(st.floats(1e-5, 1.0), st.floats(1e-5, 1.0))
def test_noise_makes_no_rate_senseless(wide_s: float, narrow_s: float) -> None:
    pair = product(4096, 4096, 64, wide_s), product(256, 65536, 64, narrow_s)
    rate, group_s = streamed_rates(*pair)
    assert rate > 0 and group_s >= 0
    assert 0 <= result_s(*pair) < narrow_s
    assert arithmetic_per_s(pair[0], result_s(*pair)) > 0


def test_what_results_take_beside_the_arithmetic() -> None:
    def found(columns: int, rows: int, tokens: int, each_s: float) -> ProductRate:
        results = rows * tokens
        return product(columns, rows, tokens, results * each_s + 2 * results * columns / 3e11)

    wide, narrow = found(4096, 4096, 64, 3e-10), found(256, 65536, 64, 3e-10)
    assert result_s(wide, narrow) == pytest.approx(3e-10)
    assert result_s(wide, found(256, 65536, 64, -1e-10)) == 0.0
    assert arithmetic_per_s(found(4096, 4096, 2048, 3e-10), 3e-10) == pytest.approx(3e11, rel=1e-3)


def test_best_and_median_of_times() -> None:
    times = Times((3.0, 1.0, 7.0))
    assert (times.best_s, times.median_s) == (1.0, 3.0)


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_bounds_are_measured_on_every_instruction_set(isa: str) -> None:
    with closing(Arena(2 * MiB)) as arena:
        memory = arena.take(2 * MiB)
        ctypes.memset(memory.address, 1, memory.size_bytes)
        bounds = measure_bounds(_kernels.Context(1, isa), memory, repeats=1)
    assert bounds.read_bytes_per_s > 0
    assert min(bounds.int8_ops_per_s, bounds.float_ops_per_s, bounds.bf16_ops_per_s) > 0


def test_only_known_values_have_a_bound() -> None:
    with pytest.raises(ValueError, match="int8, float32 or bfloat16, not 'float64'"):
        _kernels.port_rate(_kernels.Context(1), "float64")


def test_caches_are_counted_once_each(tmp_path: Path) -> None:
    made = Machine(tmp_path)
    assert machine.cache_bytes(made.roots) == 0
    for cpu in range(4):
        pair = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}"
        for index, (level, shared, size) in enumerate([(1, cpu, "32K"), (3, pair, "8M")]):
            folder = made.roots.sys / f"devices/system/cpu/cpu{cpu}/cache/index{index}"
            folder.mkdir(parents=True)
            for name, text in (("level", level), ("shared_cpu_list", shared), ("size", size)):
                (folder / name).write_text(f"{text}\n")
    assert machine.cache_bytes(made.roots) == 2 * 8 * MiB


def test_the_types_of_a_model_as_json_and_as_a_table(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    make_gguf(path, "llama", block_type="Q4_0", intermediate_size=512)
    common = ("bench", path, "--kernels", "--repeat", 1, "--threads", 2)
    done = flexinfer(*common, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["threads"] == 2 and found["memory_bytes"] >= 2 * MiB
    assert "Q4_0" in [each["type"] for each in found["types"]]
    for each in found["types"]:
        products = [(p["tokens"], p["layout"]) for p in each["products"]]
        assert products == [(n, layout) for n in TOKENS for layout in ("locked", "streamed")]
        assert all(p["bytes_per_s"] > 0 and len(p["seconds"]) == 1 for p in each["products"])
    done = flexinfer(*common)
    assert done.returncode == 0, done.stderr
    assert "Q4_0: read" in done.stdout and "GOP/s int8" in done.stdout
    lines = [line.split() for line in done.stdout.splitlines()]
    counts = [int(line[0]) for line in lines if len(line) == 13 and line[0].isdigit()]
    assert counts == [*TOKENS] * len(found["types"])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--kernels", "--ram", "1GiB"], "--ram has no effect"),
        (["--kernels", "--no-prefetch"], "--no-prefetch has no effect"),
        (["--kernels", "--new-tokens", "3"], "--new-tokens has no effect"),
        (["--kernels", "--repeat", "0"], "--repeat is 0"),
        (["--kernels", "--threads", "0"], "--threads is 0"),
        ([], "bench needs a MODEL, or --kernels"),
    ],
)
def test_what_cannot_take_effect_is_refused(argv: list[str], message: str) -> None:
    done = flexinfer("bench", *argv)
    assert done.returncode == 2 and message in done.stderr, done.stderr


def test_every_option_of_a_run_is_refused_beside_kernels() -> None:
    commands = next(a for a in parser()._actions if isinstance(a.choices, dict)).choices
    known = {action.dest: action.default for action in commands["bench"]._actions}
    heeded = {"help", "model", "repeat", "kernels", "child", "threads", "json", "verbose", "quiet"}
    assert {name: known[name] for name in known if name not in heeded} == OF_MODELS
