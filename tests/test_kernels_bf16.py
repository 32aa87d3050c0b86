"""Products with BF16 weights: a fused chain of pairs in which subnormal numbers are zeros, bit for
bit as numpy computes it, whether an instruction set has an instruction for that or not.
"""

import itertools

import numpy as np
import pytest
from numpy.typing import NDArray

from flexinfer import _kernels
from kernel_matrices import (
    ADD,
    BF16,
    F32,
    GELU_MUL,
    SILU_MUL,
    STORE,
    Floats,
    Matrix,
    assert_same_bits,
    product,
)

Bits = NDArray[np.uint32]
SIGN, MAGNITUDE, INFINITY, LEAST_NORMAL = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x00800000
WAYS = list(itertools.product(_kernels.available_isas(), (True, False)))


def random_bits(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> Bits:
    """Of float32 values: near one; any that are finite; any; or such that sums of products come to
    the least normal number.
    """
    bits = rng.integers(0, 1 << 32, shape, np.uint32)
    if kind == "near one":
        return bits & 0x80FFFFFF | 0x3F000000
    if kind == "finite":
        return np.where(bits & INFINITY == INFINITY, bits ^ 0x40000000, bits)
    if kind == "any":
        special = rng.integers(0, 40, shape)
        bits = np.where(special == 0, bits | INFINITY, bits)
        return np.where(special == 1, bits & SIGN | INFINITY, bits)
    exponents = rng.integers(56, 72, shape, np.uint32) << 23  # a product's: 2^-142 to 2^-110
    few_digits = np.where(rng.integers(0, 2, shape) == 0, bits & 0x00700000, bits & 0x007FFFFF)
    bits = bits & SIGN | exponents | few_digits
    return np.where(rng.integers(0, 16, shape) == 0, bits & 0x807FFFFF, bits)


def flushed(x: Floats) -> Floats:
    bits = x.view(np.uint32)
    return np.where(bits & MAGNITUDE < LEAST_NORMAL, bits & SIGN, bits).view(np.float32)


def rounded(x: Floats) -> Floats:
    """To bfloat16, to nearest even; subnormals before are zeros."""
    bits = flushed(x).view(np.uint32)
    nearest = (bits + (0x7FFF + (bits >> 16 & 1)).astype(np.uint32)) & 0xFFFF0000
    return np.where(np.isnan(x), bits, nearest).astype(np.uint32).view(np.float32)


def fused(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c rounded once, below the least normal number to a zero; a and b are bfloat16's.

    The product is exact in float64. Its sum with c is rounded to odd there, which a second rounding
    to fewer digits does not notice (Boldo and Melquiond, 2008).
    """
    exact, wide = a.astype(np.float64) * b, c.astype(np.float64)
    total = exact + wide
    back = total - exact
    error = (exact - (total - back)) + (wide - back)  # Knuth's, exact
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(error) & (bits & 1 == 0)
    bits[inexact] += np.where((error > 0) == (total > 0), 1, -1)[inexact]
    y = total.astype(np.float32)
    tiny = np.abs(total) < 2.0**-125
    below = np.abs((total * 2.0**64).astype(np.float32)) < np.float32(2.0**-62)
    return np.where(tiny & below, np.copysign(np.float32(0), y), y)


def chain(w: Matrix, x: Floats) -> Floats:
    weights = (w.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    weights, values = flushed(weights), rounded(x)
    sums = np.zeros((len(x), w.rows), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, w.columns, 2):
            for i in range(min(first + 1, w.columns - 1), first - 1, -1):
                sums = fused(weights[None, :, i], values[:, None, i], sums)
    return sums


def one_nan(y: Floats) -> Floats:
    """Which NaN comes of several, the contract leaves open."""
    return np.where(np.isnan(y), np.float32(np.nan), y)


@pytest.mark.parametrize("kind", ["near one", "finite", "any", "least"])
@pytest.mark.parametrize(
    ("rows", "columns", "tokens"),
    [(1, 1, 1), (40, 2, 70), (37, 7, 40), (150, 16, 131), (33, 301, 37), (19, 1030, 9)],
)
def test_products_are_the_chain_of_pairs(rows: int, columns: int, tokens: int, kind: str) -> None:
    rng = np.random.default_rng(rows)
    bits = (random_bits(kind, (rows, columns), rng) >> 16).astype(np.uint16)
    w = Matrix(BF16, rows, columns, bits.view(np.uint8))
    x = random_bits(kind, (tokens, columns), rng).view(np.float32)
    expected = one_nan(chain(w, x))
    if kind == "least" and 1 < columns < 20:
        assert (expected == 0).any() and (np.signbit(expected) & (expected == 0)).any()
    if kind == "any" and 1 < columns < 20:
        assert np.isnan(expected).any() and np.isfinite(expected).any()
    for isa, interleaved in WAYS:
        ctx = _kernels.Context(2, isa)
        for n in sorted({1, min(tokens, 5), tokens}):
            y = product(ctx, w, x[:n], interleaved=interleaved)
            assert_same_bits(one_nan(y), expected[:n])


@pytest.mark.parametrize(
    ("second", "first", "expected"),
    [
        ((2.0**-63, 2.0**-63), (-(2.0**-80), 2.0**-80), 2.0**-126),
        ((2.0**-63, 2.0**-63), (-(2.0**-75), 2.0**-76), 2.0**-126),  # half a digit below, to even
        ((2.0**-63, 2.0**-63), (-(2.0**-75), 2.0**-75), 0.0),  # a digit below
        ((2.0**-63, 2.0**-64), (2.0**-63, 2.0**-64), 0.0),  # gone before its other half comes
        ((2.0**-63, -(2.0**-64)), (2.0**-63, -(2.0**-64)), -0.0),
    ],
)
def test_flushed_is_what_rounds_to_less_than_the_least_normal_number(
    second: tuple[float, float], first: tuple[float, float], expected: float
) -> None:
    both = np.array([first, second], np.float32)
    w = Matrix(
        BF16, 1, 2, (both[None, :, 0].view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    )
    x = np.ascontiguousarray(both[None, :, 1])
    assert_same_bits(chain(w, x), np.array([[expected]], np.float32))
    for isa, interleaved in WAYS:
        y = product(_kernels.Context(1, isa), w, x, interleaved=interleaved)
        assert_same_bits(y, chain(w, x))


def test_a_pair_of_columns_lies_together() -> None:
    values = np.arange(32 * 9, dtype=np.uint16).reshape(32, 9)
    w = Matrix(BF16, 32, 9, values.view(np.uint8))
    for isa in _kernels.available_isas():
        groups = w.interleaved(_kernels.Context(1, isa)).view(np.uint16).reshape(2, -1)
        for group, rows in zip(groups, (values[:16], values[16:]), strict=True):
            pairs = group[: 16 * 8].reshape(4, 16, 2)
            np.testing.assert_array_equal(pairs, rows[:, :8].reshape(16, 4, 2).swapaxes(0, 1))
            np.testing.assert_array_equal(group[16 * 8 :], rows[:, 8])


def test_the_epilogue_takes_subnormals_for_zeros_too() -> None:
    w = Matrix.random(BF16, 48, 64)
    x = np.zeros((3, 64), np.float32)
    x[1:] = np.random.default_rng(2).standard_normal((2, 64), np.float32)
    before = np.full((3, 48), 1e-39, np.float32)
    bias = np.full(48, 1e-39, np.float32)
    for epilogue in (STORE, ADD, SILU_MUL, GELU_MUL):
        seen = [
            product(
                _kernels.Context(2, isa), w, x, interleaved=interleaved, out=before.copy(),
                epilogue=epilogue, bias=bias,
            )
            for isa, interleaved in WAYS
        ]  # fmt: skip
        for y in seen:
            assert_same_bits(y, seen[0])
        assert not seen[0][0].any()


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_other_products_keep_subnormals(isa: str) -> None:
    """Threads are left as they were found, the caller's too."""
    ctx = _kernels.Context(2, isa)
    x = np.ones((1, 256), np.float32)
    product(ctx, Matrix.random(BF16, 4096, 256), x)
    assert np.float32(1e-39) * np.float32(0.5) > 0
    tiny = np.zeros((4096, 256), np.float32)
    tiny[:, 0] = 1e-39
    y = product(ctx, Matrix(F32, 4096, 256, tiny.view(np.uint8)), x)
    assert (y == np.float32(1e-39)).all()
