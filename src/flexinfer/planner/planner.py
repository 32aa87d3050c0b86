"""The plan: from a model, a budget and a workload to what is locked, what streams, and how fast
that will be.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from flexinfer.errors import BudgetError, OptionError
from flexinfer.memory.arena import round_up
from flexinfer.memory.budget import usable_bytes
from flexinfer.memory.ledger import Category
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import Matrix, ModelWeights
from flexinfer.planner.cutting import most_held, request_bytes, total_locked_bytes
from flexinfer.planner.device import DevicePlan
from flexinfer.planner.estimator import SweepEstimate, Work, by_layer, estimate_sweep, stage_costs
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.placement import BLOCK_BYTES, Placement
from flexinfer.planner.preservation import place
from flexinfer.planner.ring import MAX_SLOTS, MIN_SLOTS, RingPlan, choose_slots
from flexinfer.planner.sizes import KV_TYPES, Sizes
from flexinfer.planner.tiles import TOKEN_TILE
from flexinfer.units import MiB, format_bytes

MAX_SWEEP_TOKENS = 2048
MIN_SWEEP_TOKENS = 32
UNSTEADY_BYTES = 2 * MiB  # what Python and its libraries hold differs by less from start to start
ALIGNING_BYTES = 64 * 1024  # between regions; less than the margin by far


@dataclass(frozen=True, slots=True)
class Workload:
    """What the run is for: the sizes of caches and the prediction follow from it."""

    prompt_tokens: int
    new_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds expected for the workload; `bound_tpot_s` is the physical limit of a decode sweep."""

    ttft_s: float
    tpot_s: float
    bound_tpot_s: float
    load_s: float
    decode: SweepEstimate  # what a token is made of


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every byte goes. `parts` sums to at most the usable budget."""

    budget_bytes: int
    policy: str
    prefetch: bool
    workload: Workload
    sweep_tokens: int
    kv_type: str
    ring: RingPlan
    placement: Placement
    parts: Mapping[Category, int]
    device: DevicePlan | None = None

    @property
    def io_threads(self) -> int:
        """Reads at once while a sweep streams."""
        return self.ring.threads if self.prefetch else 1

    @property
    def prompt_sweeps(self) -> int:
        return -(-self.workload.prompt_tokens // self.sweep_tokens)

    @property
    def total_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def arena_bytes(self) -> int:
        """What is allocated in one block: all but what the process held before, and room to
        align it.
        """
        held = (Category.INTERPRETER, Category.TOKENIZER, Category.STAND_IN)
        return sum(n for c, n in self.parts.items() if c not in held) + ALIGNING_BYTES


def make_plan(
    spec: ModelSpec,
    weights: ModelWeights,
    workload: Workload,
    hardware: Hardware,
    *,
    budget_bytes: int,
    base_bytes: Mapping[Category, int],
    peak_bytes: int = 0,
    kv_type: str = "f16",
    policy: str = "rows",
    prefetch: bool = True,
    prefetch_window: int | None = None,
    io_threads: int | None = None,
    device: DevicePlan | None = None,
) -> Plan:
    """Divide `budget_bytes`; `base_bytes` is what the process holds already, `peak_bytes` the most
    it held while it opened the model. What `device` holds alone, the host does not.

    The ring is `prefetch_window` slots, or what pays on `hardware` (see `planner.ring`). Raises
    BudgetError with the minimum and its parts where the budget does not suffice, OptionError for a
    window or I/O threads that cannot take effect.
    """
    every, cached = weights.matrices, None  # a device's layers take their time, too
    wanted = min(max(workload.prompt_tokens, 1), MAX_SWEEP_TOKENS)
    least, step = min(wanted, MIN_SWEEP_TOKENS), 1
    if device:
        weights = replace(weights, matrices=device.host_matrices(weights.matrices))
        cached = device.host_cached_layers
        wanted = min(wanted, device.sweep_tokens)
        least, step = min(wanted, TOKEN_TILE), TOKEN_TILE
    sizes = Sizes(spec, weights, kv_type, cached)
    usable = usable_bytes(budget_bytes)
    matrices, all_locked = weights.matrices, total_locked_bytes(weights.matrices)
    ring = _least_ring(matrices, prefetch_window, io_threads, hardware)

    def fixed(sweep_tokens: int) -> dict[Category, int]:
        return {**base_bytes, **sizes.parts(workload.context_tokens, sweep_tokens)}

    def room(sweep_tokens: int) -> int:
        return usable - ring.size_bytes - sum(fixed(sweep_tokens).values())

    if room(least) < 0 or budget_bytes < peak_bytes:
        _refuse(budget_bytes, fixed(least), ring.size_bytes, peak_bytes)
    sweep_tokens = wanted
    if room(wanted) < all_locked:  # a sweep's memory competes with weights: at most half is its own
        tokens = range(least, wanted + 1, step)
        sweep_tokens = tokens[
            max(0, bisect_right(tokens, -(room(0) // 2), key=lambda n: -room(n)) - 1)
        ]
    parts = fixed(sweep_tokens)
    free = usable - sum(parts.values())
    placement = place(policy, matrices, min(free - ring.size_bytes, all_locked))
    if not placement.requests:
        for name, value in (("--prefetch-window", prefetch_window), ("--io-threads", io_threads)):
            if value is not None:
                raise OptionError(
                    f"{name} cannot take effect: all weights are locked, nothing streams",
                    "leave it out, or give less --ram",
                )
    elif prefetch and prefetch_window is None:
        count = (
            1 if workload.new_tokens > 1 else sweep_tokens
        )  # of the sweeps that there are most of
        context = max(workload.prompt_tokens + workload.new_tokens // 2, count)
        work = Work(count, context, sizes.kv_block_type)
        costs = stage_costs(spec, by_layer(every), hardware.host, work)
        compute_s = [cost.total_s for cost in costs]
        streamed_bytes = placement.stage_bytes(len(spec.layers))
        most = max(ring.slots, min(MAX_SLOTS, free // ring.slot_bytes))
        ring = ring.with_slots(choose_slots(compute_s, streamed_bytes, hardware.disk, ring, most))
        placement = place(policy, matrices, free - ring.size_bytes)
    parts[Category.RING] = ring.size_bytes
    parts[Category.LOCKED] = placement.locked_bytes
    return Plan(
        budget_bytes,
        policy,
        prefetch,
        workload,
        sweep_tokens,
        kv_type,
        ring,
        placement,
        parts,
        device,
    )


def _least_ring(
    matrices: Sequence[Matrix], window: int | None, io_threads: int | None, hardware: Hardware
) -> RingPlan:
    """The slots asked for, or the fewest that work and let as many threads read as asked for."""
    size, held = request_bytes(matrices), most_held(matrices, request_bytes(matrices))
    if window is not None and window < held:
        raise OptionError(
            f"--prefetch-window is {window}, but this model uses up to {held} reads at once",
            f"give {held + 1} or more",
        )
    return RingPlan(
        window or max(MIN_SLOTS, held + (io_threads or 1)),
        round_up(size, BLOCK_BYTES) + 2 * BLOCK_BYTES,  # ragged ends
        held,
        io_threads or hardware.disk.depth,
    )


def _refuse(
    budget_bytes: int, parts: Mapping[Category, int], ring_bytes: int, peak_bytes: int
) -> NoReturn:
    needed = sum(parts.values()) + ring_bytes
    minimum = needed
    while usable_bytes(minimum) < needed:
        minimum += needed - usable_bytes(minimum)
    listed = [(c.value.replace("_", " "), n) for c, n in parts.items() if n]
    listed += [(Category.RING.value, ring_bytes), ("margin", minimum - needed)]
    if peak_bytes > minimum:
        listed.append(("opening the model", peak_bytes - minimum))
        minimum = peak_bytes
    text = ", ".join(f"{name} {format_bytes(n)}" for name, n in listed)
    raise BudgetError(
        f"a budget of {format_bytes(budget_bytes)} ({budget_bytes} bytes) is below the minimum of "
        f"{format_bytes(minimum)} ({minimum} bytes): {text}",
        f"give --ram {-(-(minimum + UNSTEADY_BYTES) // MiB)}MiB or more, "
        "or a shorter context (--ctx)",
    )


def predict(spec: ModelSpec, plan: Plan, hardware: Hardware) -> Prediction:
    """TTFT and TPOT of the plan's workload on `hardware`, all of it on the host.

    The ring is full when the prompt comes; from then on every sweep reads all that it streams.
    """
    load = plan.workload

    def sweep(tokens: int, context: int, read_before_bytes: int = 0) -> SweepEstimate:
        work = Work(tokens, context, KV_TYPES[plan.kv_type])
        return estimate_sweep(
            spec,
            plan.placement,
            hardware,
            work,
            ring=plan.ring if plan.prefetch else None,
            read_before_bytes=read_before_bytes,
        )

    ring_bytes = plan.parts[Category.RING] if plan.prefetch else 0
    ttft = 0.0
    for start in range(0, load.prompt_tokens, plan.sweep_tokens):
        tokens = min(plan.sweep_tokens, load.prompt_tokens - start)
        ttft += sweep(tokens, start + tokens, 0 if start else ring_bytes).total_s
    decode = sweep(1, load.prompt_tokens + load.new_tokens // 2)
    return Prediction(
        ttft,
        decode.total_s,
        decode.bound_s,
        plan.placement.locked_bytes / hardware.disk_bytes_per_s,
        decode,
    )
