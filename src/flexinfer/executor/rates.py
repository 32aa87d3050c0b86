"""How fast the kernels multiply: one block type, one number of tokens, one layout at a time."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from flexinfer import _kernels
from flexinfer.formats.quants import BlockType
from flexinfer.memory.arena import Region
from flexinfer.planner.placement import GROUP_ROWS

COLUMNS = 4096
MAX_ROWS = 16384
FIRST_ROWS = 64
ENOUGH_S = 0.1  # of one product: with kernels that take longer fewer rows do


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of the same work, run several times."""

    seconds: tuple[float, ...]

    @property
    def best_s(self) -> float:
        return min(self.seconds)

    @property
    def median_s(self) -> float:
        return float(np.median(self.seconds))


@dataclass(frozen=True, slots=True)
class ProductRate:
    """Products of `tokens` activations with rows of one type, locked (interleaved) or as in the
    file.
    """

    kind: BlockType
    tokens: int
    locked: bool
    rows: int
    columns: int
    times: Times

    @property
    def weight_bytes(self) -> int:
        return self.rows * self.kind.row_bytes(self.columns)

    @property
    def operations(self) -> int:
        return 2 * self.rows * self.columns * self.tokens

    @property
    def bytes_per_s(self) -> float:
        """Of weights, in the best run."""
        return self.weight_bytes / self.times.best_s

    @property
    def ops_per_s(self) -> float:
        """Two per multiply-add, in the best run."""
        return self.operations / self.times.best_s

    @property
    def usual_bytes_per_s(self) -> float:
        return self.weight_bytes / self.times.median_s

    @property
    def usual_ops_per_s(self) -> float:
        return self.operations / self.times.median_s


@dataclass(frozen=True, slots=True)
class Bounds:
    """What no product can be faster than: reading its weights and doing nothing else, and the
    multiply instructions alone, on operands at hand (the processor's ports and clock).
    """

    read_bytes_per_s: float
    int8_ops_per_s: float
    float_ops_per_s: float
    bf16_ops_per_s: float


def measure_bounds(context: _kernels.Context, memory: Region, repeats: int = 3) -> Bounds:
    """The best of several runs each; `memory` must have been touched."""

    def best(measure: Callable[[], float]) -> float:
        return max(measure() for _ in range(repeats))

    return Bounds(
        best(lambda: _kernels.read_bandwidth(context, memory.address, memory.size_bytes, 1)),
        best(lambda: _kernels.port_rate(context, "int8")),
        best(lambda: _kernels.port_rate(context, "float32")),
        best(lambda: _kernels.port_rate(context, "bfloat16")),
    )


def measure_product(
    context: _kernels.Context,
    kind: BlockType,
    tokens: int,
    memory: Region,
    *,
    locked: bool = True,
    columns: int = COLUMNS,
    max_rows: int = MAX_ROWS,
    repeats: int = 3,
) -> ProductRate:
    """Multiply whatever `memory` holds, which must have been touched; time does not depend on it.

    Every repeat takes the memory behind the last one's, so weights come from memory where the
    region is larger than the caches. A first product of few rows says how many take ENOUGH_S.
    """
    row_bytes = kind.row_bytes(columns)
    most = min(memory.size_bytes // row_bytes, max_rows)
    # All of it written to: the first touch of memory is not the product's.
    x = np.ones((tokens, columns), np.float32)
    quantised = np.ones((tokens, _kernels.activation_bytes(columns)), np.uint8)
    _kernels.quantize(context, x, quantised)

    def times(rows: int, repeats: int) -> Times:
        assert rows > 0
        out = np.ones((tokens, rows), np.float32)
        places = memory.size_bytes // (rows * row_bytes)
        passes = iter(range(repeats))

        def product() -> None:
            address = memory.address + next(passes) % places * rows * row_bytes
            where = (kind.ggml_id, locked, address, rows, columns)
            _kernels.linear(context, *where, x, quantised, out, 0, 0, None)

        return timed(product, repeats)

    few = min(most, FIRST_ROWS) // GROUP_ROWS * GROUP_ROWS
    enough = int(few * ENOUGH_S / times(few, 1).best_s)
    rows = max(few, min(most, enough) // GROUP_ROWS * GROUP_ROWS)
    return ProductRate(kind, tokens, locked, rows, columns, times(rows, repeats))


def timed(call: Callable[[], object], repeats: int = 3) -> Times:
    """How long each of several calls takes."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return Times(tuple(times))
