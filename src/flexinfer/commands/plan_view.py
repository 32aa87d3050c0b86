"""The plan as text: the budget by category, a map of what stays, and the prediction."""

from collections.abc import Iterator
from dataclasses import dataclass

from flexinfer.commands.figures import aligned, bar, bytes_rate, count, duration, share, tokens_rate
from flexinfer.commands.summary import idle_device, limit
from flexinfer.executor.model import Model
from flexinfer.executor.setup import Planned
from flexinfer.memory.budget import usable_bytes
from flexinfer.units import format_bytes

MAP_CELLS = 64  # more layers than that share cells
EIGHTHS = "·▁▂▃▄▅▆▇█"  # none, some, …, all locked


@dataclass(frozen=True, slots=True)
class Share:
    """What of a layer, or of the head (layer -1), stays and what streams."""

    layer: int
    role: str
    locked_bytes: int
    streamed_bytes: int


def shares(planned: Planned) -> list[Share]:
    """Of every matrix, in order of use; rows in the file's form, without padding."""
    return [
        Share(
            placed.matrix.layer,
            placed.matrix.role,
            placed.locked_rows * placed.matrix.tensor.row_bytes,
            (placed.matrix.tensor.rows - placed.locked_rows) * placed.matrix.tensor.row_bytes,
        )
        for placed in planned.plan.placement.matrices
    ]


def show(model: Model, planned: Planned, *, pinned: bool = True) -> list[str]:
    """Lines of at most about 100 columns."""
    spec = model.spec
    return [
        f"{model.path.name}: {spec.architecture}, {count(len(spec.layers), 'layer')}, "
        f"{count(planned.context.threads, 'thread')}",
        "",
        *_budget(planned, pinned),
        "",
        *_residency(planned),
        *_device(planned),
        "",
        *_prediction(planned),
    ]


def _budget(planned: Planned, pinned: bool) -> Iterator[str]:
    plan, available = planned.plan, planned.available
    usable = usable_bytes(plan.budget_bytes)
    entries = [(str(category).replace("_", " "), size) for category, size in plan.parts.items()]
    entries.append(("unused", usable - plan.total_bytes))
    entries.append(("margin", plan.budget_bytes - usable))
    yield (
        f"budget {format_bytes(plan.budget_bytes)} of {format_bytes(available.bytes)} available "
        f"({available.where})" + ("" if pinned else ", not pinned: RLIMIT_MEMLOCK is too low")
    )
    rows = [
        (f"  {name}", format_bytes(size), share(size, plan.budget_bytes)) for name, size in entries
    ]
    for line, (_, size) in zip(aligned(rows), entries, strict=True):
        yield f"{line}  {bar(size, plan.budget_bytes)}".rstrip()


def _residency(planned: Planned) -> Iterator[str]:
    plan = planned.plan
    placement = plan.placement
    whole = placement.locked_bytes + placement.streamed_bytes
    locked = f"weights {format_bytes(whole)}: {format_bytes(placement.locked_bytes)} locked"
    if not placement.requests:
        yield f"{locked}, nothing streams"
        return
    yield (
        f"{locked} ({share(placement.locked_bytes, whole)}), "
        f"{format_bytes(placement.streamed_bytes)} streamed per sweep "
        f"in {count(len(placement.requests), 'read')}, "
        f"{'prefetched' if plan.prefetch else 'read when needed'}"
    )
    yield (
        f"ring of {plan.ring.slots} slots of {format_bytes(plan.ring.slot_bytes)}, "
        f"{count(plan.io_threads, 'read')} at once; "
        f"policy {plan.policy}; {EIGHTHS[-1]} locked, ▄ half locked, {EIGHTHS[0]} streamed"
    )
    yield from residency_map(shares(planned))


def _device(planned: Planned) -> Iterator[str]:
    plan = planned.plan.device
    if planned.device is None:
        return
    yield ""
    if plan is None:
        yield idle_device(planned.device.name)
        return
    yield (
        f"device {planned.device.name}: prefill {plan.prefill.name}, decode {plan.decode.name}, "
        f"{count(len(plan.locked_layers), 'layer')} locked there, "
        f"{count(len(plan.cached_layers), 'cache')} kept there"
    )
    entries = [(str(c).replace("_", " "), size) for c, size in plan.parts.items()]
    entries.append(("unused", plan.vram_bytes - plan.total_bytes))
    rows = [
        (f"  {name}", format_bytes(size), share(size, plan.vram_bytes)) for name, size in entries
    ]
    for line, (_, size) in zip(aligned(rows), entries, strict=True):
        yield f"{line}  {bar(size, plan.vram_bytes)}".rstrip()


def residency_map(parts: list[Share]) -> list[str]:
    """A line per kind of matrix, a cell per layer (or per few); the head last."""
    layers = 1 + max(part.layer for part in parts)
    per_cell = -(-layers // MAP_CELLS)
    rows = []
    for role in dict.fromkeys(part.role for part in parts):
        cells: dict[int, list[int]] = {}
        for part in parts:
            if part.role == role:
                cell = cells.setdefault(max(part.layer, 0) // per_cell, [0, 0])
                cell[0] += part.locked_bytes
                cell[1] += part.locked_bytes + part.streamed_bytes
        locked, whole = (sum(cell[at] for cell in cells.values()) for at in (0, 1))
        drawn = "".join(_cell(*cell) for cell in cells.values())
        rows.append((f"  {role}", format_bytes(whole), share(locked, whole), drawn))
    texts = aligned([row[:3] for row in rows])
    return [f"{text}  {row[3]}" for text, row in zip(texts, rows, strict=True)]


def _cell(locked: int, whole: int) -> str:
    """All and none are shown only for all and none."""
    if locked in (0, whole):
        return EIGHTHS[-1] if locked else EIGHTHS[0]
    return EIGHTHS[min(7, max(1, round(8 * locked / whole)))]


def _prediction(planned: Planned) -> Iterator[str]:
    plan, prediction, hardware = planned.plan, planned.prediction, planned.hardware
    load = plan.workload
    yield (
        f"measured   disk {bytes_rate(hardware.disk_bytes_per_s)} "
        f"with {count(hardware.disk.depth, 'read')} at once, "
        f"memory {bytes_rate(hardware.memory_bytes_per_s)}"
    )
    if hardware.source == "probe":
        yield "           in a short look: `flexinfer profile MODEL` knows better"
    yield (
        f"workload   {count(load.prompt_tokens, 'prompt token')} in "
        f"{count(plan.prompt_sweeps, 'sweep')} of at most {plan.sweep_tokens}, "
        f"{load.new_tokens} new, context {load.context_tokens} ({plan.kv_type})"
    )
    yield (
        f"predicted  locking {duration(prediction.load_s)}, "
        f"first token {duration(prediction.ttft_s)}, "
        f"then {tokens_rate(1 / prediction.tpot_s)}"
    )
    yield f"bound      {tokens_rate(1 / prediction.bound_tpot_s)}, by {limit(planned)}"
