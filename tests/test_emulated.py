"""The emulated accelerator: the stand-in's bits, a real one's limits, and its label everywhere."""

import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import torch_tools
from cli_tools import flexinfer
from device_tools import Bench
from factory import make_gguf
from flexinfer.errors import BudgetError, FlexInferError, OptionError
from flexinfer.executor.device import open_device
from flexinfer.executor.model import Model, open_model
from flexinfer.ops.torch_emulated import EmulatedDevice
from flexinfer.planner.estimator import Work, device_layer
from flexinfer.planner.hardware import Link
from flexinfer.planner.machines import emulated_device, find_hardware
from flexinfer.planner.presets import PRESETS
from flexinfer.planner.sizes import KV_TYPES
from flexinfer.units import MiB
from test_device_run import NEW, PROMPT, forced
from torch_tools import MemoryMeter

assert torch_tools  # one thread
FAST = emulated_device("emulated:small@100")
MACHINE = """
[disk]
bytes_per_s = 1e9
[host]
memory_bytes_per_s = 1e9
[host.kernels.any]
ops_per_s = 1e9
[device]
memory_bytes = "1GiB"
memory_bytes_per_s = 3e9
[device.ops_per_s]
any = 8e9
[device.to_device]
bytes_per_s = 2e8
"""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Model:
    path: Path = tmp_path_factory.mktemp("emulated") / "llama.gguf"
    make_gguf(path, "llama", block_type="Q4_0", num_hidden_layers=3)
    return open_model(path)


def emulated(bench: Bench, rates: object = FAST) -> Bench:
    bench.opened = EmulatedDevice("emulated:test", rates, "int8")  # type: ignore[arg-type,assignment]
    return bench


@pytest.mark.parametrize("layers", [(3, 3), (3, 0), (0, 3), (2, 1)])
def test_tokens_are_the_stand_ins_at_every_budget(llama: Model, layers: tuple[int, int]) -> None:
    real = Bench(llama, len(PROMPT), len(NEW))
    bench = emulated(Bench(llama, len(PROMPT), len(NEW)))
    both = [bench.split(n) for n in layers]
    ample, tight = bench.device_plan(*both), bench.tightest(*both)
    with real.run(ample) as llm:
        expected = forced(llm)
    for device, (share, prefetch) in itertools.product(
        (ample, tight), ((1.0, True), (0.3, True), (0.3, False))
    ):
        with bench.run(device, share, prefetch) as llm:
            assert np.array_equal(forced(llm), expected)
            assert llm.stats.emulated and llm.stats.device == "emulated:test"


def test_memory_stays_below_what_is_planned(llama: Model) -> None:
    bench = emulated(Bench(llama, len(PROMPT), len(NEW)))
    for layers, tight in (((3, 3), True), ((3, 3), False), ((2, 1), True)):
        both = [bench.split(n) for n in layers]
        device = bench.tightest(*both) if tight else bench.device_plan(*both)
        with MemoryMeter() as meter, bench.run(device, 0.5) as llm:
            forced(llm)
        assert 0.5 * device.total_bytes < meter.peak_bytes <= device.total_bytes


def test_no_sweep_takes_less_than_its_products_and_transfers(llama: Model) -> None:
    rates = replace(FAST, memory_bytes_per_s=20e6, to_device=Link(10e6, 1e-3))
    bench = emulated(Bench(llama, len(PROMPT), len(NEW)), rates)
    whole = bench.split(3)
    weights = [m.tensor for m in llama.weights.matrices if m.layer >= 0]
    work = Work(1, len(PROMPT) + 1, KV_TYPES["f16"])
    products_s = sum(
        device_layer(
            llama.spec, i, [t for t in weights if f"blk.{i}." in t.name], rates, work
        ).total_s
        for i in range(3)
    )
    link_s = sum(t.size_bytes for t in weights) / rates.to_device.bytes_per_s
    assert products_s > 0.005 and link_s > 0.01
    for device, least_s in (
        (bench.device_plan(whole, whole), products_s),
        (bench.tightest(whole, whole), max(link_s, products_s)),
    ):
        with bench.run(device) as llm:
            started = time.perf_counter()
            forced(llm)
            sweeps_s = (1 + len(NEW)) * least_s
            assert time.perf_counter() - started >= sweeps_s - least_s  # a ring's worth is ahead


def test_a_capped_memory_gives_no_more() -> None:
    device = EmulatedDevice("emulated:test", replace(FAST, memory_bytes=4 * MiB))
    first = device.arena(3 * MiB)
    with pytest.raises(BudgetError, match=str(2 * MiB)):
        device.arena(2 * MiB)
    assert device.free_bytes == MiB
    del first
    assert device.free_bytes == 4 * MiB


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("emulated:", "no machine"),
        ("emulated:mini-pc", "no accelerator"),
        ("emulated:nowhere", "nowhere"),
        ("emulated:small@0", "'0'"),
        ("emulated:small@-1", "'-1'"),
        ("emulated:small@٢", "'٢'"),
        ("emulated:small@1_0", "'1_0'"),
        ("emulated:laptop@fast", "'fast'"),
        ("emulated:laptop@1e-9", "its link there, 12.6 a second, is not within 1e\\+06"),
        ("emulated:laptop@1e300", "its link there, inf a second"),
        ("emulated:missing.toml", "missing.toml"),
    ],
)
def test_what_cannot_be_emulated_is_refused(name: str, said: str) -> None:
    with pytest.raises(FlexInferError, match=said) as refused:
        open_device(name)
    assert refused.value.hint


def test_a_latency_that_keeps_threads_waiting_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "far.toml"
    path.write_text(MACHINE + "latency_s = 3600\n")
    with pytest.raises(OptionError, match=r"a latency of 3600 s is more than 0\.1"):
        emulated_device(f"emulated:{path}")


def test_an_unknown_machine_is_named_beside_those_that_can_be_emulated() -> None:
    for name in ("emulated:abacus", "emulated:mini-pc", "emulated:"):
        with pytest.raises(OptionError, match=f"--device {name}") as refused:
            emulated_device(name)
        assert "emulated:small, emulated:icl-a100" in str(refused.value.hint)
        assert "mini-pc" not in str(refused.value.hint)
    with pytest.raises(OptionError, match="unknown --device 'abacus'") as refused:
        open_device("abacus")
    assert "emulated:small" in str(refused.value.hint)
    for name in ("small", "emulated:small"):
        with pytest.raises(OptionError, match="an accelerator without a host") as refused:
            find_hardware(name)
        assert "--device emulated:small" in str(refused.value.hint)


def test_an_abandoned_sweep_waits_for_nothing(llama: Model) -> None:
    """Minutes of products and transfers are charged; none of them is waited for."""
    rates = replace(FAST, ops_per_s=dict.fromkeys(FAST.ops_per_s, 1e3), to_host=Link(1.0))
    bench = emulated(Bench(llama, len(PROMPT), len(NEW)), rates)
    with bench.run(bench.device_plan(bench.split(3), bench.split(3))) as llm:
        ops = llm.session.executor._device.ops
        ops._pace.charge(600)
        with ThreadPoolExecutor(1) as thread:
            moving = thread.submit(ops.cached, 0, 0, 4, ops.reached())
            ops.abandon_sweep()
            keys, values = moving.result(60)
        assert keys.shape == values.shape and len(keys) == 4


def test_presets_and_files_are_emulated_at_any_scale(tmp_path: Path) -> None:
    laptop = PRESETS["laptop"].device
    assert laptop is not None and emulated_device("emulated:laptop") == laptop
    slow = emulated_device("emulated:laptop@0.001")
    assert slow.to_device.bytes_per_s == pytest.approx(laptop.to_device.bytes_per_s / 1000)
    assert slow.ops_per_s["Q4_0"] == pytest.approx(laptop.ops_per_s["Q4_0"] / 1000)
    assert slow.memory_bytes_per_s == pytest.approx(laptop.memory_bytes_per_s / 1000)
    assert (slow.memory_bytes, slow.to_host.latency_s) == (laptop.memory_bytes, 10e-6)
    path = tmp_path / "m@2.toml"
    path.write_text(MACHINE + "latency_s = 1e-3\n")
    assert emulated_device(f"emulated:{path}").to_device == Link(2e8, 1e-3)
    assert emulated_device(f"emulated:{path}@0.5").to_host == Link(1e8, 1e-3)


def test_everything_printed_says_emulated(llama: Model) -> None:
    common = ["--device", "emulated:small@100", "--vram", "64MiB", "--ram", "3GiB"]
    path = str(llama.path)
    plan = flexinfer("plan", path, "--prompt-tokens", "8", "--new-tokens", "2", *common)
    assert plan.returncode == 0 and "emulated" in plan.stdout, plan.stderr
    facts = flexinfer("plan", path, "--prompt-tokens", "8", "--new-tokens", "2", "--json", *common)
    run = flexinfer("run", path, "a", "--raw", "--max-tokens", "2", "--json", *common)
    assert run.returncode == 0, run.stderr
    assert run.stderr.count("emulated:small@100") >= 1 and "no real accelerator" in run.stderr
    bench = ["bench", path, "--prompt-tokens", "8", "--new-tokens", "2", "--repeat", "1", *common]
    table, figures = flexinfer(*bench), flexinfer(*bench, "--json")
    assert "emulated" in table.stdout
    for each in (facts.stdout, run.stdout, json.dumps(json.loads(figures.stdout)["runs"][0])):
        said = json.loads(each)
        assert said["emulated"] is True and said["device"] == "emulated:small@100"
