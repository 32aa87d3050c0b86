"""`flexinfer bench --kernels`: each block type's products beside what the machine gives at most.

Weights lie in huge pages that were touched before, more of them than the caches hold. Both bounds
are measured in the same run: no table knows every processor's ports and clock.
"""

import argparse
import ctypes
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict
from typing import Any

from flexinfer import _kernels
from flexinfer.commands.console import Console
from flexinfer.commands.figures import aligned, bytes_rate, count, share
from flexinfer.commands.models import model_path
from flexinfer.errors import OptionError
from flexinfer.executor.binding import FLOAT_TYPES
from flexinfer.executor.model import open_model
from flexinfer.executor.rates import Bounds, ProductRate, measure_bounds, measure_product
from flexinfer.executor.session import kernel_context
from flexinfer.executor.setup import thread_count
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory import machine
from flexinfer.memory.arena import HUGE_PAGE_BYTES, Arena, Region
from flexinfer.memory.budget import available_memory, default_budget, resident_bytes
from flexinfer.units import MiB, format_bytes

TOKENS = (1, 2, 4, 8, 16, 64, 512)
MEMORY_BYTES = 256 * MiB
CACHES = 2  # as much as they hold, at least so many times
OF_MODELS: dict[str, object] = {  # options that have no effect here, and their defaults
    "ram": None,
    "prompt_tokens": None,
    "new_tokens": None,
    "kv_type": "f16",
    "policy": "rows",
    "prefetch": True,
    "prefetch_window": None,
    "io_threads": None,
    "force": False,
    "device": None,
    "vram": None,
    "strategy": None,
    "prefill_strategy": None,
    "decode_strategy": None,
}
LEGEND = (
    "GB/s of weights and GOP/s, two a multiply-add, of the best run; ± how much longer the median",
    "took. read: reading this memory and nothing else; multiply: the multiply instructions alone,",
    "on operands in registers and the first cache, in the lightest form that this set has; both",
    "measured here, beside each type. % is of read and of multiply.",
)


def bench_kernels(args: argparse.Namespace, console: Console) -> int:
    """All types that have a kernel, or those of MODEL's matrices. Raises OptionError."""
    for name, default in OF_MODELS.items():
        if getattr(args, name) != default:
            option = "no-prefetch" if name == "prefetch" else name.replace("_", "-")
            raise OptionError(f"--{option} has no effect with --kernels", "leave one of them out")
    if args.repeat < 1:
        raise OptionError(f"--repeat is {args.repeat}; it must be 1 or more")
    types = [kind for kind in BLOCK_TYPES.values() if kind.has_kernel]
    if args.model is not None:
        weights = open_model(model_path(args.model)).weights
        types = list(dict.fromkeys(m.tensor.block_type for m in weights.matrices))
    context = kernel_context(thread_count(args.threads))
    cache_bytes = machine.cache_bytes(machine.Roots())
    size_bytes = _memory_bytes(cache_bytes)
    found = []
    with closing(Arena(size_bytes)) as arena:
        memory = arena.take(size_bytes)
        ctypes.memset(memory.address, 1, size_bytes)
        head = {
            "isa": context.isa,
            "threads": context.threads,
            "memory_bytes": size_bytes,
            "huge_bytes": arena.huge_bytes(),
            "cache_bytes": cache_bytes,
        }
        if not args.json:
            print("\n".join(_heading(head)), flush=True)
        for kind in types:
            before = measure_bounds(context, memory)
            rates = tuple(_measure(kind, context, memory, args.repeat, console))
            bounds = _better(before, measure_bounds(context, memory))
            found.append(_as_json(kind, rates, bounds))
            if not args.json:
                print("\n".join(_table(kind, rates, bounds)), flush=True)
    if args.json:
        print(json.dumps(head | {"types": found}))
    return 0


def _memory_bytes(cache_bytes: int) -> int:
    """Beyond the caches, as far as half of what may be taken allows."""
    spare = (default_budget(available_memory()) - resident_bytes()) // 2
    wanted = min(spare, max(MEMORY_BYTES, CACHES * cache_bytes))
    return max(1, wanted // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES


def _measure(
    kind: BlockType, context: _kernels.Context, memory: Region, repeats: int, console: Console
) -> Iterator[ProductRate]:
    for tokens in TOKENS:
        for locked in (True, False):
            layout = "locked" if locked else "streamed"
            console.status(f"{kind.name} · {count(tokens, 'token')} · {layout}")
            yield measure_product(context, kind, tokens, memory, locked=locked, repeats=repeats)
    console.clear()


def _better(a: Bounds, b: Bounds) -> Bounds:
    """A machine that others use gives less at times."""
    return Bounds(
        max(a.read_bytes_per_s, b.read_bytes_per_s),
        max(a.int8_ops_per_s, b.int8_ops_per_s),
        max(a.float_ops_per_s, b.float_ops_per_s),
        max(a.bf16_ops_per_s, b.bf16_ops_per_s),
    )


def _ops_bound(kind: BlockType, bounds: Bounds) -> tuple[str, float]:
    """What is multiplied, and how many operations a second that gives at most."""
    if kind.name == "BF16":
        return "bfloat16", bounds.bf16_ops_per_s
    if kind.name in FLOAT_TYPES:
        return "float32", bounds.float_ops_per_s
    return "int8", bounds.int8_ops_per_s


def _heading(head: dict[str, Any]) -> list[str]:
    memory, huge, cache = (head[f"{name}_bytes"] for name in ("memory", "huge", "cache"))
    caches = f"caches of {format_bytes(cache)}" if cache else "caches of unknown size"
    return [
        f"{head['isa']}, {count(head['threads'], 'thread')}; weights in {format_bytes(memory)}, "
        f"{share(huge, memory)} huge pages; {caches}",
        *LEGEND,
    ]


def _table(kind: BlockType, rates: Sequence[ProductRate], bounds: Bounds) -> list[str]:
    """A line per number of tokens, locked beside streamed."""
    values, most = _ops_bound(kind, bounds)
    title = (
        f"{kind.name}: read {bytes_rate(bounds.read_bytes_per_s)}, "
        f"multiply {most / 1e9:.0f} GOP/s {values}"
    )
    columns = ["GB/s", "%", "GOP/s", "%", "±"]
    lines = [["tokens", "locked", *columns, "streamed", *columns]]
    for tokens in TOKENS:
        line = [str(tokens)]
        for rate in rates:
            if rate.tokens == tokens:
                line += ["", *_cells(rate, bounds)]
        lines.append(line)
    return ["", title, *aligned(lines, left=0)]


def _cells(rate: ProductRate, bounds: Bounds) -> list[str]:
    return [
        f"{rate.bytes_per_s / 1e9:.2f}",
        f"{100 * rate.bytes_per_s / bounds.read_bytes_per_s:.0f}",
        f"{rate.ops_per_s / 1e9:.0f}",
        f"{100 * rate.ops_per_s / _ops_bound(rate.kind, bounds)[1]:.0f}",
        f"{100 * (rate.times.median_s / rate.times.best_s - 1):.0f} %",
    ]


def _as_json(kind: BlockType, rates: Sequence[ProductRate], bounds: Bounds) -> dict[str, Any]:
    products = [
        {
            "tokens": rate.tokens,
            "layout": "locked" if rate.locked else "streamed",
            "rows": rate.rows,
            "weight_bytes": rate.weight_bytes,
            "bytes_per_s": rate.bytes_per_s,
            "ops_per_s": rate.ops_per_s,
            "median_s": rate.times.median_s,
            "seconds": rate.times.seconds,
        }
        for rate in rates
    ]
    return {"type": kind.name, **asdict(bounds), "products": products}
