"""Predictions against measurements on this machine, the profile taken within the same run.

    python benchmarks/prediction.py MODEL.gguf ... [--budgets 5] [--new-tokens 32]
        [--prompts 32 512 2048] [--repeat 3] [--disk 1GB] [--json FILE]

For each model: time to the first token for prompts of each length, with everything in memory, and
time per token at budgets from the least to all of it, prefetching and not. Each is a `flexinfer
profile` into a cache of this run's own, as neighbours change what a virtual machine gives within
minutes, and one `flexinfer bench`; what that predicted is held against its median. An error is
measured over predicted, less one. Nothing is fitted to what is measured here. `--disk` holds the
disk at a rate (cgroup version 1, root), where its own would change between the two.
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from machine import held_disk, machine, run_json

from flexinfer.units import parse_bytes

WORKLOAD = ("--prompt-tokens=32", "--new-tokens=32")
COMMAND = [sys.executable, "-m", "flexinfer"]


def bench(model: Path, args: argparse.Namespace, *options: str) -> dict[str, Any]:
    """As predicted by a profile of this moment."""
    run_json([*COMMAND, "profile", str(model), "--json", "--quiet"])
    command = [*COMMAND, "bench", str(model), "--json", "--quiet", f"--repeat={args.repeat}"]
    run: dict[str, Any] = run_json([*command, *options])["runs"][0]
    if "error" in run:
        sys.exit(f"{' '.join(options)}: {run['error']}")
    return run


def budgets(model: Path, count: int) -> list[int]:
    """From the least, a little above it as processes differ, to the whole model."""
    sweep = run_json([*COMMAND, "plan", str(model), *WORKLOAD, "--sweep", "--json"])["sweep"]
    low, high = sweep[0]["budget_bytes"] + (4 << 20), sweep[-1]["budget_bytes"] + (4 << 20)
    return [low + (high - low) * i // (count - 1) for i in range(count)]


def token_times(model: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for budget in budgets(model, args.budgets):
        for prefetch in (True, False):
            options = [f"--ram={budget}", "--prompt-tokens=32", f"--new-tokens={args.new_tokens}"]
            run = bench(model, args, *options, *([] if prefetch else ["--no-prefetch"]))
            yield row(model, run, "tpot_s") | {"prefetch": prefetch}


def first_token_times(model: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    for tokens in args.prompts:
        run = bench(model, args, f"--prompt-tokens={tokens}", "--new-tokens=1")
        yield row(model, run, "ttft_s") | {"prompt_tokens": tokens}


def row(model: Path, run: dict[str, Any], value: str) -> dict[str, Any]:
    measured, predicted = run[value], run[f"predicted_{value}"]
    return {
        "model": model.name,
        "what": value,
        "budget_bytes": run["budget_bytes"],
        "streamed_bytes": run["streamed_bytes_per_sweep"],
        "measured_s": measured,
        "predicted_s": predicted,
        "error": measured / predicted - 1,
    }


def summary(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found = {}
    for what in ("tpot_s", "ttft_s"):
        errors = [abs(r["error"]) for r in rows if r["what"] == what]
        if errors:
            found[what] = {"median": median(errors), "worst": max(errors), "count": len(errors)}
    return found


def line(r: dict[str, Any]) -> str:
    if r["what"] == "tpot_s":
        case = f"{r['budget_bytes'] / 2**20:7.0f} MiB {'prefetch' if r['prefetch'] else 'serial':8}"
    else:
        case = f"{r['prompt_tokens']:7d} tokens      "
    return (
        f"{r['model'][:32]:32} {r['what'][:4].upper()} {case} measured {r['measured_s']:8.4f} s "
        f"predicted {r['predicted_s']:8.4f} s {100 * r['error']:+6.1f} %"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL")
    parser.add_argument("--budgets", type=int, default=5)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--prompts", type=int, nargs="*", default=[32, 512, 2048])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--disk", type=parse_bytes, metavar="SIZE", help="bytes/s at most")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.budgets < 2:
        parser.error("--budgets must be 2 or more")
    rows: list[dict[str, Any]] = []
    where = machine() + (f"; disk held at {args.disk / 1e9:g} GB/s" if args.disk else "")
    print(where)
    with ExitStack() as stack:
        if args.disk:
            stack.enter_context(held_disk(args.models[0], args.disk))
        os.environ["XDG_CACHE_HOME"] = stack.enter_context(tempfile.TemporaryDirectory())
        for model in args.models:
            for measure in (first_token_times, token_times):
                for found in measure(model, args):
                    rows.append(found)
                    print(line(found), flush=True)
    for what, errors in summary(rows).items():
        print(
            f"{what[:4].upper()}: median error {100 * errors['median']:.1f} %, "
            f"worst {100 * errors['worst']:.1f} %, of {errors['count']:.0f}"
        )
    if args.json:
        text = json.dumps({"machine": where, "rows": rows, "summary": summary(rows)}, indent=1)
        args.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
