"""A look of a quarter of a second at what this machine gives: the disk at the model's place,
memory, our kernels.
"""

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path

from flexinfer import _kernels
from flexinfer.executor.executor import MAX_RECORDED_TOKENS
from flexinfer.executor.kernel_rates import Bench, attention_rates, kernel_rates
from flexinfer.formats.quants import BlockType
from flexinfer.memory.arena import Arena
from flexinfer.models.spec import ModelSpec
from flexinfer.planner.hardware import Glue, Hardware, Host
from flexinfer.streaming.probe import DEPTHS, probe_disk
from flexinfer.units import MiB

TOKENS = (8, 64)
MAX_READ_BYTES = 64 * MiB  # beyond the caches
MIN_READ_BYTES = 4 * MiB
# A layer replayed natively, its 18 calls made from Python, and a sweep; all of them small.
GLUE = Glue(5e-6, 72e-6, MAX_RECORDED_TOKENS, 60e-6)


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
        # Untouched memory is one page of zeros, all in cache.
        ctypes.memset(region.address, 1, read_bytes)
        memory = _kernels.read_bandwidth(context, region.address, read_bytes, 2)
        bench = Bench(context, region)
        kernels = {t.name: kernel_rates(bench, t, TOKENS).at_most(memory) for t in types}
        group = spec.heads // spec.kv_heads
        attention = attention_rates(bench, spec.head_dim, group, kv_type, spec.kv_heads)
    return Hardware("this machine", "probe", disk, Host(memory, kernels, (attention,), GLUE))
