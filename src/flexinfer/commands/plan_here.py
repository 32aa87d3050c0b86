"""`flexinfer plan` on this machine: where every byte would go, and how fast that would be."""

import argparse
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from flexinfer.commands import curve, plots
from flexinfer.commands.emulation import describe_emulation
from flexinfer.commands.loading import options
from flexinfer.commands.models import model_path
from flexinfer.commands.plan_view import shares, show
from flexinfer.errors import FormatError, OptionError
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.setup import Planned, plan_run, replan
from flexinfer.memory.arena import Arena
from flexinfer.memory.budget import usable_bytes
from flexinfer.planner.planner import Workload
from flexinfer.planner.presets import PRESETS
from flexinfer.planner.questions import most, possible
from flexinfer.planner.tables import MOST_BYTES

# Of a workload that is stated by halves, or not at all in `bench`.
PROMPT_TOKENS, NEW_TOKENS = 512, 64


def plan_here(args: argparse.Namespace) -> int:
    """Without --prompt-tokens and --new-tokens it is the plan of a chat."""
    _check_here(args)
    model = open_model(model_path(args.model))
    prompt_tokens, new_tokens = args.prompt_tokens, args.new_tokens
    if prompt_tokens is not None or new_tokens is not None:
        prompt_tokens, new_tokens = workload(model, args, args.ctx)
    planned = plan_run(model, options(args, args.ram, args.ctx), prompt_tokens, new_tokens)
    pinned = can_pin(planned.plan.arena_bytes)
    facts = as_json(planned, pinned=pinned)
    lines = show(model, planned, pinned=pinned)
    context = longest_context(model, planned)
    facts["longest_context_tokens"] = context
    lines.append(f"context    up to {context} tokens fit this budget")
    lines += describe_emulation(planned)

    def point(budget_bytes: int) -> curve.Point:
        found = replan(model, planned, budget_bytes=budget_bytes)
        placement, prediction = found.plan.placement, found.prediction
        return curve.Point(
            budget_bytes,
            placement.locked_bytes,
            placement.streamed_bytes,
            prediction.ttft_s,
            prediction.tpot_s,
            prediction.bound_tpot_s,
        )

    there = max(planned.available.bytes, planned.plan.budget_bytes)
    if args.target_tokens_per_s is not None:
        needed = curve.budget_for(point, args.target_tokens_per_s, there)
        facts["target_budget_bytes"] = needed
        lines.append(curve.target_line(args.target_tokens_per_s, needed))
    if args.sweep:
        points = curve.curve(point, there)
        facts["sweep"] = curve.as_json(points)
        lines += ["", *curve.show(points)]
        if args.plot:
            measured = read_measured(args.measured) if args.measured else []
            plots.plot_curve(points, measured, model.path.name, args.plot)
    elif args.plot:
        parts = {str(category): size for category, size in planned.plan.parts.items()}
        plots.plot_memory({"host": parts}, model.path.name, args.plot)
    print(json.dumps(facts) if args.json else "\n".join(lines))
    return 0


def _check_here(args: argparse.Namespace) -> None:
    """Raises OptionError for what needs another machine than this."""
    machines = f"give --hardware: {', '.join(PRESETS)}, or a file"
    others = {
        "--vram": args.vram is not None and args.device is None,
        "--batch": args.batch != 1,
        "--objective": args.objective != "latency",
        "--strategy": args.strategy is not None and args.device is None,
    }
    for name, given in others.items():
        if given:
            raise OptionError(f"{name} cannot take effect on this machine yet", machines)
    other = args.sweep or args.target_tokens_per_s is not None
    for name, value in (
        ("--prefetch-window", args.prefetch_window),
        ("--io-threads", args.io_threads),
    ):
        if value is not None and other:
            raise OptionError(f"{name} cannot take effect at other budgets", "leave it out")
    if args.measured is not None and not (args.sweep and args.plot):
        raise OptionError("--measured takes effect only on a drawn curve", "give --sweep --plot F")


def read_measured(path: Path) -> list[tuple[int, float]]:
    """Budgets and tokens/s of what `flexinfer bench --json` printed. Raises FormatError."""
    try:
        runs = json.loads(path.read_text())["runs"]
        return [_measured_point(run) for run in runs if run.get("decode_tokens_per_s")]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path}: not what `flexinfer bench --json` prints: {error}", "give its output"
        ) from error


def _measured_point(run: Mapping[str, Any]) -> tuple[int, float]:
    """Raises ValueError for numbers that nothing can be drawn from, TypeError for none."""
    budget_bytes, per_s = run["budget_bytes"], run["decode_tokens_per_s"]
    if not (0 < budget_bytes <= MOST_BYTES and 0 < per_s < float("inf")):
        raise ValueError(f"{per_s!r:.40} tokens/s with {budget_bytes!r:.40} bytes")
    return budget_bytes, per_s


def longest_context(model: Model, planned: Planned) -> int | None:
    """Tokens, at most those the model was trained for, whose cache the budget holds."""

    def attempt(tokens: int) -> object:
        return replan(model, planned, workload=Workload(tokens, 0, tokens))

    return most(possible(attempt), 1, model.spec.context_tokens)


def workload(model: Model, args: argparse.Namespace, ctx: int | None) -> tuple[int, int]:
    """Tokens of the prompt and new ones. Raises OptionError unless the context holds both."""
    prompt = PROMPT_TOKENS if args.prompt_tokens is None else args.prompt_tokens
    new = NEW_TOKENS if args.new_tokens is None else args.new_tokens
    for name, value in (("--prompt-tokens", prompt), ("--new-tokens", new)):
        if value < 1:
            raise OptionError(f"{name} is {value}; it must be 1 or more")
    context = ctx or model.spec.context_tokens
    if prompt + new > context:
        raise OptionError(
            f"{prompt} prompt tokens and {new} new ones do not fit the context of {context}",
            "ask for fewer (--prompt-tokens, --new-tokens)",
        )
    return prompt, new


def can_pin(size_bytes: int) -> bool:
    """Whether the system lets us pin as much: tried with memory that is never touched."""
    with closing(Arena(size_bytes)) as arena:
        arena.take(size_bytes)
        return arena.pin()


def as_json(planned: Planned, *, pinned: bool) -> dict[str, Any]:
    plan, prediction, hardware = planned.plan, planned.prediction, planned.hardware
    by_layer: dict[int, dict[str, int]] = {}
    for part in shares(planned):
        layer = by_layer.setdefault(part.layer, {"locked_bytes": 0, "streamed_bytes": 0})
        layer["locked_bytes"] += part.locked_bytes
        layer["streamed_bytes"] += part.streamed_bytes
    return {
        "budget_bytes": plan.budget_bytes,
        "margin_bytes": plan.budget_bytes - usable_bytes(plan.budget_bytes),
        "parts": {str(category): size for category, size in plan.parts.items()},
        "unused_bytes": usable_bytes(plan.budget_bytes) - plan.total_bytes,
        "available_bytes": planned.available.bytes,
        "available_limited_by": planned.available.where,
        "pinned": pinned,
        "policy": plan.policy,
        "prefetch": plan.prefetch,
        **_device_json(planned),
        "threads": planned.context.threads,
        "kv_type": plan.kv_type,
        "context_tokens": plan.workload.context_tokens,
        "prompt_tokens": plan.workload.prompt_tokens,
        "new_tokens": plan.workload.new_tokens,
        "sweep_tokens": plan.sweep_tokens,
        "prompt_sweeps": plan.prompt_sweeps,
        "ring_slots": plan.ring.slots,
        "slot_bytes": plan.ring.slot_bytes,
        "io_threads": plan.io_threads,
        "locked_bytes": plan.placement.locked_bytes,
        "streamed_bytes_per_sweep": plan.placement.streamed_bytes,
        "reads_per_sweep": len(plan.placement.requests),
        "layers": [{"layer": layer, **sizes} for layer, sizes in by_layer.items()],
        "hardware": hardware.name,
        "hardware_source": hardware.source,
        "disk_bytes_per_s": hardware.disk_bytes_per_s,
        "disk_bytes_per_s_at_depth": hardware.disk.bytes_per_s_at,
        "disk_latency_s": hardware.disk.latency_s,
        "disk_pause_s": hardware.disk.pause_s,
        "memory_bytes_per_s": hardware.memory_bytes_per_s,
        "predicted_load_s": prediction.load_s,
        "predicted_ttft_s": prediction.ttft_s,
        "predicted_tpot_s": prediction.tpot_s,
        "bound_tpot_s": prediction.bound_tpot_s,
    }


def _device_json(planned: Planned) -> dict[str, Any]:
    """What an accelerator, emulated or not, does and holds."""
    plan, device = planned.plan.device, planned.device
    return {
        "device": device.name if device else None,
        "emulated": planned.emulated,
        "prefill_strategy": plan.prefill.name if plan else "cpu",
        "decode_strategy": plan.decode.name if plan else "cpu",
        "vram_bytes": plan.vram_bytes if plan else 0,
        "device_parts": {str(c): size for c, size in plan.parts.items()} if plan else {},
    }
