"""Tokens per second over the budget: each policy, prefetch on and off, llama.cpp beside, the bound.

    python benchmarks/budget_sweep.py MODEL.gguf [--percent 5 25 50 75 100] [--policy rows ...]
        [--llamacpp PYTHON] [--json FILE] [--plot FILE]

A budget is that percentage of the file and 0.7 GB, as `--ram` and as the limit of a memory control
group (needs root). Candidates of one budget run one after the other, `--repeat` rounds of them, so
that a drift of the machine meets all alike; figures are medians. The bound is the plan's own: the
longer of its streamed bytes over the bare bandwidth of the same round, and of computing alone.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from machine import LLAMACPP, bare_bandwidth, drop_caches, machine, memory_group, run_json

POLICIES = ["rows", "tensor", "layer", "attention-first", "ffn-first"]
SERIAL = "rows, no prefetch"
MMAP = "llama.cpp, mmap"
BOUND = "bound of rows"


def bench(path: Path, options: list[str], group: Path | None = None) -> dict[str, Any]:
    command = [sys.executable, "-m", "flexinfer", "bench", str(path), "--json", "--quiet"]
    return run_json([*command, "--prompt-tokens=8", "--repeat=1", *options], group)["runs"][0]


def one_round(args: argparse.Namespace, limit: int, compute_s: float) -> dict[str, float]:
    """Tokens/s of every candidate at one budget."""
    rates: dict[str, float] = {}
    candidates = {policy: [f"--policy={policy}"] for policy in args.policy}
    candidates[SERIAL] = ["--policy=rows", "--no-prefetch"]
    for name, options in candidates.items():
        drop_caches()
        with memory_group(limit) as group:
            options = [*options, f"--ram={limit}", f"--new-tokens={args.new_tokens}"]
            run = bench(args.model, options, group)
        rates[name] = run["decode_tokens_per_s"]
        if name == "rows":
            io_s = run["streamed_bytes_per_sweep"] / bare_bandwidth(args.model, 1 << 30)
            rates[BOUND] = 1 / max(io_s, compute_s)
    if args.llamacpp:
        drop_caches()
        command = [args.llamacpp, LLAMACPP, str(args.model), "--new-tokens=3", "--repeat=1"]
        with memory_group(limit) as group:
            rates[MMAP] = run_json([*command, "--no-repack"], group)["median_tokens_per_s"]
    return rates


def plot(rows: list[dict[str, Any]], title: str, target: Path) -> None:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 5), layout="constrained")
    gib = [row["limit_bytes"] / 2**30 for row in rows]
    for name in rows[0]["tokens_per_s"]:
        style = {BOUND: "k:", MMAP: "s--", SERIAL: "x--"}.get(name, "o-")
        axes.plot(gib, [row["tokens_per_s"][name] for row in rows], style, label=name)
    axes.set(xlabel="memory budget, GiB", ylabel="decode, tokens/s", title=title, yscale="log")
    axes.grid(alpha=0.3, which="both")
    axes.legend()
    figure.savefig(target, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--percent", type=float, nargs="+", default=[5, 25, 50, 75, 100])
    parser.add_argument("--policy", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--llamacpp", metavar="PYTHON")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    args = parser.parse_args()
    if "rows" not in args.policy:
        parser.error("--policy must name rows, which the others are held against")
    compute_s = bench(args.model, [f"--new-tokens={args.new_tokens}"])["tpot_s"]
    rows = []
    print(f"{args.model.name}; {machine()}; in memory {1 / compute_s:.2f} tokens/s")
    for percent in args.percent:
        limit = int(args.model.stat().st_size * percent / 100 + 0.7e9)
        rounds = defaultdict(list)
        for _ in range(args.repeat):
            for name, rate in one_round(args, limit, compute_s).items():
                rounds[name].append(rate)
        rates = {name: median(values) for name, values in rounds.items()}
        rows.append({"percent": percent, "limit_bytes": limit, "tokens_per_s": rates})
        if len(rows) == 1:
            print("budget GiB  " + "  ".join(rates))
        cells = "  ".join(f"{rate:{len(name)}.3g}" for name, rate in rates.items())
        print(f"{limit / 2**30:10.2f}  {cells}", flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    if args.plot:
        plot(rows, args.model.stem, args.plot)


if __name__ == "__main__":
    main()
