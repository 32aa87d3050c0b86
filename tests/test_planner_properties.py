"""Whatever the model, the workload, the budget and the policy: what every plan keeps to."""

import re
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flexinfer.errors import BudgetError
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.budget import usable_bytes
from flexinfer.memory.ledger import Category, Ledger
from flexinfer.models.spec import Layer, ModelSpec
from flexinfer.planner.cutting import group_bytes, groups, request_bytes, total_locked_bytes
from flexinfer.planner.placement import BLOCK_BYTES, GROUP_ROWS
from flexinfer.planner.planner import Plan, Workload, make_plan
from flexinfer.planner.preservation import POLICIES
from flexinfer.planner.ring import MIN_SLOTS
from flexinfer.planner.sizes import KV_TYPES
from flexinfer.streaming.reader import enclosing_bytes
from flexinfer.units import MiB
from test_planner import MACHINE as TOY_MACHINE
from test_planner import SPEC, toy

KINDS = [t for t in BLOCK_TYPES.values() if t.has_kernel]
HOST = TOY_MACHINE.host
MACHINE = replace(
    TOY_MACHINE, host=replace(HOST, kernels={t.name: HOST.kernels["F32"] for t in KINDS})
)


@st.composite
def specs(draw: st.DrawFn) -> ModelSpec:
    """Head sizes that do not multiply to the width, windows, rows that fill no group."""
    head_dim, kv_heads = draw(st.sampled_from([64, 128, 256])), draw(st.integers(1, 3))
    windows = draw(st.lists(st.sampled_from([None, 64, 700]), min_size=1, max_size=5))
    return replace(
        SPEC,
        layers=tuple(Layer(SPEC.layers[0].rope, window) for window in windows),
        dim=256 * draw(st.integers(1, 5)),
        ffn_dim=256 * draw(st.integers(1, 12)),
        heads=kv_heads * draw(st.integers(1, 3)) * (256 // head_dim),
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=draw(st.integers(1, 40_000)),
    )


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    prompt, new = draw(st.integers(0, 5000)), draw(st.integers(0, 500))
    return Workload(prompt, new, max(1, prompt + new + draw(st.integers(0, 100))))


@st.composite
def problems(draw: st.DrawFn) -> dict[str, object]:
    spec = draw(specs())
    base = {c: draw(st.integers(0, 3000 * MiB)) for c in (Category.INTERPRETER, Category.TOKENIZER)}
    return {
        "spec": spec,
        "weights": toy(spec, draw(st.sampled_from(KINDS))),
        "workload": draw(workloads()),
        "base_bytes": base,
        "peak_bytes": draw(st.sampled_from([0, 0, 2000 * MiB])),
        "kv_type": draw(st.sampled_from(sorted(KV_TYPES))),
        "policy": draw(st.sampled_from(sorted(POLICIES))),
    }


def plan(problem: dict[str, object], budget_bytes: int) -> Plan:
    return make_plan(**problem, hardware=MACHINE, budget_bytes=budget_bytes)


def minimum(problem: dict[str, object]) -> int:
    """As the refusal of a budget of nothing says."""
    try:
        plan(problem, 0)
    except BudgetError as refused:
        found = re.search(r"below the minimum of .*? \((\d+) bytes\)", str(refused))
        assert found and refused.hint
        suggested = re.match(r"give --ram (\d+)MiB", refused.hint)
        assert suggested and int(suggested[1]) * MiB >= int(found[1])
        return int(found[1])
    raise AssertionError("nothing was enough")


@given(problems())
@settings(max_examples=60)
def test_the_minimum_that_is_told_works_and_a_byte_less_does_not(
    problem: dict[str, object],
) -> None:
    least = minimum(problem)
    check(problem, plan(problem, least), least)
    try:
        plan(problem, least - 1)
    except BudgetError as refused:
        assert f"({least} bytes)" in str(refused)
    else:
        raise AssertionError("a byte less was enough")


@given(problems(), st.floats(0, 1.1))
@settings(max_examples=150)
def test_a_plan_spends_what_it_may_and_no_more(problem: dict[str, object], share: float) -> None:
    """`share` of the way from the minimum to all weights locked, and beyond."""
    matrices = problem["weights"].matrices
    budget = minimum(problem) + int(share * (total_locked_bytes(matrices) + 400 * MiB))
    check(problem, plan(problem, budget), budget)


@given(problems(), st.floats(0, 1))
@settings(max_examples=40)
def test_more_memory_never_streams_more(problem: dict[str, object], share: float) -> None:
    """Where prompt and ring take the same, to within what a request rounds."""
    problem |= {"policy": "rows"}
    matrices = problem["weights"].matrices
    budget = minimum(problem) + int(share * total_locked_bytes(matrices))
    less, more = plan(problem, budget), plan(problem, budget + 64 * MiB)
    assume(less.sweep_tokens == more.sweep_tokens and less.ring.slots == more.ring.slots)
    slack = request_bytes(matrices)
    assert more.placement.streamed_bytes <= less.placement.streamed_bytes + slack


def check(problem: dict[str, object], plan: Plan, budget_bytes: int) -> None:
    """The budget is kept, each row is locked or streamed, and each request fits its slot."""
    matrices = problem["weights"].matrices
    usable = usable_bytes(budget_bytes)
    assert plan.total_bytes <= usable <= budget_bytes
    assert all(size >= 0 for size in plan.parts.values())
    ledger = Ledger(budget_bytes)
    for category, size in plan.parts.items():
        ledger.charge(category, size)  # raises where it would go over
    assert ledger.totals == {c: plan.parts[c] for c in Category if c in plan.parts}
    assert ledger.remaining_bytes >= budget_bytes - usable
    ring = plan.ring
    assert ring.slots >= MIN_SLOTS and ring.slots > ring.held
    assert plan.parts[Category.RING] == ring.slots * ring.slot_bytes == ring.size_bytes
    assert plan.parts[Category.LOCKED] == plan.placement.locked_bytes
    assert 1 <= plan.sweep_tokens <= max(1, problem["workload"].prompt_tokens)
    for request in plan.placement.requests:
        assert request.size_bytes <= request_bytes(matrices)
        assert enclosing_bytes(request.offset_bytes, request.size_bytes) <= ring.slot_bytes
    assert ring.slot_bytes % BLOCK_BYTES == 0
    for matrix, placed in zip(matrices, plan.placement.matrices, strict=True):
        assert placed.matrix is matrix
        rows, row_bytes = matrix.tensor.rows, matrix.tensor.row_bytes
        at = placed.locked_rows
        for segment in placed.segments:
            assert segment.row == at and segment.rows > 0 and at % GROUP_ROWS == 0
            request = plan.placement.requests[segment.request]
            where = request.offset_bytes + segment.start_bytes
            assert where == matrix.tensor.offset_bytes + at * row_bytes
            assert segment.start_bytes + segment.rows * row_bytes <= request.size_bytes
            at += segment.rows
        assert at == rows
        streamed = sum(segment.rows for segment in placed.segments) * row_bytes
        padding = groups(matrix) * group_bytes(matrix) - matrix.tensor.size_bytes
        assert placed.locked_bytes + streamed - matrix.tensor.size_bytes in (0, padding)
    all_fits = total_locked_bytes(matrices) <= plan.placement.locked_bytes
    assert all_fits == (not plan.placement.requests)
