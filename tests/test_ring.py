"""The choice of reader depth and ring, counted by hand; whatever is chosen, the budget holds."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flexinfer.errors import BudgetError, OptionError
from flexinfer.formats.checkpoint import TensorInfo
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.budget import usable_bytes
from flexinfer.models.weights import Matrix
from flexinfer.planner.cutting import most_held, request_bytes
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import Glue
from flexinfer.planner.planner import Plan, Workload, predict
from flexinfer.planner.preservation import POLICIES, place
from flexinfer.planner.ring import MAX_SLOTS, MIN_SLOTS, RingPlan, choose_slots, sweep_seconds
from flexinfer.units import MiB
from test_planner import MACHINE, SLOT, SPEC, planned

EVEN, LATE, ALTERNATING = [100] * 8, [0] * 4 + [200] * 4, [0, 200] * 4
EARLY, MIDDLE, UNEVEN = LATE[::-1], LATE[2:] + LATE[:2], [0, 300, 0, 0, 100, 50, 350, 0]
STEADY = Disk({1: 100})
PAUSING = Disk({1: 100}, busy=0.5, pause_s=1)  # a second at 200 bytes/s, a second of nothing


def ring(slots: int, slot_bytes: int = 100, depth: int = 1) -> RingPlan:
    return RingPlan(slots, slot_bytes, held=1, depth=depth)


# --- how many reads at once ---


@pytest.mark.parametrize(
    ("rates", "depth"),
    [
        ({1: 95, 2: 99, 4: 100}, 2),
        ({1: 94, 2: 95, 4: 100}, 2),
        ({1: 50, 2: 94, 4: 100}, 4),
        ({1: 100, 2: 90, 4: 80}, 2),  # one would wait for its thread amid computing
        ({3: 70}, 3),
        ({1: 70}, 1),
    ],
)
def test_the_least_depth_near_the_best_is_chosen(rates: dict[int, float], depth: int) -> None:
    disk = Disk(rates)
    assert (disk.depth, disk.bytes_per_s) == (depth, rates[depth])


def test_a_depth_that_was_not_tried_is_as_good_as_the_one_below() -> None:
    disk = Disk({2: 200, 4: 300})
    assert [disk.at(depth) for depth in (1, 2, 3, 4, 9)] == [200, 200, 200, 300, 300]


# --- how long a sweep takes ---


@pytest.mark.parametrize(
    ("slots", "seconds"),
    [
        (1, 16),  # reads when computing is done: 8 and 8 seconds
        (2, 12),  # half of the stages read for 2 seconds, half compute for 1
        (3, 11),  # a second's reading goes ahead, once a sweep
        (5, 9),
        (6, 8),  # all that computing leaves time for
        (7, 8),
    ],
)
def test_a_sweep_that_streams_late_gains_each_slot_once(slots: int, seconds: float) -> None:
    assert sweep_seconds([1] * 8, LATE, STEADY, ring(slots)) == seconds


def test_a_sweep_that_alternates_gains_a_slot_at_each_turn() -> None:
    times = [sweep_seconds([1] * 8, ALTERNATING, STEADY, ring(slots)) for slots in (1, 2, 3, 4)]
    assert times == [16, 12, 8, 8]


def test_an_even_sweep_needs_one_slot_beside_the_one_in_use() -> None:
    for compute_s, seconds in ((0.5, 8), (1, 8), (2, 16)):
        for slots in (2, 9):
            assert sweep_seconds([compute_s] * 8, EVEN, STEADY, ring(slots)) == seconds


@pytest.mark.parametrize(
    ("compute_s", "lost_s"), [(0.1, 0.04), (0.25, 0.1), (0.5, 0.2), (1.0, 0.4), (4.0, 0.4)]
)
def test_what_reading_and_computing_cost_each_other_is_as_measured_between_and_beyond(
    compute_s: float, lost_s: float
) -> None:
    disk = replace(STEADY, contention=((0.25, 0.1), (1, 0.4)))
    for slots in (2, 9):
        found = sweep_seconds([compute_s] * 8, EVEN, disk, ring(slots))
        assert found == pytest.approx(8 * (max(compute_s, 1) + lost_s))
    serial = sweep_seconds([compute_s] * 8, EVEN, disk, ring(1))
    assert serial == pytest.approx(8 * (compute_s + 1))


def test_side_by_side_is_no_slower_than_one_after_the_other() -> None:
    disk = replace(STEADY, contention=((0.5, 1.0),))
    for streamed in (EVEN, LATE):
        found = sweep_seconds([0.5] * 8, streamed, disk, ring(2))
        assert found == pytest.approx(8 * (0.5 + 1))
    assert sweep_seconds([0.5] * 8, [0] * 8, disk, ring(2)) == 4


def test_a_ring_of_few_slots_keeps_fewer_reads_in_flight() -> None:
    disk = Disk({1: 100, 2: 200, 4: 400})
    times = [sweep_seconds([0.1] * 8, EVEN, disk, ring(slots, depth=4)) for slots in (2, 3, 5, 9)]
    assert times == [8, 4, 2, 2]
    assert [ring(slots, depth=4).threads for slots in (1, 3, 9)] == [1, 3, 4]


@pytest.mark.parametrize("streamed", [LATE, EARLY, MIDDLE, UNEVEN])
def test_every_sweep_is_as_long_as_the_second(streamed: list[int]) -> None:
    """The same recursion, for as many sweeps as it takes."""
    for compute_s in (0.5, 0.99, 1.01, 1.5):
        for carry in range(0, 1000, 50):
            ahead, ends = 0.0, [0.0]
            for _ in range(200):
                seconds = 0.0
                for needed in streamed:
                    took = max(compute_s, (needed - ahead) / 100)
                    ahead = min(carry, ahead + 100 * took - needed)
                    seconds += took
                ends.append(ends[-1] + seconds)
            found = sweep_seconds([compute_s] * 8, streamed, STEADY, ring(2 + carry // 50, 50))
            assert found == pytest.approx(ends[-1] - ends[-2])


@pytest.mark.parametrize(("slots", "seconds"), [(2, 8), (3, 16 / 3), (4, 4), (9, 4)])
def test_computing_lives_on_the_carry_while_the_disk_pauses(slots: int, seconds: float) -> None:
    """It takes 100 bytes a second. Of two, one is a pause: without a carry half the time is lost,
    with 50 bytes a quarter, with 100 none.
    """
    assert sweep_seconds([1] * 4, [100] * 4, PAUSING, ring(slots, 50)) == pytest.approx(seconds)


def test_where_computing_is_faster_than_reading_ever_is_a_pause_cannot_be_bridged() -> None:
    for slots in (2, 9):
        assert sweep_seconds([0.5] * 4, [100] * 4, PAUSING, ring(slots)) == pytest.approx(4)


# --- how many slots ---


@pytest.mark.parametrize(
    ("streamed", "slots"),
    [
        (EVEN, 2),
        (LATE, 2),  # one more gains its bytes once, and costs them once
        (ALTERNATING, 3),  # 12 seconds with 2; 9 with 3, which stream 100 bytes more; 10 with 4
        ([0, 0, 200, 200] * 2, 4),  # 12; 11; 10; 11: the stretches take two slots
    ],
)
def test_a_slot_has_to_gain_what_it_would_have_locked(streamed: list[int], slots: int) -> None:
    assert choose_slots([1] * 8, streamed, STEADY, ring(2), 9) == slots


@pytest.mark.parametrize(
    ("compute_s", "slots"),
    [
        (1.0, 4),  # 8 seconds with 2, 5.54 with 3, 5 with 4, 5.5 with 5
        (4.0, 3),  # takes 25 bytes a second: so many are needed in a pause
        (0.5, 2),  # takes 200 bytes a second, as fast as the disk between pauses
    ],
)
def test_pauses_pay_for_slots_where_reading_can_get_ahead(compute_s: float, slots: int) -> None:
    assert choose_slots([compute_s] * 4, [100] * 4, PAUSING, ring(2, 50), 9) == slots


def test_a_ring_is_as_large_as_there_is_room_for() -> None:
    assert choose_slots([1] * 8, ALTERNATING, STEADY, ring(2), 2) == 2


# --- the plan ---


def test_pauses_too_short_to_count_cost_nothing() -> None:
    steady = sweep_seconds(EVEN, EVEN, STEADY, ring(4))
    for pause_s in (5e-324, 1e-300, 1e-9):
        disk = replace(PAUSING, pause_s=pause_s)
        assert sweep_seconds(EVEN, EVEN, disk, ring(4)) == steady


SLOW_PAUSES = Disk({1: 100 * MiB, 2: 160 * MiB, 4: 160 * MiB}, busy=0.5, pause_s=0.05)


def test_the_plan_chooses_both() -> None:
    """F32 is multiplied at 800 MiB/s: 88 MiB in 0.11 s, in which 21.6 MiB stream, 196 MiB/s.

    Between pauses the disk gives 320 MiB/s. So in 0.05 s, which is as long as a pause, reading
    gets 6.2 MiB ahead: five slots of 1.38 MiB, beside one in use and two being read.
    """
    plan = planned(146 * MiB)
    assert (plan.ring.slots, plan.ring.held, plan.io_threads) == (4, 1, 1)
    plan = planned(146 * MiB, hardware=replace(MACHINE, disk=SLOW_PAUSES))
    assert plan.io_threads == 2
    assert plan.ring.slots == 8
    assert plan.parts["ring"] == 8 * SLOT
    assert plan.placement.streamed_bytes == pytest.approx(21.6 * MiB, rel=0.01)
    serial = planned(146 * MiB, hardware=replace(MACHINE, disk=SLOW_PAUSES), prefetch=False)
    assert (serial.ring.slots, serial.io_threads) == (4, 1)


def test_what_is_asked_for_is_planned() -> None:
    plan = planned(120 * MiB, prefetch_window=9, io_threads=3)
    assert (plan.ring.slots, plan.io_threads) == (9, 3)
    assert planned(120 * MiB, io_threads=6).ring.slots == 7  # and one in use
    assert planned(120 * MiB, prefetch_window=1).io_threads == 1


def test_what_is_asked_for_counts_towards_the_minimum() -> None:
    assert planned(80 * MiB)
    with pytest.raises(BudgetError, match=r"ring 13\.8 MiB"):
        planned(80 * MiB, prefetch_window=10)
    with pytest.raises(BudgetError, match=r"ring 12\.4 MiB"):
        planned(78 * MiB, io_threads=8)


def test_a_window_in_vain_is_an_error() -> None:
    for name, option in (("prefetch-window", "prefetch_window"), ("io-threads", "io_threads")):
        with pytest.raises(OptionError, match=f"--{name} cannot take effect: all weights"):
            planned(200 * MiB, **{option: 4})


def test_a_prediction_knows_the_ring() -> None:
    """One layer stays; the other, 36 MiB, and the head, 16 MiB, wait for the disk, but for what
    was read during the first: three slots of five.
    """
    rates = replace(MACHINE.host.kernels["F32"], streamed_bytes_per_s=800.0 * MiB)
    host = replace(MACHINE.host, kernels={"F32": rates}, glue=Glue())
    hardware = replace(MACHINE, disk=Disk({1: 400 * MiB}), host=host)
    small, large = (
        planned(134 * MiB, hardware=hardware, policy="layer", prefetch_window=slots)
        for slots in (2, 5)
    )
    times = [predict(SPEC, p, hardware).tpot_s for p in (small, large)]
    computing = 36 / 800 + 2 * 114 * 1024 * 2 / (
        1000 * MiB
    )  # the cache of 114 positions, read twice
    assert times[0] == pytest.approx(computing + (36 + 16) / 400, rel=2e-3)
    assert times[0] - times[1] == pytest.approx(3 * SLOT / (400 * MiB), rel=1e-3)


disks = st.builds(
    Disk,
    st.dictionaries(st.sampled_from([1, 2, 4]), st.floats(1e6, 1e10), min_size=1),
    busy=st.floats(0.05, 1),
    pause_s=st.floats(0, 0.2),
)


@settings(max_examples=50)
@given(
    budget_mib=st.integers(70, 220),
    disk=disks,
    policy=st.sampled_from(list(POLICIES)),
    prefetch=st.booleans(),
    window=st.none() | st.integers(1, 40),
    io_threads=st.none() | st.integers(1, 16),
    new_tokens=st.integers(0, 30),
)
def test_no_ring_takes_a_plan_over_its_budget(
    budget_mib: int,
    disk: Disk,
    policy: str,
    prefetch: bool,
    window: int | None,
    io_threads: int | None,
    new_tokens: int,
) -> None:
    hardware = replace(MACHINE, disk=disk)
    try:
        plan: Plan = planned(
            budget_mib * MiB,
            Workload(50, new_tokens, 80),
            hardware=hardware,
            policy=policy,
            prefetch=prefetch,
            prefetch_window=window,
            io_threads=io_threads,
        )
    except BudgetError as error:
        needed = int(str(error).split("minimum of ")[1].split("(")[1].split()[0])
        assert needed > budget_mib * MiB
        return
    except OptionError as error:
        assert "nothing streams" in str(error)
        return
    assert plan.total_bytes <= usable_bytes(plan.budget_bytes)
    assert plan.parts["ring"] == plan.ring.size_bytes
    assert 1 <= plan.io_threads <= plan.ring.slots
    assert window in (None, plan.ring.slots)
    least = max(MIN_SLOTS, 1 + (io_threads or 1))
    assert window or least <= plan.ring.slots <= max(least, MAX_SLOTS)
    prediction = predict(SPEC, plan, hardware)
    assert prediction.bound_tpot_s <= prediction.tpot_s * (1 + 1e-9)


# --- what computing holds at once ---

KIND = BLOCK_TYPES[2]
ROLES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def in_file_order(order: Sequence[int], rows: Sequence[int]) -> tuple[Matrix, ...]:
    """Two layers whose matrices lie in the file in another order than they are used in."""
    matrices = []
    for layer in range(2):
        sizes = [rows[i] * KIND.row_bytes(4096) for i in order]
        ends = list(accumulate(sizes, initial=layer << 30))
        for use, role in enumerate(ROLES):
            at = order.index(use)
            shape = (rows[use], 4096)
            tensor = TensorInfo(f"{layer}.{role}", shape, KIND, Path("m"), ends[at], sizes[at])
            matrices.append(Matrix(tensor, layer, role))
    return tuple(matrices)


def held_at_once(matrices: tuple[Matrix, ...], policy: str, locked_bytes: int) -> int:
    """The most slots in use, counted along a sweep."""
    placement = place(policy, matrices, locked_bytes)
    uses = [s.request for placed in placement.matrices for s in placed.segments]
    most = 0
    for at in range(len(uses)):
        most = max(most, sum(r in uses[: at + 1] and r in uses[at:] for r in set(uses)))
    return most


@given(
    order=st.permutations(range(7)),
    rows=st.lists(st.integers(1, 30).map(lambda n: 16 * n), min_size=7, max_size=7),
    policy=st.sampled_from(list(POLICIES)),
    share=st.floats(0, 1),
)
def test_no_more_is_held_than_was_planned_for(
    order: list[int], rows: list[int], policy: str, share: float
) -> None:
    matrices = in_file_order(order, rows)
    total = sum(m.tensor.size_bytes for m in matrices)
    most = most_held(matrices, request_bytes(matrices))
    assert held_at_once(matrices, policy, int(share * total)) <= most


def test_matrices_read_together_are_held_together() -> None:
    """q and output lie side by side, k and v behind them: a request each, both in use at k."""
    matrices = in_file_order((0, 3, 1, 2, 4, 5, 6), [16 * 10] * 7)
    assert request_bytes(matrices) == MiB  # two of 360 KiB, not three
    assert most_held(matrices, MiB) == held_at_once(matrices, "rows", 0) == 2
    in_order = in_file_order(range(7), [16 * 10] * 7)
    assert most_held(in_order, MiB) == held_at_once(in_order, "rows", 0) == 1
