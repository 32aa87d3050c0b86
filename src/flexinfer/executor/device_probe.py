"""A short look at what an accelerator gives: the link, and products by our own operations."""

import ctypes
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from flexinfer.executor.device import DeviceMemory, OpenDevice
from flexinfer.executor.device_overhead import layer_overhead_s
from flexinfer.executor.model import Model
from flexinfer.executor.sides import TwoWayOps
from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.memory.arena import Arena
from flexinfer.ops.base import BoundMatrix, Input
from flexinfer.planner.device import LINK_THREADS
from flexinfer.planner.hardware import Device, Link
from flexinfer.planner.tiles import TOKEN_TILE
from flexinfer.units import MiB

LINK_BYTES = 4 * MiB  # a full request
SHORT_BYTES = 4096  # next to nothing but the latency
ROWS, COLUMNS = 512, 2048
QUEUED = 8  # products of one token, or transfers, asked for at once, as a layer asks for them
REPEATS = 5
ENOUGH_S = 0.1  # what takes that long is measured once


def probe_device(device: OpenDevice, model: Model, vram_bytes: int) -> Device:
    """Measure; takes some tens of MiB there for a moment."""
    size_bytes = max(4 * ROWS * COLUMNS + 8 * TOKEN_TILE * (ROWS + COLUMNS), LINK_BYTES)
    memory = device.arena(size_bytes + MiB)
    region = memory.take(size_bytes)
    ops = device.ops(model.spec, memory, None, None, None)
    to_device, to_host = _links(device, memory, region, ops)
    weights, rest = region.part(0, 4 * ROWS * COLUMNS), 4 * ROWS * COLUMNS
    x = region.part(rest, 4 * TOKEN_TILE * COLUMNS).array(np.float32, (TOKEN_TILE, COLUMNS))
    out = region.part(rest + 4 * TOKEN_TILE * COLUMNS, 4 * TOKEN_TILE * ROWS).array(
        np.float32, (TOKEN_TILE, ROWS)
    )
    ops.scale(x, 0.0)
    types = dict.fromkeys(m.tensor.block_type for m in model.weights.matrices)
    bandwidths, streamed, rates = [], [], {}
    for kind in dict.fromkeys((*types, BLOCK_TYPES[1])):  # F16 is what attention goes by
        row_bytes = kind.row_bytes(COLUMNS)
        matrix = BoundMatrix(
            "probe", kind.ggml_id, ROWS, COLUMNS, row_bytes, 16 * row_bytes, False,
            weights.address, ROWS, (), interleaved=False,
        )  # fmt: skip

        def products(tokens: int, count: int, matrix: BoundMatrix = matrix) -> None:
            for _ in range(count):
                ops.linear(matrix, Input(x[:tokens], None), out[:tokens])

        one_s = _least_s(partial(products, 1, QUEUED), device.synchronise) / QUEUED
        many_s = _least_s(partial(products, TOKEN_TILE, 1), device.synchronise)
        bandwidths.append(ROWS * row_bytes / one_s)
        mixed = replace(matrix, interleaved=True)
        one_s = _least_s(partial(products, 1, QUEUED, mixed), device.synchronise) / QUEUED
        streamed.append(ROWS * row_bytes / one_s)
        rates[kind.name] = 2 * ROWS * COLUMNS * TOKEN_TILE / many_s
    layer_s = layer_overhead_s(device, model.spec, model.weights)
    return Device(
        vram_bytes,
        bandwidths[0],
        rates,
        to_device,
        to_host,
        layer_s,
        min(bandwidths[0], streamed[0]),
    )


def _links(
    device: OpenDevice, memory: DeviceMemory, region: Any, ops: TwoWayOps
) -> tuple[Link, Link]:
    """From the times of a long and of a short transfer, each way."""
    with closing(Arena(LINK_BYTES)) as arena:
        host = arena.take(LINK_BYTES)
        ctypes.memset(host.address, 1, LINK_BYTES)
        page_locked = device.page_lock(host.address, LINK_BYTES)  # as a session's memory is

        def there(size_bytes: int) -> None:
            memory.copy(host.address, size_bytes, region.part(0, size_bytes))

        def back(size_bytes: int) -> None:
            shape = (size_bytes // 4,)
            ops.give(region.array(np.float32, shape), values[: shape[0]])

        values = np.zeros(LINK_BYTES // 4, np.float32)
        with ThreadPoolExecutor(LINK_THREADS) as threads:

            def queued(size_bytes: int) -> None:
                """As a stream asks for them, the next one while one is on its way."""
                list(threads.map(there, [size_bytes] * QUEUED))

            short_s = _least_s(partial(queued, SHORT_BYTES), device.synchronise) / QUEUED
        to_device = _link(there, short_s, device.synchronise)
        if page_locked:
            device.page_unlock(host.address)
        short_s = _least_s(partial(back, SHORT_BYTES), device.synchronise)
        return to_device, _link(back, short_s, device.synchronise)


def _link(move: Callable[[int], None], short_s: float, finish: Callable[[], None]) -> Link:
    long_s = _least_s(partial(move, LINK_BYTES), finish)
    bytes_per_s = (LINK_BYTES - SHORT_BYTES) / max(long_s - short_s, long_s / 2)
    return Link(bytes_per_s, max(0.0, short_s - SHORT_BYTES / bytes_per_s))


def _least_s(work: Callable[[], object], finish: Callable[[], None]) -> float:
    """The shortest of a few times, after one for warming up, which counts where it is long."""
    times: list[float] = []
    for _ in range(REPEATS + 1):
        started = time.perf_counter()
        work()
        finish()
        times.append(time.perf_counter() - started)
        if sum(times) > ENOUGH_S:
            break
    return min(times[1:] or times)
