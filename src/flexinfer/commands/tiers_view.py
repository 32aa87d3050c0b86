"""Strategies over several tiers, as text and as JSON: what each promises, what limits it, what lies
where, and what goes over the links.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flexinfer.commands.figures import aligned, bar, bytes_rate, count, duration, share, tokens_rate
from flexinfer.planner.choice import Candidate
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.phases import PhaseEstimate
from flexinfer.units import format_bytes

SIDES = {"host": "·", "device": "█"}


def show(
    title: str,
    hardware: Hardware,
    budgets: Mapping[str, int],
    candidates: Sequence[Candidate],
    chosen: Candidate,
) -> Iterator[str]:
    load = chosen.load
    yield title
    yield (
        f"workload   {count(load.prompt_tokens, 'prompt token')}, {load.new_tokens} new, "
        f"context {load.context_tokens}, {count(load.sequences, 'sequence')}"
    )
    yield from machine(hardware)
    yield ""
    rows = [("", "prefill", "decode", "TTFT", "TPOT", "in all", "limited by")]
    for c in candidates:
        mark = "→ " if c is chosen else "  "
        rows.append(
            (
                mark + c.name,
                c.placing.prefill.name,
                c.placing.decode.name,
                duration(c.ttft_s),
                duration(c.tpot_s),
                duration(c.latency_s),
                f"{c.prefill.limit} / {c.decode.limit}",
            )
        )
    yield from _table(rows)
    yield ""
    yield from _memory(chosen, budgets)
    yield ""
    yield from _layers(chosen)
    yield ""
    yield from _traffic(chosen)
    yield ""
    rate = load.sequences / chosen.tpot_s
    yield (
        f"predicted  first token {duration(chosen.ttft_s)}, then {tokens_rate(rate)}"
        f"{' of all sequences' * (load.sequences > 1)}, limited by {chosen.decode.limit}"
    )


def machine(hardware: Hardware) -> Iterator[str]:
    host, device = hardware.host, hardware.device
    text = (
        f"{hardware.name:10} disk {bytes_rate(hardware.disk_bytes_per_s)}, "
        f"memory {bytes_rate(host.memory_bytes_per_s)}"
    )
    if device:
        text += (
            f", link {bytes_rate(device.to_device.bytes_per_s)}, "
            f"device {bytes_rate(device.memory_bytes_per_s)}"
        )
    yield text


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Numbers to the right, the last column to the left again."""
    front = aligned([row[:-1] for row in rows], left=3)
    width = max(map(len, front))
    for text, row in zip(front, rows, strict=True):
        yield f"{text.ljust(width)}  {row[-1]}"


def _memory(chosen: Candidate, budgets: Mapping[str, int]) -> Iterator[str]:
    for tier, parts in memory(chosen).items():
        if not parts:
            continue
        budget = budgets[tier]
        yield f"{tier} {format_bytes(sum(parts.values()))} of {format_bytes(budget)}"
        entries = [(name.replace("_", " "), size) for name, size in parts.items() if size]
        entries.append(("left", budget - sum(parts.values())))
        rows = [(f"  {name}", format_bytes(size), share(size, budget)) for name, size in entries]
        for line, (_, size) in zip(aligned(rows), entries, strict=True):
            yield f"{line}  {bar(max(0, size), budget)}".rstrip()


def memory(chosen: Candidate) -> dict[str, dict[str, int]]:
    return {"host": dict(chosen.host_parts), "device": dict(chosen.device_parts)}


def _layers(chosen: Candidate) -> Iterator[str]:
    placing = chosen.placing
    locked = placing.layers - placing.tiers.device_locked
    yield f"layers     {SIDES['device']} on the device, {SIDES['host']} on the host"
    yield "  prefill  " + "".join(SIDES[p] for p in placing.prefill.processors)
    yield "  decode   " + "".join(SIDES[p] for p in placing.decode.processors)
    yield "  weights  " + SIDES["host"] * locked + SIDES["device"] * placing.tiers.device_locked
    if chosen.streamed_share:
        part = share(chosen.streamed_share, 1)
        yield f"  {part} of the host's weights come from disk every sweep"


def _traffic(chosen: Candidate) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("", "disk→host", "host→device", "device→host", "link busy")]
    for name, phase in (("prefill", chosen.prefill), ("a token", chosen.decode)):
        sizes = (phase.disk_bytes, phase.to_device_bytes, phase.to_host_bytes)
        waits = share(phase.link_share, 1)
        rows.append((f"  {name}", *(format_bytes(round(size)) for size in sizes), waits))
    yield from aligned(rows)
    if chosen.hand_over_s:
        yield f"  the cache changes places between them: {duration(chosen.hand_over_s)}"


def as_json(
    hardware: Hardware,
    budgets: Mapping[str, int],
    candidates: Sequence[Candidate],
    chosen: Candidate,
) -> dict[str, Any]:
    load = chosen.load
    return {
        "hardware": hardware.name,
        "hardware_source": hardware.source,
        "budget_bytes": budgets["host"],
        "vram_bytes": budgets["device"],
        "prompt_tokens": load.prompt_tokens,
        "new_tokens": load.new_tokens,
        "context_tokens": load.context_tokens,
        "batch": load.sequences,
        "strategy": chosen.name,
        "predicted_ttft_s": chosen.ttft_s,
        "predicted_tpot_s": chosen.tpot_s,
        "strategies": [_candidate(c) for c in candidates],
    }


def _candidate(c: Candidate) -> dict[str, Any]:
    return {
        "name": c.name,
        "prefill": {
            "strategy": c.placing.prefill.name,
            "processors": c.placing.prefill.processors,
        }
        | _phase(c.prefill),
        "decode": {"strategy": c.placing.decode.name, "processors": c.placing.decode.processors}
        | _phase(c.decode),
        "device_locked_layers": c.placing.tiers.device_locked,
        "device_cache_layers": c.placing.tiers.device_cache,
        "hand_over_s": c.hand_over_s,
        "ttft_s": c.ttft_s,
        "tpot_s": c.tpot_s,
        "latency_s": c.latency_s,
        "tokens_per_s": c.tokens_per_s,
        "streamed_share": c.streamed_share,
        "parts": memory(c),
    }


def _phase(phase: PhaseEstimate) -> dict[str, Any]:
    return {
        "seconds": phase.seconds,
        "limit": phase.limit,
        "link_share": phase.link_share,
        "disk_bytes": phase.disk_bytes,
        "to_device_bytes": phase.to_device_bytes,
        "to_host_bytes": phase.to_host_bytes,
    }
