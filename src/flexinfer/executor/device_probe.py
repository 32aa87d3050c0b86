"""A short look at what an accelerator gives: the link, and products by our own operations."""

import ctypes
import time
from collections.abc import Callable, Iterable
from contextlib import closing

import numpy as np

from flexinfer.executor.device import OpenDevice
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.arena import Arena
from flexinfer.models.spec import ModelSpec
from flexinfer.ops.base import BoundMatrix, Input
from flexinfer.planner.hardware import Device, Link
from flexinfer.planner.tiles import TOKEN_TILE
from flexinfer.units import MiB

LINK_BYTES = 4 * MiB  # a full request
ROWS, COLUMNS = 512, 2048
REPEATS = 3


def probe_device(
    device: OpenDevice, spec: ModelSpec, types: Iterable[BlockType], vram_bytes: int
) -> Device:
    """Measure; takes some tens of MiB there for a moment."""
    size_bytes = 4 * ROWS * COLUMNS + 8 * TOKEN_TILE * (ROWS + COLUMNS)
    memory = device.arena(max(size_bytes, LINK_BYTES) + MiB)
    region = memory.take(max(size_bytes, LINK_BYTES))
    with closing(Arena(LINK_BYTES)) as arena:
        source = arena.take(LINK_BYTES)
        ctypes.memset(source.address, 1, LINK_BYTES)
        link_s = _least_s(
            lambda: memory.copy(source.address, LINK_BYTES, region.part(0, LINK_BYTES)),
            device.synchronise,
        )
    link = Link(LINK_BYTES / link_s)
    weights, rest = region.part(0, 4 * ROWS * COLUMNS), 4 * ROWS * COLUMNS
    x = region.part(rest, 4 * TOKEN_TILE * COLUMNS).array(np.float32, (TOKEN_TILE, COLUMNS))
    out = region.part(rest + 4 * TOKEN_TILE * COLUMNS, 4 * TOKEN_TILE * ROWS).array(
        np.float32, (TOKEN_TILE, ROWS)
    )
    ops = device.ops(spec, memory, None, None, None)
    ops.scale(x, 0.0)
    bandwidths, rates = [], {}
    for kind in dict.fromkeys((*types, BLOCK_TYPES[1])):  # F16 is what attention goes by
        row_bytes = kind.row_bytes(COLUMNS)
        matrix = BoundMatrix(
            "probe", kind.ggml_id, ROWS, COLUMNS, row_bytes, 16 * row_bytes, False,
            weights.address, ROWS, (), interleaved=False,
        )  # fmt: skip
        seconds = {
            tokens: _least_s(
                lambda n=tokens, m=matrix: ops.linear(m, Input(x[:n], None), out[:n]),  # type: ignore[misc]
                device.synchronise,
            )
            for tokens in (1, TOKEN_TILE)
        }
        bandwidths.append(ROWS * row_bytes / seconds[1])
        rates[kind.name] = 2 * ROWS * COLUMNS * TOKEN_TILE / seconds[TOKEN_TILE]
    return Device(vram_bytes, bandwidths[0], rates, link, link)


def _least_s(work: Callable[[], object], finish: Callable[[], None]) -> float:
    """The shortest of a few times, after one for warming up."""
    times = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        finish()
        times.append(time.perf_counter() - started)
    return min(times[1:])
