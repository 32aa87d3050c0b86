"""Attention over the paged cache against float64, and equal bit for bit however the work is cut."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from attention_tools import ISAS, PAGE, TYPE_IDS, Array, Cache, Case, cached, pages, run
from flexinfer import _kernels


def reference(case: Case) -> Array:
    """The definition, in float64, with no tiles and no running softmax."""
    q, k, v = case.inputs()
    group = case.heads // case.kv_heads
    q = q.astype(np.float64).reshape(case.tokens, case.heads, case.head_dim)
    k, v = cached(case, k), cached(case, v)
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
    Case(kv_type="f32"),
    Case(heads=3, kv_heads=3, head_dim=20),
    Case(heads=3, kv_heads=1, head_dim=20, kv_type="f32"),
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
    Case(window=100, kv_type="f32"),
    Case(softcap=5.0),
    Case(softcap=20.0, window=40, magnitude=30.0),
    Case(magnitude=200.0),
    Case(magnitude=3000.0, kv_type="f32"),
    Case(tokens=1),
    Case(tokens=PAGE),
    Case(kv_type="q8_0"),
    Case(heads=9, kv_heads=3, head_dim=96, kv_type="q8_0"),
    Case(heads=8, kv_heads=1, head_dim=128, kv_type="q8_0"),
    Case(heads=1, kv_heads=1, head_dim=32, kv_type="q8_0", tokens=65),
    Case(heads=2, kv_heads=1, head_dim=512, kv_type="q8_0", tokens=66),
    Case(heads=50, kv_heads=1, head_dim=32, kv_type="q8_0", tokens=40),
    Case(heads=4, kv_heads=1, head_dim=256, kv_type="q8_0", window=33, tokens=100),
    Case(window=PAGE + 1, kv_type="q8_0"),
    Case(softcap=20.0, window=40, magnitude=30.0, kv_type="q8_0"),
    Case(magnitude=3000.0, kv_type="q8_0"),
    Case(tokens=1, kv_type="q8_0"),
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
@pytest.mark.parametrize("kv_type", TYPE_IDS)
def test_what_a_window_no_longer_sees_may_be_gone(window: int, kv_type: str) -> None:
    case = Case(tokens=5 * PAGE + 20, window=window, kv_type=kv_type)
    ctx = _kernels.Context(2)
    q, k, v = case.inputs()
    cache = Cache(case, range(pages(case)))
    cache.append(ctx, k, v, 0)
    starts = (case.tokens - 3, case.tokens - 50)  # few queries and many: each way to read the cache
    expected = [cache.attend(ctx, q[start:], start) for start in starts]
    for position in range(starts[1] - window + 1):
        page, lane = position // PAGE, position % PAGE
        if kv_type == "q8_0":
            keys, key_scales, values, value_scales = cache.blocks(page)
            keys[:, :, lane], values[:, lane] = 77, 77
            key_scales[:, :, lane], value_scales[:, :, lane] = np.nan, np.nan
        else:
            keys, values = cache.page(page)
            keys[:, :, lane], values[:, lane] = np.nan, np.nan
    for start, before in zip(starts, expected, strict=True):
        assert cache.attend(ctx, q[start:], start).tobytes() == before.tobytes()
        assert np.isfinite(before).all()


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
        ({"head_dim": 80, "kv_type": "q8_0"}, "head_dim is 80, must be a multiple of 32"),
    ],
)
def test_impossible_page_shapes_are_refused(change: dict[str, Any], message: str) -> None:
    case = replace(Case(), **change)
    with pytest.raises(ValueError, match=message):
        _kernels.kv_page_bytes(case.kv_heads, case.head_dim, case.type_id)


def test_unknown_types_are_refused() -> None:
    with pytest.raises(ValueError, match="type_id is 2, must be"):
        _kernels.kv_page_bytes(2, 64, 2)


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
