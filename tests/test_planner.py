"""The planner on a toy model of two layers: every part of every plan is counted by hand."""

from dataclasses import replace
from pathlib import Path

import pytest

from flexinfer.errors import BudgetError, OptionError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import Layer, ModelSpec, Rope
from flexinfer.models.weights import Matrix, ModelWeights
from flexinfer.planner.disk import Disk
from flexinfer.planner.estimator import (
    Cost,
    Work,
    by_layer,
    host_layer,
    overlapped,
    unpacking_s,
    visible_keys,
    visited_keys,
)
from flexinfer.planner.hardware import AttentionRates, Glue, Hardware, Host, KernelRates
from flexinfer.planner.planner import Plan, Workload, make_plan, predict
from flexinfer.planner.sizes import Sizes
from flexinfer.units import MiB

F32, Q4_0 = BLOCK_TYPES[0], BLOCK_TYPES[2]
SPEC = ModelSpec(
    architecture="toy",
    layers=(Layer(Rope(10000.0, 128, "half")),) * 2,
    dim=1024,
    ffn_dim=2048,
    heads=8,
    kv_heads=4,
    head_dim=128,
    vocab_size=4096,
    context_tokens=8192,
    norm_eps=1e-5,
    activation="silu",
    attention_scale=1.0,
    tied_head=True,
)
ROWS = {"q": 1024, "k": 512, "v": 512, "output": 1024, "gate": 2048, "up": 2048, "down": 1024}
WEIGHTS = 2 * 36 * MiB + 16 * MiB  # F32: 4, 2, 2, 4, 8, 8, 8 MiB a layer, and the head
VECTORS = 5 * 4096  # two norms a layer, and the last
LOGITS = 4 * 4096
KV_PAGE = 2 * 64 * 4 * 128 * 2  # K and V, positions, heads, values, f16
TOKEN = 4 * (1024 + 1024 + 2048 + 2 * 128) + 2048 // 32 * 52  # floats, and int8 with its scales
PLACES = 8 * 64  # what aligning the parts of the activations takes
SLOT = WEIGHTS // 64 + 2 * 4096  # a sweep in 64 requests, each with ragged ends
BASE = {Category.INTERPRETER: 40 * MiB, Category.TOKENIZER: 10 * MiB}
MACHINE = Hardware(
    "toy",
    "file",
    Disk({1: MiB * 100}),
    Host(
        memory_bytes_per_s=MiB * 1000,
        kernels={
            "F32": KernelRates(
                bytes_per_s=MiB * 800,
                streamed_bytes_per_s=MiB * 400,
                ops_per_s=((1, MiB * 3200),),
            )
        },
        attention=(AttentionRates(128, 2, one_ops_per_s=MiB * 8192, many_ops_per_s=MiB * 4096),),
        glue=Glue(layer_s=1e-3, called_layer_s=1e-3, sweep_s=5e-3),
    ),
)
SHORT = Workload(100, 28, 128)
MARGIN = 16 * MiB


def toy(spec: ModelSpec = SPEC, kind: BlockType = F32) -> ModelWeights:
    """The weights of `spec`, one after the other in a file that need not be."""
    at = 4096

    def tensor(name: str, *shape: int, kind: BlockType = kind) -> TensorInfo:
        nonlocal at
        size = kind.row_bytes(shape[-1]) * (shape[0] if len(shape) > 1 else 1)
        info = TensorInfo(name, shape, kind, Path("toy.gguf"), at, size)
        at += size
        return info

    head = tensor("token_embd.weight", spec.vocab_size, spec.dim)
    matrices, vectors = [], {}
    shapes = {
        "attn_q": (spec.heads * spec.head_dim, spec.dim),
        "attn_k": (spec.kv_heads * spec.head_dim, spec.dim),
        "attn_v": (spec.kv_heads * spec.head_dim, spec.dim),
        "attn_output": (spec.dim, spec.heads * spec.head_dim),
        "ffn_gate": (spec.ffn_dim, spec.dim),
        "ffn_up": (spec.ffn_dim, spec.dim),
        "ffn_down": (spec.dim, spec.ffn_dim),
    }
    for layer in range(len(spec.layers)):
        for role, shape in shapes.items():
            matrices.append(Matrix(tensor(f"blk.{layer}.{role}.weight", *shape), layer, role))
        for name in (f"blk.{layer}.attn_norm.weight", f"blk.{layer}.ffn_norm.weight"):
            vectors[name] = tensor(name, spec.dim, kind=F32)
    vectors["output_norm.weight"] = tensor("output_norm.weight", spec.dim, kind=F32)
    return ModelWeights(head, vectors, (*matrices, Matrix(head, -1, "output")))


def planned(budget_bytes: int, workload: Workload = SHORT, **more: object) -> Plan:
    base = {"hardware": MACHINE, "budget_bytes": budget_bytes, "base_bytes": BASE} | more
    return make_plan(SPEC, toy(), workload, **base)


def held(tokens: int, pages: int) -> dict[Category, int]:
    """All but weights and ring."""
    return BASE | {
        Category.VECTORS: VECTORS,
        Category.KV_CACHE: 2 * pages * KV_PAGE,
        Category.ACTIVATIONS: tokens * TOKEN + PLACES,
        Category.LOGITS: LOGITS,
    }


def test_all_of_it_fits() -> None:
    plan = planned(200 * MiB)
    ring = {Category.RING: 4 * SLOT, Category.LOCKED: WEIGHTS}
    assert plan.parts == held(tokens=100, pages=2) | ring
    assert plan.placement.requests == ()
    assert (plan.sweep_tokens, plan.prompt_sweeps, plan.ring.slots) == (100, 1, 4)


def test_the_last_byte_of_what_fits() -> None:
    enough = sum(held(tokens=100, pages=2).values()) + 4 * SLOT + WEIGHTS + MARGIN
    assert not planned(enough).placement.requests
    less = planned(enough - 1)
    assert less.placement.streamed_bytes > 0
    assert less.placement.locked_bytes < WEIGHTS


def test_what_is_left_is_locked_to_within_a_group_of_rows() -> None:
    plan = planned(120 * MiB)
    assert (plan.ring.slots, plan.ring.slot_bytes) == (4, SLOT)
    assert plan.parts == held(tokens=100, pages=2) | {
        Category.RING: 4 * SLOT,
        Category.LOCKED: plan.placement.locked_bytes,
    }
    left = 120 * MiB - MARGIN - plan.total_bytes
    assert 0 <= left < 16 * 4 * 2048  # sixteen rows of the widest matrix
    assert plan.placement.locked_bytes + plan.placement.streamed_bytes == WEIGHTS


def test_a_long_prompt_takes_at_most_half_of_the_memory_for_weights() -> None:
    long = Workload(2000, 64, 2064)  # 33 pages of 64
    room = 104 * MiB - sum(held(tokens=0, pages=33).values()) + PLACES - 4 * SLOT
    tokens = (room // 2 - PLACES) // TOKEN
    assert tokens == 1015
    plan = planned(120 * MiB, long)
    assert (plan.sweep_tokens, plan.prompt_sweeps) == (1015, 2)
    assert plan.parts[Category.ACTIVATIONS] == tokens * TOKEN + PLACES
    assert planned(400 * MiB, long).sweep_tokens == 2000
    assert planned(400 * MiB, Workload(5000, 10, 5010)).sweep_tokens == 2048


def test_a_prompt_of_2048_tokens_is_one_sweep_of_a_7b_model_in_a_quarter_of_it() -> None:
    spec = replace(
        SPEC,
        layers=SPEC.layers[:1] * 32,
        dim=4096,
        ffn_dim=11008,
        heads=32,
        kv_heads=32,
        vocab_size=32000,
    )
    weights = toy(spec, Q4_0)
    file_bytes = sum(m.tensor.size_bytes for m in weights.matrices)
    rates = MACHINE.host.kernels["F32"]
    plan = make_plan(
        spec,
        weights,
        Workload(2048, 1, 2049),
        replace(MACHINE, host=replace(MACHINE.host, kernels={"Q4_0": rates})),
        budget_bytes=file_bytes // 4 + 1_800_000_000,  # 1.1 GB is the cache of this context
        base_bytes=BASE,
    )
    assert plan.sweep_tokens == 2048 and plan.placement.requests


@pytest.mark.parametrize("base_mib", [50, 1500, 1600, 9000])
def test_the_minimum_is_accepted_and_a_byte_less_is_not(base_mib: int) -> None:
    """Above 1,600 MiB the margin is a hundredth of the budget."""
    base = {Category.INTERPRETER: (base_mib - 10) * MiB, Category.TOKENIZER: 10 * MiB}
    needed = sum((held(tokens=32, pages=2) | base).values()) + 4 * SLOT
    with pytest.raises(BudgetError) as refused:
        planned(100, base_bytes=base)
    minimum = int(str(refused.value).split("minimum of ")[1].split("(")[1].split()[0])
    assert minimum - max(16 * MiB, minimum // 100) == needed
    plan = planned(minimum, base_bytes=base)
    assert plan.total_bytes == needed
    assert (plan.sweep_tokens, plan.placement.locked_bytes) == (32, 0)
    assert plan.placement.streamed_bytes == WEIGHTS
    with pytest.raises(BudgetError, match=f"below the minimum of .* \\({minimum} bytes\\)"):
        planned(minimum - 1, base_bytes=base)


def test_a_refusal_lists_the_parts_of_the_minimum() -> None:
    with pytest.raises(BudgetError) as refused:
        planned(60 * MiB)
    assert str(refused.value) == (
        "a budget of 60 MiB (62914560 bytes) is below the minimum of 72.7 MiB (76231168 bytes): "
        "interpreter 40 MiB, tokenizer 10 MiB, vectors 20 KiB, kv cache 512 KiB, "
        "activations 648 KiB, logits 16 KiB, ring 5.53 MiB, margin 16 MiB"
    )
    assert refused.value.hint == "give --ram 75MiB or more, or a shorter context (--ctx)"


def test_what_opening_the_model_took_for_a_moment_is_part_of_the_minimum() -> None:
    assert planned(90 * MiB, peak_bytes=90 * MiB)
    with pytest.raises(
        BudgetError, match=r"minimum of 90 MiB .*, opening the model 17\.3 MiB"
    ) as refused:
        planned(90 * MiB - 1, peak_bytes=90 * MiB)
    assert refused.value.hint and "--ram 92MiB" in refused.value.hint


def test_cache_types_and_policies() -> None:
    single = planned(200 * MiB, kv_type="f32")
    assert single.parts[Category.KV_CACHE] == 2 * 2 * 2 * KV_PAGE
    blocks = planned(200 * MiB, kv_type="q8_0")
    assert blocks.parts[Category.KV_CACHE] == 2 * 2 * KV_PAGE * 17 // 32  # 8.5 bits for 16
    with pytest.raises(OptionError, match="q3") as refused:
        planned(200 * MiB, kv_type="q3")
    assert refused.value.hint == "known: f16, f32, q8_0"
    with pytest.raises(OptionError, match="luck"):
        planned(200 * MiB, policy="luck")


def test_a_head_that_blocks_do_not_fill_has_no_q8_0() -> None:
    odd = replace(SPEC, head_dim=80)
    assert Sizes(odd, toy(odd), "f16").kv_page_bytes() == KV_PAGE * 80 // 128
    with pytest.raises(OptionError, match=r"blocks of 32 values.* head_dim of 80"):
        Sizes(odd, toy(odd), "q8_0")


# --- how long it takes ---

OVERHEAD_S = 2 * 1e-3 + 5e-3
KEY_OPS = 2 * 2 * 8 * 128  # of a query and a key: layers, multiply and add, heads, values
CACHE_BYTES = 2 * 2 * 4 * 128 * 2  # of one position: K and V, layers, heads, values, f16


@pytest.mark.parametrize(("kv_type", "halves"), [("f16", 1), ("f32", 2), ("q8_0", 17 / 32)])
def test_decoding_waits_for_the_slower_of_disk_and_memory(kv_type: str, halves: float) -> None:
    cache = (100 + 14) * halves * CACHE_BYTES
    for budget_mib, prefetch in ((200, True), (120, True), (120, False)):
        plan = planned(budget_mib * MiB, prefetch=prefetch, kv_type=kv_type)
        streamed = plan.placement.streamed_bytes
        compute = OVERHEAD_S + WEIGHTS / (800 * MiB) + cache / (1000 * MiB)
        compute += streamed / (800 * MiB)  # in the file's layout it takes twice as long
        reading = streamed / (100 * MiB)
        assert (budget_mib == 200) == (reading == 0)
        prediction = predict(SPEC, plan, MACHINE)
        whole = max(compute, reading) if prefetch else compute + reading
        assert prediction.tpot_s == pytest.approx(whole)
        assert prediction.bound_tpot_s == pytest.approx(max(compute, reading))
        assert prediction.load_s == pytest.approx((WEIGHTS - streamed) / (100 * MiB))


def test_visible_keys_are_counted_one_by_one() -> None:
    for start, tokens, window in ((0, 5, None), (7, 3, None), (0, 9, 4), (2, 9, 4), (50, 6, 4)):
        seen = [min(p + 1, window or p + 1) for p in range(start, start + tokens)]
        assert visible_keys(start, tokens, window) == sum(seen)


def test_keys_are_visited_in_whole_tiles() -> None:
    for start, tokens, window in ((0, 5, None), (60, 9, None), (0, 300, 70), (129, 9, 64)):
        tiles = [
            p // 64 - max(0, p - (window or p + 1) + 1) // 64 + 1
            for p in range(start, start + tokens)
        ]
        assert visited_keys(start, tokens, window) == 64 * sum(tiles)


def test_a_prompt_takes_its_sweeps() -> None:
    """Layers work for every token of a sweep, the head for the last one alone."""
    plan = replace(planned(200 * MiB), sweep_tokens=60)
    layers, head = 72 * MiB, 16 * MiB
    seconds = 0.0
    for tokens, seen in ((60, 60), (40, 100)):
        operations = 2 * tokens * layers / 4  # a multiply and an add for each F32 weight
        assert operations / (3200 * MiB) > layers / (800 * MiB)
        seconds += OVERHEAD_S + operations / (3200 * MiB) + head / (800 * MiB)
        positions = range(seen - tokens, seen)
        keys = sum(64 * (p // 64 + 1) + p + 1 for p in positions)  # scores in tiles, then sums
        attention = 2 * keys * KEY_OPS / 2 / (4096 * MiB)
        seconds += max(seen * CACHE_BYTES / (1000 * MiB), attention)
    assert predict(SPEC, plan, MACHINE).ttft_s == pytest.approx(seconds)
    few = replace(plan, workload=Workload(2, 1, 64))  # reading the weights is what takes time
    expected = OVERHEAD_S + WEIGHTS / (800 * MiB) + 2 * CACHE_BYTES / (1000 * MiB)
    attention = 2 * (2 * 64 + 3) * KEY_OPS / 2 / (4096 * MiB)
    expected += max(0, attention - 2 * CACHE_BYTES / (1000 * MiB))
    assert predict(SPEC, few, MACHINE).ttft_s == pytest.approx(expected)


def test_a_prompt_finds_the_ring_full() -> None:
    """Its first sweep reads less by the ring, the others do not."""
    slow = replace(MACHINE, disk=Disk({1: MiB}))
    plan = planned(120 * MiB)
    streamed, ring = plan.placement.streamed_bytes, plan.parts[Category.RING]
    assert predict(SPEC, plan, slow).ttft_s == pytest.approx((streamed - ring) / MiB)
    two = replace(plan, sweep_tokens=50)
    assert predict(SPEC, two, slow).ttft_s == pytest.approx((2 * streamed - ring) / MiB)
    serial = replace(plan, prefetch=False)
    assert predict(SPEC, serial, slow).ttft_s > streamed / MiB


def test_each_read_that_is_waited_for_costs_computing_time() -> None:
    plan = replace(planned(120 * MiB), prefetch=False)
    waiting = replace(MACHINE, disk=replace(MACHINE.disk, wait_s=1e-3))
    more = predict(SPEC, plan, waiting).tpot_s - predict(SPEC, plan, MACHINE).tpot_s
    assert more == pytest.approx(1e-3 * len(plan.placement.requests))
    ahead = replace(plan, prefetch=True)
    assert predict(SPEC, ahead, waiting) == predict(SPEC, ahead, MACHINE)


def test_rows_as_in_the_file_take_longer_by_byte_and_by_group() -> None:
    rates = KernelRates(MiB * 1000, MiB * 250, ((1, 1e12),), streamed_group_s=1e-3)
    host = replace(MACHINE.host, kernels={"F32": rates})
    for placed in planned(120 * MiB).placement.matrices:
        rows = placed.matrix.tensor.rows - placed.locked_rows
        streamed_mib = rows * placed.matrix.tensor.row_bytes / MiB
        expected = streamed_mib * (1 / 250 - 1 / 1000) + rows / 16 * 1e-3
        assert unpacking_s(placed, host) == pytest.approx(expected)


def test_more_tokens_in_one_sweep_cost_as_measured_between_and_beyond() -> None:
    rates = KernelRates(1.0, 1.0, ((2, 40.0), (4, 80.0), (8, 80.0)))
    assert [rates.product_s(1, 10, n) for n in (1, 2, 3, 4, 6, 8, 16)] == pytest.approx(
        [0.5, 1.0, 1.0, 1.0, 1.5, 2.0, 4.0]
    )


def test_results_of_more_tokens_take_time_of_their_own() -> None:
    rates = KernelRates(1.0, 1.0, ((1, 40.0), (8, 80.0)), result_s=0.5)
    assert [rates.product_s(3, 10, n) for n in (1, 8, 16)] == pytest.approx(
        [1.5, 6.0 + 3 * 7 * 0.5, 12.0 + 3 * 15 * 0.5]
    )


def test_one_token_takes_what_was_measured_of_it() -> None:
    slower_at_eight = KernelRates(1.0, 1.0, ((1, 40.0), (8, 16.0)))
    times = [slower_at_eight.product_s(1, 10, n) for n in (1, 8)]
    assert times == pytest.approx([0.5, 10.0])
    # By arithmetic and by bytes one and the same: the memory's, however the two are rounded.
    assert overlapped(0.5 + 1e-12, 0.5) == Cost(memory_s=0.5 + 1e-12)
    assert overlapped(0.6, 0.5) == Cost(compute_s=0.6)


def test_many_tokens_make_their_calls_from_python() -> None:
    host = replace(MACHINE.host, glue=Glue(1e-3, 3e-3, replayed_tokens=16))
    layers = by_layer(toy().matrices)

    def layer_s(tokens: int) -> float:
        work = Work(tokens, tokens, F32)
        slow = host_layer(SPEC, 0, layers[0], host, work)
        plain = host_layer(SPEC, 0, layers[0], replace(host, glue=Glue()), work)
        return slow.total_s - plain.total_s

    assert [layer_s(n) for n in (1, 16, 17)] == pytest.approx([1e-3, 1e-3, 3e-3])
