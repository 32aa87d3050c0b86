"""The paged cache and attention against float64, and equal bit for bit however the work is cut."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from flexinfer import _kernels

Array = np.ndarray[Any, Any]
ISAS = _kernels.available_isas()
PAGE = _kernels.KV_PAGE_TOKENS


@dataclass(frozen=True, slots=True)
class Case:
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    value_bytes: int = 2
    window: int = 0
    softcap: float = 0.0
    tokens: int = 150
    magnitude: float = 1.0  # of q: the scores' standard deviation

    @property
    def dtype(self) -> type[np.floating[Any]]:
        return np.float16 if self.value_bytes == 2 else np.float32

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
        self.page_bytes = _kernels.kv_page_bytes(case.kv_heads, case.head_dim, case.value_bytes)
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
            self.case.value_bytes,
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
            case.value_bytes,
            case.scale,
            case.window,
            case.softcap,
        )
        return out

    def page(self, number: int) -> tuple[Array, Array]:
        """K as [kv_head, head_dim, 64] and V as [kv_head, 64, head_dim]."""
        case = self.case
        values = self.memory[number, : self.page_bytes].view(case.dtype)
        k, v = values.reshape(2, -1)
        return (
            k.reshape(case.kv_heads, case.head_dim, PAGE),
            v.reshape(case.kv_heads, PAGE, case.head_dim),
        )


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


def reference(case: Case) -> Array:
    """The definition, in float64, with no tiles and no running softmax."""
    q, k, v = (x.astype(np.float64) for x in case.inputs())
    group = case.heads // case.kv_heads
    q = q.reshape(case.tokens, case.heads, case.head_dim)
    k, v = (
        x.astype(case.dtype).astype(np.float64).reshape(case.tokens, case.kv_heads, case.head_dim)
        for x in (k, v)
    )
    position = np.arange(case.tokens)
    seen = position[None, :] <= position[:, None]
    if case.window:
        seen &= position[None, :] > position[:, None] - case.window
    out = np.empty_like(q)
    for head in range(case.heads):
        scores = q[:, head] @ k[:, head // group].T * case.scale
        if case.softcap:
            scores = case.softcap * np.tanh(scores / case.softcap)
        scores = np.where(seen, scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        out[:, head] = weights @ v[:, head // group] / weights.sum(axis=1, keepdims=True)
    return out.reshape(case.tokens, -1)


CASES = [
    Case(),
    Case(value_bytes=4),
    Case(heads=3, kv_heads=3, head_dim=20),
    Case(heads=3, kv_heads=1, head_dim=20, value_bytes=4),
    Case(heads=9, kv_heads=3, head_dim=96),
    Case(heads=8, kv_heads=1, head_dim=128),
    Case(heads=2, kv_heads=2, head_dim=256, tokens=70),
    Case(heads=4, kv_heads=1, head_dim=256, window=33, tokens=100),
    Case(heads=1, kv_heads=1, head_dim=2, tokens=65),
    Case(heads=2, kv_heads=1, head_dim=512, tokens=66),
    Case(heads=50, kv_heads=1, head_dim=16, tokens=40),
    Case(window=1),
    Case(window=PAGE),
    Case(window=PAGE + 1),
    Case(window=100, value_bytes=4),
    Case(softcap=5.0),
    Case(softcap=20.0, window=40, magnitude=30.0),
    Case(magnitude=200.0),
    Case(magnitude=3000.0, value_bytes=4),
    Case(tokens=1),
    Case(tokens=PAGE),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_is_the_definition(case: Case) -> None:
    # A float32 score errs by about magnitude * 2^-22: a probability's relative error.
    tolerance = 2e-6 + 2e-6 * case.magnitude
    for isa in ISAS:
        got = run(case, _kernels.Context(2, isa), chunk=case.tokens)
        assert np.abs(got - reference(case)).max() <= tolerance


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits_however_the_work_is_cut(case: Case) -> None:
    whole = run(case, _kernels.Context(1, ISAS[-1]), chunk=case.tokens)
    shuffled = np.random.default_rng(1).permutation(pages(case) + 3)[: pages(case)]
    for threads in (1, 2, 3):
        ctx = _kernels.Context(threads, ISAS[-1])
        for chunk in (1, 7, PAGE, case.tokens):
            again = run(case, ctx, chunk, shuffled)
            assert again.tobytes() == whole.tobytes(), (threads, chunk)


@pytest.mark.parametrize("isa", ISAS[:-1])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits_on_every_instruction_set(case: Case, isa: str) -> None:
    best = run(case, _kernels.Context(1, ISAS[-1]), chunk=case.tokens)
    for threads, chunk in ((1, case.tokens), (2, 31)):
        assert run(case, _kernels.Context(threads, isa), chunk).tobytes() == best.tobytes()


@pytest.mark.parametrize("window", [10, PAGE, 3 * PAGE + 5])
@pytest.mark.parametrize("value_bytes", [2, 4])
def test_what_a_window_no_longer_sees_may_be_gone(window: int, value_bytes: int) -> None:
    case = Case(tokens=5 * PAGE + 20, window=window, value_bytes=value_bytes)
    ctx = _kernels.Context(2)
    q, k, v = case.inputs()
    cache = Cache(case, range(pages(case)))
    cache.append(ctx, k, v, 0)
    start = case.tokens - 3
    expected = cache.attend(ctx, q[start:], start)
    first_seen = start - window + 1
    for position in range(first_seen):
        keys, values = cache.page(position // PAGE)
        keys[:, :, position % PAGE] = np.nan
        values[:, position % PAGE] = np.nan
    assert cache.attend(ctx, q[start:], start).tobytes() == expected.tobytes()
    assert np.isfinite(expected).all()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [Case(), Case(value_bytes=4), Case(head_dim=20)], ids=str)
def test_pages_hold_rounded_values_in_their_layout(case: Case, isa: str) -> None:
    _, k, v = case.inputs()
    k[3, :4] = 65519.0, 65520.0, 2.0**-25, 1 + 2.0**-11  # the last finite, overflow, ties to even
    cache = Cache(case, [4, 0, 2], gap_bytes=64)
    ctx = _kernels.Context(2, isa)
    cache.append(ctx, k[:70], v[:70], 0)
    cache.append(ctx, k[70:], v[70:], 70)
    with np.errstate(over="ignore"):
        k, v = (
            x.astype(case.dtype).reshape(case.tokens, case.kv_heads, case.head_dim) for x in (k, v)
        )
    for position in range(case.tokens):
        keys, values = cache.page(int(cache.table[position // PAGE]))
        assert keys[:, :, position % PAGE].tobytes() == k[position].tobytes()
        assert values[:, position % PAGE].tobytes() == v[position].tobytes()
    keys, values = cache.page(2)  # positions 128 .. 149: nothing is written after them,
    written = case.tokens - 2 * PAGE
    assert np.isnan(keys[:, :, written:]).all() and np.isnan(values[:, written:]).all()
    assert (cache.memory[:, cache.page_bytes :] == 0xFF).all()  # nor between pages,
    assert (cache.memory[[1, 3]] == 0xFF).all()  # nor to pages that are not in the table


def test_rows_may_be_strided() -> None:
    case = Case()
    ctx = _kernels.Context(2)
    expected = run(case, ctx, case.tokens)
    q, k, v = case.inputs()
    together = np.concatenate([q, k, v], axis=1)
    q, k, v = np.split(together, [q.shape[1], q.shape[1] + k.shape[1]], axis=1)
    assert not q.flags.c_contiguous
    cache = Cache(case, range(pages(case)))
    cache.append(ctx, k, v, 0)
    assert cache.attend(ctx, q, 0).tobytes() == expected.tobytes()


def test_no_tokens_is_no_work() -> None:
    case = Case()
    q, k, v = (x[:0] for x in case.inputs())
    cache = Cache(case, [0])
    ctx = _kernels.Context(2)
    cache.append(ctx, k, v, 5)
    assert cache.attend(ctx, q, 5).shape == (0, 256)


def test_scratch_does_not_grow_with_the_context() -> None:
    held = []
    for tokens in (PAGE, 16 * PAGE):
        ctx = _kernels.Context(2)
        run(Case(tokens=tokens), ctx, tokens)
        held.append(ctx.scratch_bytes)
    assert held[0] == held[1] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"head_dim": 63}, "head_dim is 63"),
        ({"head_dim": 1024}, "head_dim is 1024"),
        ({"kv_heads": 0}, "kv_heads is 0"),
        ({"value_bytes": 1}, "value_bytes is 1"),
    ],
)
def test_impossible_page_shapes_are_refused(change: dict[str, int], message: str) -> None:
    case = replace(Case(), **change)
    with pytest.raises(ValueError, match=message):
        _kernels.kv_page_bytes(case.kv_heads, case.head_dim, case.value_bytes)


def test_wrong_arguments_are_refused() -> None:
    case = Case()
    ctx = _kernels.Context(1)
    q, k, v = case.inputs()
    cache = Cache(case, range(pages(case)))
    with pytest.raises(ValueError, match="width of k is 64, must be 128"):
        cache.append(ctx, k[:, :64], v, 0)
    with pytest.raises(ValueError, match="rows of v is 149, must be 150"):
        cache.append(ctx, k, v[:-1], 0)
    with pytest.raises(ValueError, match="size of table is 3, must be at least 4"):
        cache.append(ctx, k, v, 100)
    with pytest.raises(ValueError, match="start is -1"):
        cache.attend(ctx, q, -1)
    with pytest.raises(ValueError, match="width of q is 128, must be 256"):
        cache.attend(ctx, q[:, :128], 0)
    cache.case = replace(case, window=-1)
    with pytest.raises(ValueError, match="window is -1"):
        cache.attend(ctx, q, 0)
    cache.case = replace(case, softcap=-1.0)
    with pytest.raises(ValueError, match="softcap"):
        cache.attend(ctx, q, 0)
    cache.case = replace(case, heads=3)
    with pytest.raises(ValueError, match="heads is 3, must be a multiple of kv_heads, 2"):
        cache.attend(ctx, q[:, :192], 0)
    cache.case = case
    cache.stride -= 1
    with pytest.raises(ValueError, match="page_stride_bytes"):
        cache.attend(ctx, q, 0)
    cache.stride += 1
    cache.table[1] = -1
    with pytest.raises(ValueError, match="page number is -1"):
        cache.attend(ctx, q, 0)
