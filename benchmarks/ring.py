"""Rings and reads at once that were asked for, beside those that are chosen, alternating.

    python benchmarks/ring.py MODEL.gguf --ram 3GiB [--window 4 8 16 32] [--io-threads 1 2 4]
        [--policy rows] [--new-tokens 8] [--rounds 3] [--json FILE]

Each candidate is one process a round, so that a drift of the machine meets all alike. The last
column is the median of a round's ratios to the chosen ring; what was chosen may differ from round
to round, as the measured disk does.
"""

import argparse
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from machine import machine, run_json


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--ram", required=True)
    parser.add_argument("--window", type=int, nargs="+", default=[4, 8, 16, 32])
    parser.add_argument("--io-threads", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--policy", default="rows")
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    common = ["bench", str(args.model), "--json", "--quiet", "--ram", args.ram, "--repeat=1"]
    common += ["--prompt-tokens=8", f"--new-tokens={args.new_tokens}", f"--policy={args.policy}"]
    candidates: dict[str, list[str]] = {"chosen": []}
    candidates |= {f"window {n}": [f"--prefetch-window={n}"] for n in args.window}
    candidates |= {f"I/O threads {n}": [f"--io-threads={n}"] for n in args.io_threads}
    runs: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for _ in range(args.rounds):
        for name, options in candidates.items():
            command = [sys.executable, "-m", "flexinfer", *common, *options]
            runs[name] += run_json(command)["runs"]
    print(f"{args.model.name}, --ram {args.ram}, policy {args.policy}; {machine()}")
    print(f"{'':16} {'slots':>8} {'reads':>8} {'tokens/s':>9} {'predicted':>9} {'of chosen':>9}")
    for name, each in runs.items():
        slots, reads = (
            "/".join(str(n) for n in sorted({run[key] for run in each}))
            for key in ("ring_slots", "io_threads")
        )
        rate = median(run["decode_tokens_per_s"] for run in each)
        predicted = 1 / median(run["predicted_tpot_s"] for run in each)
        ratio = median(
            run["decode_tokens_per_s"] / chosen["decode_tokens_per_s"]
            for run, chosen in zip(each, runs["chosen"], strict=True)
        )
        print(f"{name:16} {slots:>8} {reads:>8} {rate:9.3g} {predicted:9.3g} {ratio:9.2f}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    main()
