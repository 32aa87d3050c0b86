"""A run in a few lines: the plan before it, measured beside predicted after it."""

from flexinfer.commands.figures import bytes_rate, count, duration, share, tokens_rate
from flexinfer.executor.model import Model
from flexinfer.executor.setup import Planned
from flexinfer.executor.stats import Stats
from flexinfer.units import format_bytes


def describe_plan(model: Model, planned: Planned, *, chat: bool) -> list[str]:
    """The plan in three lines."""
    plan, prediction = planned.plan, planned.prediction
    spec, placement = model.spec, plan.placement
    whole = placement.locked_bytes + placement.streamed_bytes
    lines = [
        f"{model.path.name}: {spec.architecture}, {count(len(spec.layers), 'layer')}, "
        f"{format_bytes(whole)} of weights, context {plan.workload.context_tokens} tokens"
    ]
    budget = f"budget    {format_bytes(plan.budget_bytes)}: "
    if placement.requests:
        budget += (
            f"{format_bytes(placement.locked_bytes)} locked "
            f"({share(placement.locked_bytes, whole)}), "
            f"{format_bytes(placement.streamed_bytes)} streamed per sweep "
            f"in {count(len(placement.requests), 'read')}"
        )
    else:
        budget += "all weights locked, nothing streams"
    if plan.device and planned.device:
        device = plan.device
        budget += (
            f"\ndevice    {planned.device.name}, {format_bytes(device.vram_bytes)}: "
            f"prefill {device.prefill.name}, decode {device.decode.name}, "
            f"{count(len(device.locked_layers), 'layer')} locked there"
        )
    elif planned.device:
        budget += f"\n{idle_device(planned.device.name)}"
    first = "" if chat else f"first token {duration(prediction.ttft_s)}, then "
    if plan.workload.new_tokens:
        speed = f"{first}{tokens_rate(1 / prediction.tpot_s)}, limited by {limit(planned)}"
    else:  # nothing is written: a text is scored
        speed = f"{duration(prediction.ttft_s)} for each sweep of it"
    if planned.hardware.source == "probe":
        speed += " (by a glance; `flexinfer profile` knows better)"
    return [*lines, budget, f"predicted {speed}"]


def idle_device(name: str) -> str:
    """What is said of an accelerator that a plan leaves out."""
    return f"device    {name}: nothing; the host alone is asked for, or expected to be quicker"


def limit(planned: Planned) -> str:
    """What a decode sweep waits for: the physical limit is the larger of reading and computing."""
    if planned.plan.device:
        disk = planned.prediction.decode.disk_s >= planned.prediction.tpot_s
        return "the disk" if disk else "both processors and the link"
    io_s = planned.plan.placement.streamed_bytes / planned.hardware.disk_bytes_per_s
    if io_s >= planned.prediction.bound_tpot_s:
        return f"the disk ({bytes_rate(planned.hardware.disk_bytes_per_s)})"
    return f"computing (memory {bytes_rate(planned.hardware.memory_bytes_per_s)})"


def describe_stats(stats: Stats, disk_read_bytes: int, *, predicted_ttft: bool) -> str:
    """Measured beside predicted, in one line."""
    words = ["no tokens"]
    if stats.new_tokens:
        predicted = f" (predicted {duration(stats.predicted_ttft_s)})" if predicted_ttft else ""
        words = [f"first token {duration(stats.ttft_s)}{predicted}"]
    if stats.tpot_s:
        measured, predicted = (
            tokens_rate(1 / seconds) for seconds in (stats.tpot_s, stats.predicted_tpot_s)
        )
        words.append(f"{measured} (predicted {predicted.removesuffix(' tokens/s')})")
    peak = f"peak {format_bytes(stats.peak_rss_bytes)} of {format_bytes(stats.budget_bytes)}"
    words += [peak, f"{format_bytes(disk_read_bytes)} read"]
    if stats.device is not None and stats.emulated:
        words.append(f"on {stats.device}, no real accelerator")
    return " · ".join(words)
