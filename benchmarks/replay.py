"""What it saves to replay a sweep's recorded calls instead of making them from Python.

    python benchmarks/replay.py MODEL.gguf [--tokens 1] [--threads 2] [--rounds 100] [--json]

The same sweep of a few tokens behind 100 others, all weights in memory, replayed and called in
turn: wall and processor time of each. Where others use the machine as well, processor time on one
thread says most.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from machine import machine

from flexinfer import LLM
from flexinfer.executor.executor import MAX_RECORDED_TOKENS
from flexinfer.executor.kv_cache import Sequence
from flexinfer.ops.base import Span

BEFORE = 100


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """Wall and processor seconds."""
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=1)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    times: dict[str, list[tuple[float, float]]] = {"replayed": [], "called": []}
    with LLM(args.model, ctx=BEFORE + args.tokens, threads=args.threads) as llm:
        if llm.plan.placement.requests:
            sys.exit(f"{args.model} does not fit in memory here")
        executor = llm.session.executor
        sequence = Sequence(llm.session.pools, BEFORE + args.tokens)
        sequence.reserve(BEFORE + args.tokens)
        spans = (Span(0, args.tokens, BEFORE, sequence.tables),)
        for _ in range(args.rounds):
            for name, recorded in (("replayed", MAX_RECORDED_TOKENS), ("called", 0)):
                executor.recorded_tokens = recorded
                times[name].append(timed(lambda: executor.sweep([5] * args.tokens, spans)))
        threads = llm.planned.context.threads
    medians = {
        name: [1e3 * statistics.median(column) for column in zip(*rows, strict=True)]
        for name, rows in times.items()
    }
    best = {
        name: [1e3 * min(column) for column in zip(*rows, strict=True)]
        for name, rows in times.items()
    }
    if args.json:
        print(json.dumps({"machine": machine(), "median_ms": medians, "best_ms": best}))
        return
    print(f"{args.model}; {machine()}; {threads} threads, {args.tokens} tokens")
    for name, (wall_ms, processor_ms) in medians.items():
        print(
            f"{name:9} wall {wall_ms:.2f} ms (best {best[name][0]:.2f}), "
            f"processor {processor_ms:.2f} ms (best {best[name][1]:.2f})"
        )


if __name__ == "__main__":
    main()
