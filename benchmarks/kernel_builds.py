"""The product kernels of two builds side by side, one thread each, calls alternating.

    python benchmarks/kernel_builds.py OLD.so NEW.so [--types Q4_0 Q4_K] [--tokens 1 8 64] [--json]

Each .so is a `_kernels` module. One token runs over 64 MiB of weights, beside a plain read of them;
more tokens over weights that stay in the second-level cache, where computing alone is the limit.
Calls are short, and of each kind the time is the one that an eighth of them stay below: that holds
still while others use the machine.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

import numpy as np

from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.arena import Arena
from flexinfer.units import MiB

COLUMNS = 2048
MEMORY_BYTES = 64 * MiB
PIECE_BYTES = 384 << 10  # of a call over memory
CACHED_ROWS = 128
ROUND_S = 0.01


def load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("flexinfer._kernels", path)
    assert spec and spec.loader
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def work(path: str, pipe: Connection) -> None:
    """Answers (type, tokens) with the seconds per row of a round's products, and of plain reads."""
    kernels = load(path)
    arena = Arena(MEMORY_BYTES)
    address = arena.take(MEMORY_BYTES).address
    ctypes.memset(address, 0x3C, MEMORY_BYTES)  # of every type a normal number
    context = kernels.Context(1)
    while (task := pipe.recv()) is not None:
        pipe.send(measure(kernels, context, address, BLOCK_TYPES[task[0]], task[1]))


def measure(
    kernels: Any, context: Any, address: int, kind: BlockType, tokens: int
) -> list[list[float]]:
    x = np.random.default_rng(0).standard_normal((tokens, COLUMNS), dtype=np.float32)
    xq = np.zeros((tokens, kernels.activation_bytes(COLUMNS)), np.uint8)
    kernels.quantize(context, x, xq)
    row_bytes = kind.row_bytes(COLUMNS)
    rows = CACHED_ROWS if tokens > 1 else PIECE_BYTES // row_bytes // 16 * 16
    size = rows * row_bytes
    out = np.zeros((tokens, rows), np.float32)

    def product(at: int) -> None:
        kernels.linear(
            context, kind.ggml_id, True, address + at * size, rows, COLUMNS, x, xq, out, 0, 0, None
        )

    def read(at: int) -> None:
        kernels.read_bandwidth(context, address + at * size, size, 1)

    if tokens > 1:
        return [timed(product, 1, rows)]
    return [timed(call, MEMORY_BYTES // size, rows) for call in (product, read)]


def timed(call: Callable[[int], None], places: int, rows: int) -> list[float]:
    seconds: list[float] = []
    end = time.perf_counter() + ROUND_S
    while not seconds or time.perf_counter() < end:
        for at in range(places):
            started = time.perf_counter()
            call(at)
            seconds.append((time.perf_counter() - started) / rows)
    return seconds


def low(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 8]


def compare(pipes: list[Connection], kind: BlockType, tokens: int, rounds: int) -> dict[str, Any]:
    seen: list[list[list[float]]] = [[[], []] for _ in pipes]
    for _ in range(rounds):
        for pipe, mine in zip(pipes, seen, strict=True):
            pipe.send((kind.ggml_id, tokens))
            for all_of_it, part in zip(mine, pipe.recv(), strict=False):
                all_of_it.extend(part)
    old, new = (low(mine[0]) for mine in seen)
    reads = [second for mine in seen for second in mine[1]]
    row = {
        "type": kind.name,
        "tokens": tokens,
        "old_gops": 2e-9 * COLUMNS * tokens / old,
        "new_gops": 2e-9 * COLUMNS * tokens / new,
        "ratio": old / new,
    }
    if reads:
        row["old_of_read"] = low(reads) / old
        row["new_of_read"] = low(reads) / new
    return row


def figure(value: float | int | str) -> str:
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("old")
    parser.add_argument("new")
    parser.add_argument("--types", nargs="+", default=["Q4_0", "Q4_K", "Q6_K", "Q8_0", "BF16"])
    parser.add_argument("--tokens", nargs="+", type=int, default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    spawn = get_context("spawn")
    pipes = []
    for path in (args.old, args.new):
        here, there = spawn.Pipe()
        spawn.Process(target=work, args=(path, there), daemon=True).start()
        pipes.append(here)
    kinds = {kind.name: kind for kind in BLOCK_TYPES.values()}
    rows = []
    for name in args.types:
        for tokens in args.tokens:
            rows.append(compare(pipes, kinds[name], tokens, args.rounds))
            if not args.json:
                print("  ".join(f"{key} {figure(value)}" for key, value in rows[-1].items()))
                sys.stdout.flush()
    for pipe in pipes:
        pipe.send(None)
    if args.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
