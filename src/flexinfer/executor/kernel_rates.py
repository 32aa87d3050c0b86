"""What our kernels reach on this machine, as the estimator asks for it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flexinfer import _kernels
from flexinfer.executor.rates import COLUMNS, ProductRate, measure_product, timed
from flexinfer.executor.sampler import Sampler, SamplingParams
from flexinfer.formats.quants import BLOCK_TYPES, BlockType
from flexinfer.memory.arena import Region
from flexinfer.ops.base import Epilogue
from flexinfer.planner.estimator import TILE_KEYS, visible_keys, visited_keys
from flexinfer.planner.hardware import AttentionRates, KernelRates
from flexinfer.planner.placement import GROUP_ROWS

ROWS = 4096  # of a matrix, as in a model: a call's own time and what it writes count
NARROW_COLUMNS = 256  # of a matrix whose rows are many for its size
NARROW_ROWS = 16384  # of one with many tokens
RESULT_TOKENS = 64  # of those that are measured: the least whose products wait for no memory
LONG_TOKENS = 1024  # of the cache that one token's attention is measured with
PROMPT_TOKENS = 256
GLUE_TOKENS, GLUE_COLUMNS, GLUE_HEAD = 256, 2048, 128
F32_COLUMNS = 16
FEW_TOKENS = 2  # whose products wait for memory
F32, F16 = BLOCK_TYPES[0], BLOCK_TYPES[1]
SAMPLED = 1 << 17  # logits


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the kernels are measured: threads, and memory beyond the caches that was touched."""

    context: _kernels.Context
    memory: Region
    repeats: int = 3

    def forget(self) -> None:
        """Have what comes next read from memory: a pass over all leaves its end in the caches."""
        _kernels.read_bandwidth(self.context, self.memory.address, self.memory.size_bytes, 1)

    def usual_s(self, call: Callable[[], object]) -> float:
        """The median: a prediction is of what is usual, and the best is rarer than that."""
        return timed(call, self.repeats).median_s


def kernel_rates(bench: Bench, kind: BlockType, tokens: Sequence[int]) -> KernelRates:
    """At one token and at the ascending numbers `tokens`, of more than one, RESULT_TOKENS among
    them.
    """

    def found(
        count: int, locked: bool = True, columns: int = COLUMNS, rows: int = ROWS
    ) -> ProductRate:
        if count <= FEW_TOKENS:
            bench.forget()
        return measure_product(
            bench.context,
            kind,
            count,
            bench.memory,
            locked=locked,
            columns=columns,
            max_rows=rows,
            repeats=bench.repeats,
        )

    one, many = found(1), [found(count) for count in tokens]
    narrow_file = found(1, False, NARROW_COLUMNS, ROWS * COLUMNS // NARROW_COLUMNS)
    streamed_per_s, group_s = streamed_rates(found(1, False), narrow_file)
    narrow = found(RESULT_TOKENS, True, NARROW_COLUMNS, NARROW_ROWS)
    each_s = result_s(many[tokens.index(RESULT_TOKENS)], narrow)
    points = ((1, one.usual_ops_per_s), *((p.tokens, arithmetic_per_s(p, each_s)) for p in many))
    bytes_per_s = one.usual_bytes_per_s
    return KernelRates(bytes_per_s, min(bytes_per_s, streamed_per_s), points, group_s, each_s)


def streamed_rates(wide: ProductRate, narrow: ProductRate) -> tuple[float, float]:
    """Bytes/s and the seconds that every group of 16 rows takes besides, of two products."""

    def of_group(found: ProductRate) -> tuple[float, float]:
        groups = found.rows / GROUP_ROWS
        return found.times.median_s / groups, found.weight_bytes / groups

    (wide_s, wide_bytes), (narrow_s, narrow_bytes) = of_group(wide), of_group(narrow)
    byte_s = (wide_s - narrow_s) / (wide_bytes - narrow_bytes)
    # Timed amid noise: half of a wide group's time is its bytes' at least, and all of it at most.
    byte_s = min(max(byte_s, wide_s / wide_bytes / 2), wide_s / wide_bytes)
    return 1 / byte_s, max(0.0, wide_s - wide_bytes * byte_s)


def result_s(wide: ProductRate, narrow: ProductRate) -> float:
    """Seconds that a result takes, of two products of as many tokens."""

    def of_row(found: ProductRate) -> float:
        return found.times.median_s / found.rows / found.tokens

    seconds = of_row(narrow) - of_row(wide) * narrow.columns / wide.columns
    seconds /= 1 - narrow.columns / wide.columns
    return min(max(seconds, 0.0), of_row(narrow) / 2)  # timed amid noise


def arithmetic_per_s(found: ProductRate, each_s: float) -> float:
    """Operations/s without what results take, the first token's left out as KernelRates has it."""
    seconds = found.times.median_s - found.rows * (found.tokens - 1) * each_s
    return found.operations / max(seconds, found.times.median_s / 2)


def attention_rates(
    bench: Bench, head_dim: int, group: int, kv_type: BlockType, kv_heads: int = 4
) -> AttentionRates:
    """Of heads of `head_dim`, `group` to a pair of keys and values, which are of `kv_type`."""
    heads = group * kv_heads

    def ops_per_s(tokens: int, context_tokens: int) -> float:
        shape = (heads, kv_heads, head_dim, kv_type.ggml_id)
        page_bytes = _kernels.kv_page_bytes(*shape[1:])
        pages = max(1, min(context_tokens // TILE_KEYS, bench.memory.size_bytes // page_bytes))
        seen = pages * TILE_KEYS
        count = min(tokens, seen)
        q = np.ones((count, heads * head_dim), np.float32)
        out, table = np.zeros_like(q), np.arange(pages, dtype=np.int32)
        where = (bench.memory.address, page_bytes, table, seen - count)
        seconds = bench.usual_s(
            lambda: _kernels.attention(bench.context, q, out, *where, *shape, 1.0)
        )
        span = (seen - count, count, None)
        return 2 * heads * head_dim * (visited_keys(*span) + visible_keys(*span)) / seconds

    one, many = ops_per_s(1, LONG_TOKENS), ops_per_s(PROMPT_TOKENS, PROMPT_TOKENS)
    return AttentionRates(head_dim, group, one, many, kv_type.name)


def glue_rates(bench: Bench) -> dict[str, float]:
    """Values/s of what lies between products, by the names of Glue."""
    tokens, columns = GLUE_TOKENS, GLUE_COLUMNS
    context, heads = bench.context, columns // GLUE_HEAD
    x = np.ones((tokens, columns), np.float32)
    out = np.zeros_like(x)
    weight = np.ones(columns, np.float32)
    quantised = np.ones((tokens, _kernels.activation_bytes(columns)), np.uint8)
    angles = np.ones((tokens, GLUE_HEAD), np.float32)
    table = np.arange(tokens // TILE_KEYS, dtype=np.int32)
    page_bytes = _kernels.kv_page_bytes(heads, GLUE_HEAD, F16.ggml_id)
    logits = np.ones(SAMPLED, np.float32)
    sampler = Sampler(SamplingParams(), SAMPLED)

    def product(epilogue: int) -> Callable[[], None]:
        """Of so few columns that what follows it counts."""
        where = (F32.ggml_id, True, bench.memory.address, columns, F32_COLUMNS)
        narrow = np.ascontiguousarray(x[:, :F32_COLUMNS])
        return lambda: _kernels.linear(context, *where, narrow, None, out, 0, epilogue, None)

    def append() -> None:
        where = (bench.memory.address, page_bytes, table, 0, heads, GLUE_HEAD, F16.ggml_id)
        _kernels.kv_append(context, x, x, *where)

    calls: dict[str, tuple[int, Callable[[], object]]] = {
        "norm_per_s": (x.size, lambda: _kernels.rms_norm(context, x, weight, 1e-5, out)),
        "quantise_per_s": (x.size, lambda: _kernels.quantize(context, x, quantised)),
        "rope_per_s": (x.size, lambda: _kernels.rope(context, x, heads, GLUE_HEAD, angles, True)),
        "append_per_s": (2 * x.size, append),
        "sample_per_s": (SAMPLED, lambda: sampler.sample(logits)),
    }
    rates = {name: size / bench.usual_s(call) for name, (size, call) in calls.items()}
    gated_s = bench.usual_s(product(Epilogue.SILU_MUL)) - bench.usual_s(product(Epilogue.STORE))
    return rates | {"gate_per_s": x.size / max(gated_s, x.size / rates["norm_per_s"] / 4)}
