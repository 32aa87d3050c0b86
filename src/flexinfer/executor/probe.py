"""A look of a quarter of a second at what this machine gives: the disk at the model's place,
memory, our kernels.
"""

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from flexinfer import _kernels
from flexinfer.executor.rates import measure_product, timed
from flexinfer.formats.quants import BlockType
from flexinfer.memory.arena import Arena, Region
from flexinfer.models.spec import ModelSpec
from flexinfer.planner.estimator import visible_keys
from flexinfer.planner.hardware import Hardware, KernelRates
from flexinfer.streaming.probe import DEPTHS, probe_disk
from flexinfer.units import MiB

TOKENS = 64  # that stand for many
MANY_ROWS = 1024  # do for so many tokens
ATTENTION_PAGES = 4  # a prompt of 256 tokens
MAX_READ_BYTES = 64 * MiB  # beyond the caches
MIN_READ_BYTES = 4 * MiB


def probe(
    path: Path,
    types: Iterable[BlockType],
    spec: ModelSpec,
    kv_type: BlockType,
    context: _kernels.Context,
    spare_bytes: int,
    request_bytes: int,
    depths: Sequence[int] = DEPTHS,
) -> Hardware:
    """Measure; touches half of `spare_bytes` of memory, at most 64 MiB, for a moment.

    The disk is read in requests of that size, with each of `depths` in flight. Raises ReadError.
    """
    read_bytes = max(MIN_READ_BYTES, min(MAX_READ_BYTES, spare_bytes // 2))
    disk = probe_disk(path, request_bytes, depths)
    with closing(Arena(read_bytes)) as arena:
        region = arena.take(read_bytes)
        address = region.address
        ctypes.memset(address, 1, read_bytes)  # untouched memory is one page of zeros, all in cache
        memory = _kernels.read_bandwidth(context, address, read_bytes, 2)
        kernels = {t.name: _rates(t, context, region, memory) for t in types}
        attention = _attention_rate(spec, kv_type, context, address, read_bytes)
    return Hardware(disk, memory, attention, kernels)


def _attention_rate(
    spec: ModelSpec, kv_type: BlockType, context: _kernels.Context, address: int, memory_bytes: int
) -> float:
    """Operations/s of a prompt's attention over one layer of the model, its cache at `address`."""
    shape = (spec.heads, spec.kv_heads, spec.head_dim, kv_type.ggml_id)
    page_bytes = _kernels.kv_page_bytes(*shape[1:])
    pages = max(1, min(ATTENTION_PAGES, memory_bytes // page_bytes))
    n = pages * _kernels.KV_PAGE_TOKENS
    q = np.zeros((n, spec.heads * spec.head_dim), np.float32)
    out = np.zeros_like(q)
    table = np.arange(pages, dtype=np.int32)

    def attend() -> None:
        _kernels.attention(context, q, out, address, page_bytes, table, 0, *shape, 1.0)

    return 2 * 2 * spec.heads * spec.head_dim * visible_keys(0, n, None) / timed(attend).best_s


def _rates(
    kind: BlockType, context: _kernels.Context, memory: Region, memory_bytes_per_s: float
) -> KernelRates:
    one = measure_product(context, kind, 1, memory)
    many = measure_product(context, kind, TOKENS, memory, max_rows=MANY_ROWS)
    return KernelRates(min(one.bytes_per_s, memory_bytes_per_s), many.ops_per_s)
