"""`flexinfer plan` for a machine that is not this one, or with an accelerator: strategies beside
each other.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from flexinfer.commands import curve, plots, tiers_view
from flexinfer.commands.models import model_path
from flexinfer.errors import BudgetError, OptionError
from flexinfer.memory.budget import Availability, default_budget, resident_bytes
from flexinfer.models.shapes import DEFAULT_TYPE, NAMED, Shape, named_shape, shape_from_config
from flexinfer.planner.choice import BASELINES, CHOSEN, Candidate, Chooser
from flexinfer.planner.hardware import Hardware
from flexinfer.planner.machines import find_hardware
from flexinfer.planner.questions import most, possible
from flexinfer.planner.tiers import Load
from flexinfer.units import format_bytes

PROMPT_TOKENS, NEW_TOKENS = 512, 128
HERE = {  # options that are of a run on this machine: their values where they were not given
    "--policy": ("policy", "rows"),
    "--no-prefetch": ("prefetch", True),
    "--prefetch-window": ("prefetch_window", None),
    "--io-threads": ("io_threads", None),
    "--threads": ("threads", None),
    "--force": ("force", False),
    "--measured": ("measured", None),
    "--device": ("device", None),
    "--prefill-strategy": ("prefill_strategy", None),
    "--decode-strategy": ("decode_strategy", None),
}
STRATEGIES = (CHOSEN, *BASELINES)


def plan_tiers(args: argparse.Namespace) -> int:
    for option, (name, default) in HERE.items():
        if getattr(args, name) != default:
            raise OptionError(
                f"{option} cannot take effect with --hardware", "it is for this machine alone"
            )
    if args.strategy not in (None, *STRATEGIES):
        raise OptionError(
            f"unknown --strategy {args.strategy!r:.80} with --hardware, where every split is tried",
            f"known: {', '.join(STRATEGIES)}; others are for --device",
        )
    if args.objective != "latency" and args.strategy not in (None, CHOSEN):
        raise OptionError(
            "--objective cannot take effect: --strategy leaves no choice", "leave out one of them"
        )
    shape, base_bytes = _model(args)
    hardware = find_hardware(args.hardware)
    load = _load(args, shape)
    budgets = {"host": _ram(args, hardware), "device": _vram(args, hardware)}

    def chooser(ram_bytes: int, load: Load = load) -> Chooser:
        return Chooser(
            shape.spec,
            shape.weights,
            hardware,
            load,
            ram_bytes=ram_bytes,
            vram_bytes=budgets["device"],
            base_bytes=base_bytes,
            kv_type=args.kv_type,
        )

    def choose(choice: Chooser) -> Candidate:
        fixed = args.strategy not in (None, CHOSEN)
        return choice.baseline(args.strategy) if fixed else choice.choose(args.objective)

    def point(ram_bytes: int) -> curve.Point:
        found = choose(chooser(ram_bytes))
        locked, streamed = found.host_parts["locked"], round(found.decode.disk_bytes)
        return curve.Point(ram_bytes, locked, streamed, found.ttft_s, found.tpot_s, found.tpot_s)

    choice = chooser(budgets["host"])
    chosen = choose(choice)
    candidates = [chosen, *_others(choice, hardware, chosen)]
    facts = tiers_view.as_json(hardware, budgets, candidates, chosen)
    title = f"{shape.name} on {hardware.name}"
    lines = list(tiers_view.show(title, hardware, budgets, candidates, chosen))
    context = _longest_context(lambda load: choose(chooser(budgets["host"], load)), load, shape)
    facts["longest_context_tokens"] = context
    if context is not None:
        lines.append(f"context    up to {context} tokens fit these budgets")
    if args.target_tokens_per_s is not None:
        most_bytes = hardware.host.memory_bytes or budgets["host"]
        needed = curve.budget_for(point, args.target_tokens_per_s, most_bytes)
        facts["target_budget_bytes"] = needed
        lines.append(curve.target_line(args.target_tokens_per_s, needed))
    if args.sweep:
        points = curve.curve(point, budgets["host"])
        facts["sweep"] = curve.as_json(points)
        lines += ["", *curve.show(points)]
        if args.plot:
            plots.plot_curve(points, [], title, args.plot)
    elif args.plot:
        plots.plot_memory(tiers_view.memory(chosen), title, args.plot)
    print(json.dumps(facts) if args.json else "\n".join(lines))
    return 0


def _model(args: argparse.Namespace) -> tuple[Shape, int]:
    """A model as a plan needs it, and what the process holds besides."""
    kind = DEFAULT_TYPE if args.type is None else args.type
    if args.model in NAMED:
        shape = replace(named_shape(args.model, kind), name=f"{args.model} ({kind.upper()})")
        return shape, resident_bytes()
    if args.model.endswith(".json"):
        return shape_from_config(Path(args.model), kind), resident_bytes()
    from flexinfer.executor.model import open_model  # brings tokenizers, which no shape needs

    model = open_model(model_path(args.model))
    return Shape(model.path.name, model.spec, model.weights), resident_bytes()


def _load(args: argparse.Namespace, shape: Shape) -> Load:
    prompt = PROMPT_TOKENS if args.prompt_tokens is None else args.prompt_tokens
    new = NEW_TOKENS if args.new_tokens is None else args.new_tokens
    given = (("--prompt-tokens", prompt), ("--new-tokens", new), ("--batch", args.batch))
    for name, value in given:
        if value < 1:
            raise OptionError(f"{name} is {value}; it must be 1 or more")
    trained = shape.spec.context_tokens
    context = prompt + new if args.ctx is None else args.ctx
    if not prompt + new <= context <= trained:
        raise OptionError(
            f"{prompt} prompt tokens and {new} new ones do not fit a context of "
            f"{min(context, trained)} (the model was trained for {trained})",
            "ask for fewer (--prompt-tokens, --new-tokens) or a larger --ctx",
        )
    return Load(prompt, new, context, args.batch)


def _ram(args: argparse.Namespace, hardware: Hardware) -> int:
    there = hardware.host.memory_bytes
    if there is None:
        if args.ram is None:
            raise OptionError(
                f"{hardware.name} does not say how much memory it has",
                "give --ram, or memory_bytes in its file",
            )
        return int(args.ram)
    if args.ram is not None and args.ram > there:
        raise OptionError(
            f"--ram {format_bytes(args.ram)} is more than the {format_bytes(there)} of "
            f"{hardware.name}",
            "ask for less",
        )
    if args.ram is None:
        return default_budget(Availability(there, hardware.name))
    return int(args.ram)


def _vram(args: argparse.Namespace, hardware: Hardware) -> int:
    if hardware.device is None:
        if args.vram is not None:
            raise OptionError(
                f"--vram cannot take effect: {hardware.name} has no accelerator", "leave it out"
            )
        return 0
    there = hardware.device.memory_bytes
    if args.vram is not None and args.vram > there:
        raise OptionError(
            f"--vram {format_bytes(args.vram)} is more than the {format_bytes(there)} of "
            f"{hardware.name}'s accelerator",
            "ask for less",
        )
    return there if args.vram is None else int(args.vram)


def _others(choice: Chooser, hardware: Hardware, chosen: Candidate) -> list[Candidate]:
    """The baselines that fit."""
    found = []
    for name in BASELINES:
        if name == chosen.name or (name != "cpu-only" and hardware.device is None):
            continue
        try:
            found.append(choice.baseline(name))
        except BudgetError:
            continue
    return found


def _longest_context(attempt: Callable[[Load], Candidate], load: Load, shape: Shape) -> int | None:
    """The longest context, up to what the model was trained for, that the budgets hold."""

    def plan(tokens: int) -> object:
        return attempt(replace(load, context_tokens=tokens))

    least_tokens = load.prompt_tokens + load.new_tokens
    return most(possible(plan), least_tokens, shape.spec.context_tokens)
