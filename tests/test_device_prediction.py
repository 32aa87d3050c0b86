"""What a plan with a device promises, where all but one thing takes next to no time."""

from dataclasses import replace
from pathlib import Path

import pytest

from device_tools import Bench
from factory import make_gguf
from flexinfer.executor.model import open_model
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.ledger import Category
from flexinfer.planner.device import DevicePlan, layer_cache_bytes
from flexinfer.planner.device_prediction import predict_device
from flexinfer.planner.hardware import Device, Glue, Link
from flexinfer.planner.planner import Prediction
from flexinfer.planner.sizes import Sizes
from flexinfer.units import GiB

PROMPT, NEW = 20, 5
AT_ONCE = Link(1e18)
RATES = Device(GiB, 1e18, {k.name: 1e18 for k in BLOCK_TYPES.values()}, AT_ONCE, AT_ONCE)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    path: Path = tmp_path_factory.mktemp("prediction") / "llama.gguf"
    make_gguf(path, "llama", block_type="F32", num_hidden_layers=3)
    return Bench(open_model(path), PROMPT, NEW)


def promised(bench: Bench, part: DevicePlan, rates: Device, prefetch: bool = True) -> Prediction:
    host = replace(bench.planned.hardware.host, glue=Glue())
    hardware = replace(bench.planned.hardware, host=host, device=rates)
    model, plan = bench.model, bench.plan(part, prefetch=prefetch)
    return predict_device(model.spec, model.weights.matrices, plan, hardware)


def weight_bytes(bench: Bench) -> int:
    return sum(m.tensor.size_bytes for m in bench.model.weights.matrices)


@pytest.mark.parametrize("prefetch", [True, False])
def test_what_streams_takes_the_link(bench: Bench, prefetch: bool) -> None:
    whole = bench.split(3)
    part = bench.device_plan(whole, whole, lock=False)
    slow = replace(RATES, to_device=Link(1e6, 1e-3))
    found = promised(bench, part, slow, prefetch)
    transfers = sum(
        -(-m.tensor.size_bytes // part.slot_bytes) for m in bench.model.weights.matrices
    )
    spec = bench.model.spec
    # A row of the hidden state, and a head's angles, too.
    crossing_s = 4 * (spec.dim + spec.head_dim) / 1e6 + 2e-3
    expected_s = weight_bytes(bench) / 1e6 + transfers * 1e-3 + crossing_s
    assert found.tpot_s == pytest.approx(expected_s, rel=1e-3)


def test_locked_layers_take_their_products(bench: Bench) -> None:
    whole = bench.split(3)
    part = bench.device_plan(whole, whole)
    assert len(part.locked_layers) == 3
    found = promised(bench, part, replace(RATES, memory_bytes_per_s=1e6))
    assert found.tpot_s == pytest.approx(weight_bytes(bench) / 1e6, rel=0.05)  # the cache, too


def test_asking_for_a_layer_is_the_least_that_it_takes(bench: Bench) -> None:
    whole = bench.split(3)
    part = bench.device_plan(whole, whole)
    assert promised(bench, part, replace(RATES, layer_s=2.0)).tpot_s == pytest.approx(6.0)


def test_interleaved_weights_take_what_putting_them_in_order_takes(bench: Bench) -> None:
    whole = bench.split(3)
    part = bench.device_plan(whole, whole, lock=False)
    found = promised(bench, part, replace(RATES, streamed_bytes_per_s=1e6))
    assert found.tpot_s == pytest.approx(weight_bytes(bench) / 1e6, rel=1e-3)


def test_rows_from_the_disk_take_what_unpacking_them_takes(bench: Bench) -> None:
    part = bench.device_plan(bench.split(1), bench.split(1))
    model, plan = bench.model, bench.plan(part, host_share=0.2)
    hardware = replace(bench.planned.hardware, device=RATES)
    slow = {
        name: replace(rates, streamed_bytes_per_s=1e5)
        for name, rates in hardware.host.kernels.items()
    }
    slower = replace(hardware, host=replace(hardware.host, kernels=slow))
    before, after = (
        predict_device(model.spec, model.weights.matrices, plan, each).tpot_s
        for each in (hardware, slower)
    )
    streamed_bytes = plan.placement.streamed_bytes
    assert streamed_bytes > 0
    assert after - before == pytest.approx(streamed_bytes / 1e5, rel=0.02)


def test_a_cache_that_moves_between_the_phases_counts_once(bench: Bench) -> None:
    slow = replace(RATES, to_device=Link(1e6))
    part = bench.device_plan(bench.split(0), bench.split(2))
    assert len(part.locked_layers) == len(part.cached_layers) == 2
    stays = bench.device_plan(bench.split(2), bench.split(2))
    cache = layer_cache_bytes(Sizes(bench.model.spec, bench.model.weights, "f16"), 64)
    difference_s = promised(bench, part, slow).tpot_s - promised(bench, stays, slow).tpot_s
    assert difference_s == pytest.approx(2 * cache / 1e6 / (NEW - 1), rel=1e-3)


def test_what_is_new_goes_back_beside_the_computing(bench: Bench) -> None:
    part = bench.tightest(bench.split(3), bench.split(0))
    slow = replace(RATES, to_host=Link(1e3), layer_s=1.0)
    spec = bench.model.spec
    back_s = 3 * 2 * 2 * PROMPT * spec.kv_heads * spec.head_dim / 1e3
    logits_s = 4 * spec.vocab_size / 1e3
    ahead, serial = (promised(bench, part, slow, each).ttft_s for each in (True, False))
    assert ahead == pytest.approx(max(back_s, 3.0) + logits_s, rel=1e-3)
    assert serial == pytest.approx(back_s + 3.0 + logits_s, rel=1e-3)


def test_caches_that_the_host_keeps_take_turns_in_two_spaces(bench: Bench) -> None:
    part = bench.tightest(bench.split(3), bench.split(3))
    assert part.shared_spaces == {0: 0, 1: 1, 2: 0}
    cache = layer_cache_bytes(Sizes(bench.model.spec, bench.model.weights, "f16"), 64)
    assert part.parts[Category.KV_CACHE] == 2 * cache
    one = bench.tightest(bench.split(1), bench.split(1))
    assert one.shared_spaces == {2: 0} and one.parts[Category.KV_CACHE] == cache
    kept = bench.device_plan(bench.split(3), bench.split(3))
    assert not kept.shared_spaces and kept.parts[Category.KV_CACHE] == 3 * cache
