"""From options to a loaded model, saying what is planned, how far it is, and what is amiss."""

import argparse

from flexinfer.commands.console import Console
from flexinfer.commands.figures import (
    amount_of_bytes,
    bytes_rate,
    count,
    duration,
    share,
    tokens_rate,
)
from flexinfer.commands.progress import Phase, Progress
from flexinfer.errors import OptionError
from flexinfer.executor.model import Model
from flexinfer.executor.setup import Options, Planned
from flexinfer.executor.stats import Stats
from flexinfer.llm import LLM
from flexinfer.units import format_bytes


def options(args: argparse.Namespace, ram: int | None, ctx: int | None) -> Options:
    """The options of a run. Raises OptionError for one that cannot take effect."""
    if args.force and ram is None:
        raise OptionError(
            "--force takes effect only on a --ram", "give --ram, or leave --force out"
        )
    return Options(
        ram, ctx, args.threads, args.kv_type, args.policy, prefetch=args.prefetch, force=args.force
    )


def load(model: Model, planned: Planned, console: Console) -> LLM:
    """Lock what the plan locks; warns, once each, of what will make it slow or swappable."""
    size = planned.plan.placement.locked_bytes
    expected = planned.prediction.load_s
    locking = Phase("locking weights", amount_of_bytes, bytes_rate, expected)
    llm = LLM.from_plan(model, planned, Progress(console, {"load": locking}))
    console.clear()
    console.say(f"loaded in {duration(llm.session.load_s)}, {format_bytes(size)} locked")
    if not llm.session.pinned:
        console.warn("not pinned: RLIMIT_MEMLOCK is too low, so the system may swap weights out")
    if not llm.session.direct:
        console.warn(
            "direct reads are refused here: reading through the page cache, which is slower"
        )
    if not llm.session.huge_pages:
        console.warn("no huge pages were given: reading is slower (see transparent_hugepage)")
    return llm


def prefill_progress(llm: LLM, console: Console, expected_s: float | None) -> Progress:
    layers = len(llm.model.spec.layers)  # progress counts every token once a layer

    def amount(done: int, total: int) -> str:
        return f"{done // layers} of {count(total // layers, 'token')}"

    def rate(per_s: float) -> str:
        return tokens_rate(per_s / layers)

    return Progress(console, {"prefill": Phase("reading the prompt", amount, rate, expected_s)})


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
    first = "" if chat else f"first token {duration(prediction.ttft_s)}, then "
    return [
        *lines,
        budget,
        f"predicted {first}{tokens_rate(1 / prediction.tpot_s)}, limited by {limit(planned)}",
    ]


def limit(planned: Planned) -> str:
    """What a decode sweep waits for: the physical limit is the larger of reading and computing."""
    io_s = planned.plan.placement.streamed_bytes / planned.hardware.disk_bytes_per_s
    if io_s >= planned.prediction.bound_tpot_s:
        return f"the disk ({bytes_rate(planned.hardware.disk_bytes_per_s)})"
    return f"computing (memory {bytes_rate(planned.hardware.memory_bytes_per_s)})"


def describe_stats(stats: Stats, disk_read_bytes: int, *, predicted_ttft: bool) -> str:
    """Measured beside predicted, in one line."""
    first = f"first token {duration(stats.ttft_s)}"
    if predicted_ttft:
        first += f" (predicted {duration(stats.predicted_ttft_s)})"
    words = [first] if stats.new_tokens else ["no tokens"]
    if stats.tpot_s:
        rates = tokens_rate(1 / stats.tpot_s), tokens_rate(1 / stats.predicted_tpot_s)
        words.append("{} (predicted {})".format(*rates))
    peak = f"peak {format_bytes(stats.peak_rss_bytes)} of {format_bytes(stats.budget_bytes)}"
    return " · ".join([*words, peak, f"{format_bytes(disk_read_bytes)} read from disk"])
