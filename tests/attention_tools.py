"""A layer's paged cache in memory of its own, and what each of its types keeps."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from flexinfer import _kernels

Array = np.ndarray[Any, Any]
ISAS = _kernels.available_isas()
PAGE = _kernels.KV_PAGE_TOKENS
BLOCK = 32  # values to a scale in q8_0
TYPE_IDS = {"f32": 0, "f16": 1, "q8_0": 8}


@dataclass(frozen=True, slots=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    kv_type: str = "f16"
    window: int = 0
    softcap: float = 0.0
    tokens: int = 150
    magnitude: float = 1.0  # of q: the scores' standard deviation

    @property
    def type_id(self) -> int:
        return TYPE_IDS[self.kv_type]

    @property
    def dtype(self) -> type[np.floating[Any]]:
        return np.float16 if self.kv_type == "f16" else np.float32

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    def inputs(self) -> tuple[Array, Array, Array]:
        rng = np.random.default_rng(7)

        def normal(heads: int) -> Array:
            return rng.standard_normal((self.tokens, heads * self.head_dim), dtype=np.float32)

        q = normal(self.heads) * np.float32(self.magnitude)
        return q, normal(self.kv_heads), normal(self.kv_heads)


class Cache:
    """Pages in memory of their own, NaN wherever nothing was written, with gaps between them."""

    def __init__(self, case: Case, table: Iterable[int], gap_bytes: int = 0) -> None:
        self.case = case
        self.table = np.array(list(table), np.int32)
        self.page_bytes = _kernels.kv_page_bytes(case.kv_heads, case.head_dim, case.type_id)
        self.stride = self.page_bytes + gap_bytes
        self.memory = np.full((int(self.table.max()) + 1, self.stride), 0xFF, np.uint8)

    def append(self, ctx: _kernels.Context, k: Array, v: Array, start: int) -> None:
        _kernels.kv_append(
            ctx,
            k,
            v,
            self.memory.ctypes.data,
            self.stride,
            self.table,
            start,
            self.case.kv_heads,
            self.case.head_dim,
            self.case.type_id,
        )

    def attend(self, ctx: _kernels.Context, q: Array, start: int) -> Array:
        case = self.case
        out = np.full_like(q, np.nan)
        _kernels.attention(
            ctx,
            q,
            out,
            self.memory.ctypes.data,
            self.stride,
            self.table,
            start,
            case.heads,
            case.kv_heads,
            case.head_dim,
            case.type_id,
            case.scale,
            case.window,
            case.softcap,
        )
        return out

    def page(self, number: int) -> tuple[Array, Array]:
        """K as [kv_head, head_dim, 64] and V as [kv_head, 64, head_dim], of floats."""
        case = self.case
        values = self.memory[number, : self.page_bytes].view(case.dtype)
        k, v = values.reshape(2, -1)
        return (
            k.reshape(case.kv_heads, case.head_dim, PAGE),
            v.reshape(case.kv_heads, PAGE, case.head_dim),
        )

    def blocks(self, number: int) -> tuple[Array, Array, Array, Array]:
        """The same of q8_0: K, its scales [kv_head, head_dim / 32, 64], V, and its scales."""
        case = self.case
        half = self.memory[number, : self.page_bytes].reshape(2, case.kv_heads, -1)
        values = half[:, :, : PAGE * case.head_dim].view(np.int8)
        scales = half[:, :, PAGE * case.head_dim :].view(np.float16)
        k, v = values.reshape(2, case.kv_heads, -1)
        k_scales, v_scales = scales.reshape(2, case.kv_heads, -1, PAGE)
        return (
            k.reshape(case.kv_heads, case.head_dim, PAGE),
            k_scales,
            v.reshape(case.kv_heads, PAGE, case.head_dim),
            v_scales,
        )


def q8_0(x: Array) -> tuple[Array, Array]:
    """x[..., head_dim] as int8, and a float16 scale for each 32 of it."""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK)
    with np.errstate(all="ignore"):
        scales = (np.abs(blocks).max(-1) / np.float32(127)).astype(np.float16)
        divisors = scales.astype(np.float32)[..., None]
        rounded = np.rint(blocks / divisors).clip(-127, 127)
        kept = (divisors > 0) & np.isfinite(divisors)
        return np.where(kept, rounded, 0).astype(np.int8).reshape(x.shape), scales


def cached(case: Case, x: Array) -> Array:
    """What is left of x[tokens, kv_heads * head_dim]: float64 [tokens, kv_heads, head_dim]."""
    x = x.reshape(-1, case.kv_heads, case.head_dim)
    if case.kv_type != "q8_0":
        return x.astype(case.dtype).astype(np.float64)
    q, scales = q8_0(x)
    return q.astype(np.float64) * np.repeat(scales.astype(np.float64), BLOCK, axis=-1)


def pages(case: Case) -> int:
    return -(-case.tokens // PAGE)


def run(case: Case, ctx: _kernels.Context, chunk: int, table: Iterable[int] | None = None) -> Array:
    """All of the case's tokens, `chunk` at a time."""
    q, k, v = case.inputs()
    cache = Cache(case, range(pages(case)) if table is None else table)
    parts = []
    for start in range(0, case.tokens, chunk):
        rows = slice(start, start + chunk)
        cache.append(ctx, k[rows], v[rows], start)
        parts.append(cache.attend(ctx, q[rows], start))
    return np.concatenate(parts)
