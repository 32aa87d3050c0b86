"""From options to a loaded model, saying what is planned, how far it is, and what is amiss."""

import argparse

from flexinfer.commands.console import Console
from flexinfer.commands.emulation import describe_emulation
from flexinfer.commands.figures import amount_of_bytes, bytes_rate, count, tokens_rate
from flexinfer.commands.plan_view import show
from flexinfer.commands.progress import Phase, Progress
from flexinfer.commands.summary import describe_plan
from flexinfer.executor.model import Model
from flexinfer.executor.options import Options
from flexinfer.executor.setup import Planned
from flexinfer.llm import LLM


def options(args: argparse.Namespace, ram: int | None, ctx: int | None) -> Options:
    """The options of a run. Raises OptionError for one that cannot take effect."""
    return Options(
        ram,
        ctx,
        args.threads,
        args.kv_type,
        args.policy,
        prefetch=args.prefetch,
        prefetch_window=args.prefetch_window,
        io_threads=args.io_threads,
        force=args.force,
        device=getattr(args, "device", None),  # not every command has one
        vram=getattr(args, "vram", None),
        strategy=getattr(args, "strategy", None),
        prefill_strategy=getattr(args, "prefill_strategy", None),
        decode_strategy=getattr(args, "decode_strategy", None),
    )


def announce(model: Model, planned: Planned, console: Console, *, chat: bool = False) -> None:
    """Say what is planned: in three lines, or all of it."""
    lines = show(model, planned) if console.verbose else describe_plan(model, planned, chat=chat)
    console.say("\n".join([*lines, *describe_emulation(planned)]))


def load(model: Model, planned: Planned, console: Console) -> LLM:
    """Lock what the plan locks; warns, once each, of what will make it slow or swappable."""
    locking = Phase("locking weights", amount_of_bytes, bytes_rate, planned.prediction.load_s)
    llm = LLM.from_plan(model, planned, Progress(console, {"load": locking}))
    console.clear()
    if not llm.session.pinned:
        console.warn("not pinned: RLIMIT_MEMLOCK is too low, so the system may swap weights out")
    if not llm.session.page_locked:
        console.warn("the device's driver does not pin host memory: copies to it will be slower")
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
