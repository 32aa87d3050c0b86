"""What the types of the KV cache keep of a value, and where it lies."""

import gguf
import numpy as np
import pytest

from attention_tools import BLOCK, ISAS, PAGE, Cache, Case, pages, q8_0
from flexinfer import _kernels


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", [Case(), Case(kv_type="f32"), Case(head_dim=20)], ids=str)
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


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("head_dim", [32, 64, 96])
def test_blocks_are_rounded_as_numpy_does_and_lie_in_their_layout(head_dim: int, isa: str) -> None:
    case = Case(head_dim=head_dim, kv_type="q8_0")
    _, k, v = case.inputs()
    sizes = np.exp2(np.arange(case.tokens) % 60 - 45).astype(np.float32)[:, None]
    k *= sizes  # scales that float16 holds exactly, rounded, subnormal, and not at all
    v *= sizes[::-1]
    k[3, :3] = 127.0, 0.5, 1.5  # a scale of 1, ties to even
    k[4, :BLOCK] = 0.0
    k[5, 7], k[6, 8], k[7, 9] = np.inf, -np.inf, np.nan
    k[8, 0] = 127 * 65520.0  # the least whose scale overflows
    k[9, :2] = 127 * 1.49 * 2.0**-24, -127 * 1.49 * 2.0**-24  # the scale loses a third: clipped
    k[9, 2:BLOCK] = 0.0
    cache = Cache(case, [4, 0, 2], gap_bytes=64)
    assert cache.page_bytes == 2 * case.kv_heads * PAGE * head_dim * 34 // 32
    ctx = _kernels.Context(2, isa)
    cache.append(ctx, k[:70], v[:70], 0)
    cache.append(ctx, k[70:], v[70:], 70)
    rows = (x.reshape(case.tokens, case.kv_heads, head_dim) for x in (k, v))
    (k_q, k_scales), (v_q, v_scales) = map(q8_0, rows)
    assert np.abs(k_q).max() == np.abs(k_q[9]).max() == 127
    assert not np.isfinite(k_scales[5:9, 0, 0]).any()
    for position in range(case.tokens):
        page, lane = int(cache.table[position // PAGE]), position % PAGE
        keys, key_scales, values, value_scales = cache.blocks(page)
        assert (keys[:, :, lane] == k_q[position]).all()
        assert (values[:, lane] == v_q[position]).all()
        np.testing.assert_array_equal(key_scales[:, :, lane], k_scales[position])
        np.testing.assert_array_equal(value_scales[:, :, lane], v_scales[position])
    keys, key_scales, values, value_scales = cache.blocks(2)  # nothing behind what was written,
    written = case.tokens - 2 * PAGE
    assert (keys[:, :, written:] == -1).all() and (values[:, written:] == -1).all()
    assert np.isnan(key_scales[:, :, written:]).all()
    assert np.isnan(value_scales[:, :, written:]).all()
    assert (cache.memory[:, cache.page_bytes :] == 0xFF).all()  # nor between pages,
    assert (cache.memory[[1, 3]] == 0xFF).all()  # nor to pages that are not in the table


def test_q8_0_errs_by_half_a_scale_at_most() -> None:
    """Of ggml's blocks the float16 scale is not the one that was divided by."""
    _, k, _ = Case(kv_type="q8_0").inputs()
    x = k.reshape(-1, BLOCK)
    q, scales = q8_0(x)
    ours = q * scales.astype(np.float64)
    assert (np.abs(ours - x) <= scales.astype(np.float64) * (0.5 + 127 * 2.0**-11)).all()
    ggml = gguf.quants.dequantize(
        gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0), gguf.GGMLQuantizationType.Q8_0
    )
    assert np.square(ours - x).sum() <= np.square(ggml - x).sum()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 127 * 65520.0])
def test_a_block_that_cannot_be_rounded_makes_what_it_reaches_nan(bad: float, isa: str) -> None:
    case = Case(kv_type="q8_0")
    ctx = _kernels.Context(2, isa)
    for part in ("k", "v"):
        q, k, v = case.inputs()
        (k if part == "k" else v)[80, 0] = bad  # of kv head 0, which heads 0 and 1 use
        cache = Cache(case, range(pages(case)))
        cache.append(ctx, k, v, 0)
        for start in (0, 140):
            out = cache.attend(ctx, q[start:], start).reshape(-1, case.heads, case.head_dim)
            position = np.arange(start, case.tokens)
            elements = slice(None) if part == "k" else slice(0, BLOCK)
            assert np.isnan(out[position >= 80, :2, elements]).all()
            assert np.isfinite(out[position < PAGE]).all() and np.isfinite(out[:, 2:]).all()
