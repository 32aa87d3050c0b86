"""The choice of strategies: a toy worked out by hand, and every choice against trying all."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import BudgetError, OptionError
from flexinfer.memory.ledger import Category
from flexinfer.models.shapes import named_shape
from flexinfer.planner.choice import BASELINES, Candidate, Chooser
from flexinfer.planner.disk import Disk
from flexinfer.planner.estimator import Cost
from flexinfer.planner.hardware import (
    AttentionRates,
    Device,
    Hardware,
    Host,
    Link,
)
from flexinfer.planner.phases import LayerTimes, Phase, PhaseSums, estimate_phase
from flexinfer.planner.planner import Workload, make_plan
from flexinfer.planner.presets import PRESETS
from flexinfer.planner.strategies import OBJECTIVES, Placing, Tiers, split
from flexinfer.planner.tiers import DEVICE_OTHER_BYTES, Load
from flexinfer.units import GiB, MiB

# Seconds per byte or per operation that make a sum of powers of ten legible.
MACHINE = Hardware(
    "toy",
    "file",
    Disk({1: 10.0}),
    Host(100.0, {}, (AttentionRates(64, 1, 1.0, 1.0),)),
    Device(1000, 1000.0, {}, Link(50.0), Link(25.0)),
)
LAYER = LayerTimes(
    host=Cost(0.0, 4.0),
    device=Cost(0.5, 0.0),
    weight_bytes=400,
    cache_read_bytes=100,
    cache_new_bytes=50,
)
FOUR = Phase((((LAYER,) * 4),), (100,))


@pytest.mark.parametrize(
    ("device_layers", "tiers", "share", "seconds", "limit"),
    [
        (0, Tiers(), 0.0, 16.0, "host memory"),
        (0, Tiers(), 0.5, 80.0, "disk"),  # 800 bytes of 1,600 at 10 a second
        (4, Tiers(), 0.0, 40.0, "link"),  # 500 bytes a layer at 50 a second
        (4, Tiers(0, 4), 0.0, 32.0, "link"),  # their cache is there: 400
        (4, Tiers(4, 0), 0.0, 8.0, "link"),  # written back: 50 at 25 a second
        (4, Tiers(4, 4), 0.0, 2.0, "device computing"),
        (2, Tiers(2, 2), 0.0, 8.0 + 2.0 + 1.0, "host memory"),  # the hidden state takes 2
        (3, Tiers(2, 1), 0.0, 4.0 + 2.0 + 10.0 + 2.0 + 0.5, "link"),
        (2, Tiers(2, 2), 0.5, 40.0, "disk"),  # half of the two layers on the host
    ],
)
def test_a_phase_by_hand(
    device_layers: int, tiers: Tiers, share: float, seconds: float, limit: str
) -> None:
    found = estimate_phase(FOUR, split(4, device_layers), tiers, share, MACHINE)
    assert found.seconds == pytest.approx(seconds)
    assert found.limit == limit
    assert PhaseSums(FOUR, MACHINE).seconds(device_layers, tiers, share) == pytest.approx(seconds)


def test_bytes_over_the_links_by_hand() -> None:
    found = estimate_phase(FOUR, split(4, 3), Tiers(2, 1), 0.25, MACHINE)
    assert found.to_device_bytes == 100 + 500 + 100  # hidden; weights and cache; cache alone
    assert found.to_host_bytes == 50 + 50
    assert found.disk_bytes == 0.25 * 800  # of the one on the host and the one that streams on
    assert found.link_share == pytest.approx((2.0 + 10.0 + 2.0) / found.seconds)


def test_names_and_tables_of_strategies() -> None:
    assert [split(3, m).name for m in range(4)] == ["cpu", "split(1)", "split(2)", "gpu-offload"]
    assert split(3, 1).processors == ("host", "host", "device")
    assert Placing(8, 2, 5, Tiers(6, 5)).host_layers == 6  # two are never needed on the host
    assert Placing(8, 8, 0, Tiers(6, 0)).host_layers == 8


costs = st.builds(Cost, st.floats(0, 9), st.floats(0, 9))
tables = st.builds(
    LayerTimes,
    host=costs,
    device=costs,
    weight_bytes=st.integers(1, 999),
    cache_read_bytes=st.floats(0, 999),
    cache_new_bytes=st.floats(0, 999),
)


@given(data=st.data(), share=st.floats(0, 1))
def test_sums_are_what_the_layers_give_and_least_is_no_more(
    data: st.DataObject, share: float
) -> None:
    count = data.draw(st.integers(1, 6))
    sweep = st.tuples(*[tables] * count)
    sweeps = data.draw(st.lists(sweep, min_size=1, max_size=3))
    phase = Phase(tuple(sweeps), (70,) * len(sweeps))
    tiers = Tiers(*(data.draw(st.integers(0, count)) for _ in range(2)))
    sums = PhaseSums(phase, MACHINE)
    for layers in range(count + 1):
        slow = estimate_phase(phase, split(count, layers), tiers, share, MACHINE)
        assert sums.seconds(layers, tiers, share) == pytest.approx(slow.seconds)
        assert sums.least(tiers) <= slow.seconds * (1 + 1e-9)


# --- whole models ---

LOAD = Load(512, 128, 640)
OPT, LLAMA = named_shape("opt-30b"), named_shape("llama-2-7b", "Q4_0")


def chooser(shape=LLAMA, hardware=PRESETS["desktop"], load=LOAD, **budgets: int) -> Chooser:
    given = {"ram_bytes": 32 * GiB, "vram_bytes": 2 * GiB} | budgets
    return Chooser(shape.spec, shape.weights, hardware, load, **given)


def tried(choice: Chooser, objective: str) -> float:
    """The best score over every split, and every number of layers locked and cached that fits."""
    scores = []
    n = choice._n
    for prompt_m, m in product(range(n + 1), repeat=2):
        for locked, cached in product(range(n + 1), range(m + 1)):
            try:
                found = choice._evaluate("x", Placing(n, prompt_m, m, Tiers(locked, cached)))
            except BudgetError:
                continue
            scores.append(score(found, objective))
    return min(scores)


def score(found: Candidate, objective: str) -> float:
    values = {"ttft": found.ttft_s, "tpot": found.tpot_s, "throughput": 1 / found.tokens_per_s}
    return values.get(objective, found.latency_s)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(
    ("prompt", "new", "vram_mib", "ram_gib"),
    [(32, 64, 1200, 8), (2000, 8, 1200, 8), (600, 64, 2500, 8), (600, 64, 1200, 2)],
)
def test_nothing_that_was_tried_beats_the_choice(
    objective: str, prompt: int, new: int, vram_mib: int, ram_gib: int
) -> None:
    """Six layers, so that all can be tried. Locking fewer or caching fewer never helps."""
    spec = replace(LLAMA.spec, layers=LLAMA.spec.layers[:6])
    matrices = tuple(m for m in LLAMA.weights.matrices if m.layer < 6)
    shape = replace(LLAMA, spec=spec, weights=replace(LLAMA.weights, matrices=matrices))
    load = Load(prompt, new, prompt + new)
    budgets = {"vram_bytes": vram_mib * MiB, "ram_bytes": ram_gib * GiB // 2}
    choice = chooser(shape, PRESETS["laptop"], load, **budgets)
    found = choice.choose(objective)
    assert score(found, objective) == pytest.approx(tried(choice, objective), rel=1e-9)


@settings(max_examples=25)
@given(
    st.integers(1, 3000),
    st.integers(1, 300),
    st.sampled_from([1, 2, 8, 32]),
    st.integers(0, 24 * 1024),
    st.integers(6, 64 * 1024),
)
def test_a_choice_fits_its_budgets_and_beats_every_baseline(
    prompt: int, new: int, sequences: int, vram_mib: int, ram_mib: int
) -> None:
    load = Load(prompt, new, prompt + new, sequences)
    choice = chooser(load=load, vram_bytes=vram_mib * MiB, ram_bytes=ram_mib * MiB)
    candidates = []
    for name in BASELINES:
        try:
            candidates.append(choice.baseline(name))
        except BudgetError:
            continue
    if not candidates:
        with pytest.raises(BudgetError, match="of device memory do not hold"):
            choice.choose()
        return
    best = choice.choose()
    for found in (best, *candidates):
        assert sum(found.device_parts.values()) <= vram_mib * MiB
        assert sum(found.host_parts.values()) <= ram_mib * MiB
        assert found.ttft_s > 0 and found.tpot_s > 0 and 0 <= found.streamed_share <= 1
        assert best.latency_s <= found.latency_s * (1 + 1e-9)


def test_the_papers_baselines_are_what_they_say() -> None:
    machine = PRESETS["icl-a100"]
    choice = chooser(OPT, machine, vram_bytes=40 * GiB, ram_bytes=250 * GiB)
    found = {name: choice.baseline(name) for name in BASELINES}
    layers = len(OPT.spec.layers)
    names = {n: (c.placing.prefill.name, c.placing.decode.name) for n, c in found.items()}
    assert names["flexgen"] == names["flexgen-opt"] == ("gpu-offload", "gpu-offload")
    assert names["cpu-only"] == ("cpu", "cpu")
    static = found["splitgen"].placing
    assert static.prefill == static.decode and 0 < static.decode_layers < layers
    assert static.tiers == Tiers(static.decode_layers, static.decode_layers)
    assert found["splitgen"].decode.to_device_bytes == 4 * OPT.spec.dim  # the hidden state alone
    assert found["flexgen"].placing.tiers.device_locked == 0
    assert 0 < found["flexgen-opt"].placing.tiers.device_locked < layers
    weights = sum(m.tensor.size_bytes for m in OPT.weights.matrices)
    assert found["flexgen"].decode.to_device_bytes == weights
    assert machine.device is not None
    link = machine.device.to_device
    assert found["flexgen"].tpot_s == pytest.approx(link.seconds(weights, layers))


def test_when_all_fits_on_the_device_nothing_goes_over_the_link() -> None:
    found = chooser(vram_bytes=20 * GiB).choose()
    assert found.placing.decode.name == "gpu-offload" and found.decode.to_device_bytes == 0
    assert found.host_parts["locked"] == 0  # nor needs the host a copy


def test_without_a_device_the_host_computes() -> None:
    choice = chooser(hardware=PRESETS["mini-pc"], vram_bytes=8 * GiB)
    found = choice.choose()
    assert (found.placing.prefill.name, found.placing.decode.name) == ("cpu", "cpu")
    assert found.device_parts == {} and found.decode.limit == "host memory"
    with pytest.raises(OptionError, match="mini-pc has none"):
        choice.baseline("flexgen")
    with pytest.raises(OptionError, match="'luck'"):
        choice.baseline("luck")


def test_less_memory_than_weights_streams_from_disk() -> None:
    small = chooser(hardware=PRESETS["mini-pc"], ram_bytes=3 * GiB).choose()
    assert 0 < small.streamed_share < 1 and small.decode.limit == "disk"
    weights = sum(m.tensor.size_bytes for m in LLAMA.weights.matrices)
    assert small.decode.disk_bytes == pytest.approx(small.streamed_share * weights)
    assert small.host_parts["locked"] == pytest.approx((1 - small.streamed_share) * weights, abs=1)


def test_a_prompts_cache_moves_to_the_processor_that_decodes() -> None:
    """A short prompt is quickest where its layers are, a long one on the device."""
    choice = chooser(
        OPT, PRESETS["icl-a100"], Load(100, 64, 164, 16), vram_bytes=40 * GiB, ram_bytes=250 * GiB
    )
    tiers = Tiers(10, 10)
    moved = choice._evaluate("x", Placing(48, 4, 10, tiers)).hand_over_s
    one_layer = 16 * 100 * 2 * OPT.spec.dim * 2
    assert moved == pytest.approx(6 * one_layer / (0.8 * 31.5e9) + 10e-6)
    back = choice._evaluate("x", Placing(48, 12, 10, tiers))
    assert back.hand_over_s == 0 and back.prefill.to_host_bytes == 2 * one_layer


def test_the_device_keeps_some_memory_for_its_runtime() -> None:
    found = chooser(vram_bytes=6 * GiB).choose("tpot")
    assert found.device_parts["runtime"] == DEVICE_OTHER_BYTES


def test_tiers_count_what_the_plan_of_a_run_counts() -> None:
    """Host memory but for weights, ring and process: the allocator's sizes, by category."""
    load = Load(700, 68, 768)
    tiers = chooser(load=load).baseline("cpu-only").host_parts
    plan = make_plan(
        LLAMA.spec,
        LLAMA.weights,
        Workload(700, 68, 768),
        PRESETS["desktop"],
        budget_bytes=32 * GiB,
        base_bytes={Category.INTERPRETER: 0, Category.TOKENIZER: 0},
    )
    for category in (Category.VECTORS, Category.KV_CACHE, Category.ACTIVATIONS, Category.LOGITS):
        assert tiers[str(category)] == plan.parts[category]
    assert tiers["locked"] == plan.placement.locked_bytes


@settings(max_examples=40)
@given(
    st.integers(1, 3000),
    st.integers(1, 200),
    st.integers(700, 3000),
    st.integers(1, 6),
    st.sampled_from(OBJECTIVES),
    st.sampled_from([1e7, 1e9, 1e11]),
)
def test_nothing_is_passed_over_too_early(
    prompt: int, new: int, vram_mib: int, sequences: int, objective: str, link: float
) -> None:
    """Three layers: every split of both phases with what the device may hold, without a bound."""
    spec = replace(LLAMA.spec, layers=LLAMA.spec.layers[:3])
    matrices = tuple(m for m in LLAMA.weights.matrices if m.layer < 3)
    shape = replace(LLAMA, spec=spec, weights=replace(LLAMA.weights, matrices=matrices))
    load = Load(prompt, new, prompt + new, sequences)
    laptop = PRESETS["laptop"]
    assert laptop.device
    machine = replace(laptop, device=replace(laptop.device, to_device=Link(link)))
    choice = chooser(shape, machine, load, vram_bytes=vram_mib * MiB)
    best = min(
        score(choice._evaluate("x", replace(option, prefill_layers=layers)), objective)
        for option in choice._decode_options()
        for layers in range(4)
        if choice._memory.device_fits(replace(option, prefill_layers=layers))
    )
    assert score(choice.choose(objective), objective) == pytest.approx(best, rel=1e-9)
