"""`flexinfer bench`: speed and memory at several budgets, measured beside predicted.

Each of several budgets runs in a process of its own: a process's peak of memory never falls again.
"""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any

from flexinfer.commands.console import Console
from flexinfer.commands.figures import duration
from flexinfer.commands.loading import announce, load, options, prefill_progress
from flexinfer.commands.models import model_path
from flexinfer.commands.plan_here import workload
from flexinfer.errors import FlexInferError, OptionError
from flexinfer.executor.model import open_model
from flexinfer.executor.sampler import SamplingParams
from flexinfer.executor.setup import plan_run
from flexinfer.executor.stats import Stats
from flexinfer.llm import LLM
from flexinfer.planner.machines import EMULATED
from flexinfer.units import format_bytes

EXIT_CRASHED = 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LABELS = ("device", "emulated")  # of a run, the same in every repeat
COLUMNS = (
    ("budget", 8),
    ("locked", 8),
    ("streamed", 8),
    ("prompt/s", 8),  # tokens
    ("TTFT (predicted)", 16),
    ("decode/s (predicted)", 20),
    ("bound", 6),
    ("peak", 8),
)


def bench(args: argparse.Namespace, console: Console) -> int:
    """A budget that fails is reported in its place; the exit code is that of the last such."""
    if args.repeat < 1:
        raise OptionError(f"--repeat is {args.repeat}; it must be 1 or more")
    if args.model is None:
        raise OptionError("bench needs a MODEL, or --kernels")
    if args.child:
        run, code = _here(args, console)
        print(json.dumps(run))
        return code
    path = model_path(args.model)
    if not args.json:
        if args.device is not None and args.device.startswith(EMULATED):
            print(f"{args.device}: an emulated accelerator, no figure is of a real one")
        print(_row([name for name, _ in COLUMNS]), flush=True)
    runs, code = [], 0
    budgets = args.ram or [None]
    for ram in budgets:
        # One budget needs no child, and in a tight control group the parent would take part of it.
        alone = len(budgets) == 1
        run, run_code = _here(args, console) if alone else _in_child(args, str(path), ram)
        runs.append(run)
        code = run_code or code
        if "error" in run:
            named = "" if ram is None else f"--ram {format_bytes(ram)}: "
            console.error(named + run["error"], run["hint"])
        elif not args.json:
            print(_row(_cells(run)), flush=True)
    if args.json:
        print(json.dumps({"model": str(path), "runs": runs}))
    return code


def _in_child(args: argparse.Namespace, path: str, ram: int | None) -> tuple[dict[str, Any], int]:
    """The child's object and exit code; its progress goes to our stderr."""
    command = [sys.executable, "-m", "flexinfer", "bench", path, "--child", "--json"]
    values = {
        "--ram": ram,
        "--prompt-tokens": args.prompt_tokens,
        "--new-tokens": args.new_tokens,
        "--repeat": args.repeat,
        "--threads": args.threads,
        "--kv-type": args.kv_type,
        "--policy": args.policy,
        "--prefetch-window": args.prefetch_window,
        "--io-threads": args.io_threads,
        "--device": args.device,
        "--vram": args.vram,
        "--strategy": args.strategy,
        "--prefill-strategy": args.prefill_strategy,
        "--decode-strategy": args.decode_strategy,
    }
    for name, value in values.items():
        command += [] if value is None else [f"{name}={value}"]
    switches = {
        "--no-prefetch": not args.prefetch,
        "--force": args.force,
        "--quiet": args.quiet,
        "--verbose": args.verbose,
    }
    command += [name for name, on in switches.items() if on]
    child = None
    with _held_back() as release:  # told to end while the child starts, we would leave it behind
        try:
            child = subprocess.Popen(command, stdout=subprocess.PIPE)
            release()
            output, _ = child.communicate()
        except BaseException:
            if child is not None:
                child.kill()
                child.communicate()
            raise
    asked: dict[str, Any] = {"budget_bytes": ram}
    if child.returncode < 0:
        reason = {"error": f"killed by signal {-child.returncode}", "hint": "was memory short?"}
        return asked | reason, EXIT_CRASHED
    if child.returncode == 130:
        raise KeyboardInterrupt
    if not output:
        return asked | {"error": "the run failed", "hint": "see above"}, child.returncode
    return asked | json.loads(output), child.returncode


@contextmanager
def _held_back() -> Iterator[Callable[[], None]]:
    """What tells us to end waits for a call of what this yields. A mask would not do: another
    thread's would let the signal through.
    """
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in ENDING}
    handlers = {number: handler for number, handler in handlers.items() if callable(handler)}

    def release() -> None:
        while handlers:
            signal.signal(*handlers.popitem())
        while arrived:
            signal.raise_signal(arrived.pop())

    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield release
    finally:
        release()


def _here(args: argparse.Namespace, console: Console) -> tuple[dict[str, Any], int]:
    try:
        return _measure(args, console), 0
    except FlexInferError as error:
        console.clear()
        budget = args.ram[0] if args.ram else None
        return {"budget_bytes": budget, "error": str(error), "hint": error.hint}, 2


def _measure(args: argparse.Namespace, console: Console) -> dict[str, Any]:
    """One budget in this process: a warm-up is not needed, the medians of the repeats are told."""
    model = open_model(model_path(args.model))
    prompt_tokens, new_tokens = workload(model, args, None)
    ram = args.ram[0] if args.ram else None
    planned = plan_run(model, options(args, ram, None), prompt_tokens, new_tokens)
    if console.verbose:
        announce(model, planned, console)
    with load(model, planned, console) as llm:
        loaded_bytes = llm.session.disk_read_bytes
        progress = prefill_progress(llm, console, planned.prediction.ttft_s)
        repeats = []
        for repeat in range(args.repeat):
            prompt = _prompt(prompt_tokens, repeat, model.spec.vocab_size)
            params = SamplingParams(max_tokens=new_tokens, ignore_end=True)
            for chunk in llm.stream(prompt, params, progress):
                if chunk.token_id is not None:
                    done = llm.session.engine.timing.new_tokens
                    console.status(f"run {repeat + 1} of {args.repeat} · token {done}")
            console.clear()
            repeats.append(llm.stats)
    return _summary(llm, repeats, loaded_bytes)


def _prompt(count: int, repeat: int, vocab_size: int) -> list[int]:
    """Fixed ids. The first one differs in each repeat, or the cache would hold the rest already."""
    return [(17 * position + 3 + repeat) % vocab_size for position in range(count)]


def _summary(llm: LLM, repeats: list[Stats], loaded_bytes: int) -> dict[str, Any]:
    """The names of `run --json` (medians), rates, and what was run."""
    each = [asdict(stats) for stats in repeats]
    run: dict[str, Any] = {}
    for name in each[0]:
        values = [stats[name] for stats in each]
        if name in LABELS:
            run[name] = values[0]
        else:
            run[name] = None if None in values else median(values)
    run["peak_rss_bytes"] = max(stats.peak_rss_bytes for stats in repeats)
    run["disk_read_bytes"] += loaded_bytes
    rates = {
        "prompt_tokens_per_s": [s.prompt_tokens / s.ttft_s for s in repeats],
        "decode_tokens_per_s": [1 / s.tpot_s for s in repeats if s.tpot_s],
    }
    for name, values in rates.items():
        run[name] = median(values) if values else None
        run[f"{name}_all"] = values
    plan = llm.plan
    return run | {
        "policy": plan.policy,
        "prefill_strategy": plan.device.prefill.name if plan.device else "cpu",
        "decode_strategy": plan.device.decode.name if plan.device else "cpu",
        "prefetch": plan.prefetch,
        "ring_slots": plan.ring.slots,
        "io_threads": plan.io_threads,
        "threads": llm.planned.context.threads,
        "kv_type": plan.kv_type,
        "context_tokens": plan.workload.context_tokens,
        "sweep_tokens": plan.sweep_tokens,
    }


def _cells(run: dict[str, Any]) -> list[str]:
    decode = run["decode_tokens_per_s"]
    predicted, bound = (1 / run[name] for name in ("predicted_tpot_s", "bound_tpot_s"))
    return [
        format_bytes(run["budget_bytes"]),
        format_bytes(run["locked_bytes"]),
        format_bytes(run["streamed_bytes_per_sweep"]),
        f"{run['prompt_tokens_per_s']:.3g}",
        f"{duration(run['ttft_s'])} ({duration(run['predicted_ttft_s'])})",
        f"{decode:.3g} ({predicted:.3g})" if decode else "none",
        f"{bound:.3g}",
        format_bytes(run["peak_rss_bytes"]),
    ]


def _row(cells: list[str]) -> str:
    return "  ".join(cell.rjust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
