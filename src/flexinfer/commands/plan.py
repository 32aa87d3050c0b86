"""`flexinfer plan`: where every byte would go, and how fast that would be; nothing is loaded."""

import argparse
import json
from contextlib import closing
from typing import Any

from flexinfer.commands.console import Console
from flexinfer.commands.loading import options
from flexinfer.commands.models import model_path
from flexinfer.commands.plan_view import shares, show
from flexinfer.errors import OptionError
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.setup import Planned, plan_run
from flexinfer.memory.arena import Arena
from flexinfer.memory.budget import usable_bytes

# Of a workload that is stated by halves, or not at all in `bench`.
PROMPT_TOKENS, NEW_TOKENS = 512, 64


def plan(args: argparse.Namespace, console: Console) -> int:
    """Without --prompt-tokens and --new-tokens it is the plan of a chat."""
    model = open_model(model_path(args.model))
    prompt_tokens, new_tokens = args.prompt_tokens, args.new_tokens
    if prompt_tokens is not None or new_tokens is not None:
        prompt_tokens, new_tokens = workload(model, args, args.ctx)
    planned = plan_run(model, options(args, args.ram, args.ctx), prompt_tokens, new_tokens)
    pinned = can_pin(planned.plan.arena_bytes)
    if args.json:
        print(json.dumps(as_json(planned, pinned=pinned)))
    else:
        print("\n".join(show(model, planned, pinned=pinned)))
    return 0


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
