"""Measures this machine with the engine's own kernels and reader: some seventeen seconds, where the
probe takes a quarter of one.

Everything is measured in several rounds, and of each figure the mean time counts, as a run's time
is the sum of its parts': neighbours of a virtual processor slow it for moments that a median hides,
and for seconds at a time, which repeats on the spot would not outlast.
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, fields, is_dataclass, replace
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

from flexinfer import _kernels
from flexinfer.executor.contention import ReadingBench, with_contention
from flexinfer.executor.executor import MAX_RECORDED_TOKENS
from flexinfer.executor.kernel_rates import Bench, attention_rates, glue_rates, kernel_rates
from flexinfer.executor.overhead import engine_overhead
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory import machine
from flexinfer.memory.arena import Arena, Region
from flexinfer.memory.budget import available_memory, default_budget
from flexinfer.planner.disk import Disk
from flexinfer.planner.hardware import Glue, Host, KernelRates
from flexinfer.planner.placement import BLOCK_BYTES
from flexinfer.planner.sizes import KV_TYPES
from flexinfer.streaming.probe import probe_disk
from flexinfer.streaming.reader import Reader
from flexinfer.units import MiB

TOKENS = (2, 4, 8, 16, 64, 512)
MEMORY_BYTES = 64 * MiB  # beyond the caches, at least
LEAST_BYTES = 4 * MiB  # of a small container: rather from the caches than not at all
CACHES = 4  # times what the processor has: of twice that a third still comes from them
ROUNDS = 5
OUTLIER = 2.0  # times the median
RATE = "_per_s"  # ends the names of rates
HEAD_DIMS, GROUPS, USUAL = (64, 128, 256), (1, 4), (128, 4)
F16 = KV_TYPES["f16"]
DISK_S = 1.2
Progress = Callable[[str, int, int], None]  # step, done, of how many


def measure_host(
    context: _kernels.Context,
    shapes: Iterable[tuple[int, int]] = (),
    progress: Progress | None = None,
) -> Host:
    """Memory, every block type that has a kernel, attention for heads of the usual shapes and of
    `shapes` (size, heads to a key-value head), with the cache in each of its types for some, and
    what the engine takes itself.
    """
    types = [kind for kind in BLOCK_TYPES.values() if kind.has_kernel]
    heads = [(shape, F16) for shape in dict.fromkeys((*shapes, *product(HEAD_DIMS, GROUPS)))]
    for shape, kind in product(dict.fromkeys((*shapes, USUAL)), KV_TYPES.values()):
        if kind is not F16 and shape[0] % kind.block_values == 0:
            heads.append((shape, kind))
    steps, done = ROUNDS * (len(types) + len(heads) + 1), 0

    def step(what: str) -> None:
        nonlocal done
        if progress:
            progress(what, done, steps)
        done += 1

    def measured(bench: Bench) -> Host:
        kernels: dict[str, KernelRates] = {}
        memory, attention = _memory(bench), []
        for kind in types:
            step("kernels")
            kernels[kind.name] = kernel_rates(bench, kind, TOKENS)
        for (head_dim, group), kind in heads:
            step("attention")
            attention.append(attention_rates(bench, head_dim, group, kind))
        step("the engine")
        own = engine_overhead(context)
        glue = Glue(replayed_tokens=MAX_RECORDED_TOKENS, **asdict(own), **glue_rates(bench))
        return Host(memory, kernels, tuple(attention), glue)

    with touched_memory() as region:
        rounds = [measured(Bench(context, region, repeats=1)) for _ in range(ROUNDS)]
    host: Host = usual(rounds)
    # Memory gives at times less, but never more than it can; a product that reads faster tells as
    # much, as no weight comes from a cache.
    products = (rates.bytes_per_s for rates in host.kernels.values())
    memory = max(*(found.memory_bytes_per_s for found in rounds), *products)
    return replace(host, memory_bytes_per_s=memory)


@contextmanager
def touched_memory() -> Iterator[Region]:
    """More than the caches hold, if so much may be taken."""
    wanted = max(MEMORY_BYTES, CACHES * machine.cache_bytes(machine.Roots()))
    size = max(LEAST_BYTES, min(wanted, default_budget(available_memory()) // 2))
    with Arena(size) as arena:
        memory = arena.take(size, BLOCK_BYTES)
        ctypes.memset(memory.address, 0, size)
        yield memory


def usual(values: Sequence[Any], rate: bool = False) -> Any:
    """The same structure, each number what those in its place are on average: a rate that of the
    mean time.
    """
    first = values[0]
    if is_dataclass(first):
        kind: Any = type(first)
        return kind(
            *(
                usual([getattr(value, field.name) for value in values], field.name.endswith(RATE))
                for field in fields(first)
            )
        )
    if isinstance(first, dict):
        return {key: usual([value[key] for value in values], rate) for key in first}
    if isinstance(first, tuple):
        return tuple(usual(found, rate) for found in zip(*values, strict=True))
    if not isinstance(first, int | float) or all(value == first for value in values):
        return first
    return 1 / _mean_s([1 / value for value in values]) if rate else _mean_s(values)


def _mean_s(times: Sequence[float]) -> float:
    """One that took several times as long as others is not what is usual: a pause of the host's."""
    limit = OUTLIER * median(times)
    return fmean(min(time, limit) for time in times)


def _memory(bench: Bench) -> float:
    return max(
        _kernels.read_bandwidth(bench.context, bench.memory.address, bench.memory.size_bytes, 1)
        for _ in range(2)
    )


def measure_disk(path: Path, context: _kernels.Context, seconds: float = DISK_S) -> Disk:
    """The disk at a model's place, as the probe does, for longer, and what reading and computing
    cost each other. Raises ReadError.
    """
    disk = probe_disk(path, seconds=seconds)
    with touched_memory() as memory, closing(Reader(path)) as reader:
        return with_contention(disk, ReadingBench(context, memory, reader))
