"""The products against numpy and gguf's reference, and bit for bit against themselves."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference_dequantize
from gguf.quants import quantize as reference_quantize
from numpy.typing import NDArray

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

STORE, ADD, SILU_MUL, GELU_MUL = range(4)
F32, F16, BF16 = FLOATS = 0, 1, 30
Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 = 2, 3, 6, 7, 8
Q2_K, Q3_K, Q4_K, Q5_K, Q6_K = 10, 11, 12, 13, 14
IQ4_NL, IQ4_XS, MXFP4 = 20, 23, 39
HALVES_AT = {
    Q4_0: [0], Q4_1: [0, 2], Q5_0: [0], Q5_1: [0, 2], Q8_0: [0],
    Q2_K: [80, 82], Q3_K: [108], Q4_K: [0, 2], Q5_K: [0, 2], Q6_K: [208],
    IQ4_NL: [0], IQ4_XS: [0],
}  # fmt: skip
QUANTISED = [*HALVES_AT, MXFP4]
TYPES = [*FLOATS, *QUANTISED]


def names(type_id: int) -> str:
    return BLOCK_TYPES[type_id].name


@dataclass
class Matrix:
    """Weight rows as in the file."""

    type_id: int
    rows: int
    columns: int
    data: Bytes  # [rows, row_bytes]

    @classmethod
    def random(cls, type_id: int, rows: int, columns: int, seed: int = 0) -> "Matrix":
        rng = np.random.default_rng(seed)
        if type_id in FLOATS:
            values = rng.standard_normal((rows, columns), dtype=np.float32)
            return cls(type_id, rows, columns, as_float_type(type_id, values))
        block = BLOCK_TYPES[type_id]
        blocks = columns // block.block_values
        data = rng.integers(0, 256, (rows, blocks, block.block_bytes), dtype=np.uint8)
        if type_id == MXFP4:
            data[:, :, 0] = rng.integers(114, 126, (rows, blocks))
        for at in HALVES_AT.get(type_id, []):
            halves = (rng.standard_normal((rows, blocks, 1)) * 0.01).astype(np.float16)
            data[:, :, at : at + 2] = halves.view(np.uint8)
        return cls(type_id, rows, columns, data.reshape(rows, -1))

    def dequantized(self) -> Floats:
        with np.errstate(invalid="ignore", over="ignore"):
            return reference_dequantize(self.data, GGMLQuantizationType(self.type_id))

    def interleaved(self, ctx: _kernels.Context, fill: int = 0xAA) -> Bytes:
        groups = -(-self.rows // 16)
        out = np.full(groups * _kernels.group_bytes(self.type_id, self.columns), fill, np.uint8)
        _kernels.interleave(
            ctx, self.type_id, self.data.ctypes.data, out.ctypes.data, self.rows, self.columns
        )
        return out


def as_float_type(type_id: int, values: Floats) -> Bytes:
    return reference_quantize(values, GGMLQuantizationType(type_id)).view(np.uint8)


def activations(tokens: int, columns: int, seed: int = 1) -> Floats:
    return np.random.default_rng(seed).standard_normal((tokens, columns), dtype=np.float32)


def quantized(ctx: _kernels.Context, x: Floats) -> Bytes:
    out = np.zeros((len(x), _kernels.activation_bytes(x.shape[1])), np.uint8)
    _kernels.quantize(ctx, x, out)
    return out


def unpacked(xq: Bytes, columns: int) -> tuple[NDArray[np.int8], Floats, NDArray[np.int32]]:
    """The int8 values [n, columns], the scales [n, blocks] and the negated sums [n, blocks, 3]."""
    blocks = xq[:, : columns // 32 * 48].reshape(len(xq), -1, 48)
    q = np.ascontiguousarray(blocks[:, :, :32]).view(np.int8).reshape(len(xq), columns)
    scales = np.ascontiguousarray(blocks[:, :, 32:36]).view(np.float32)[:, :, 0]
    return q, scales, np.ascontiguousarray(blocks[:, :, 36:]).view(np.int32)


def product(
    ctx: _kernels.Context,
    w: Matrix,
    x: Floats,
    *,
    interleaved: bool = True,
    out: Floats | None = None,
    epilogue: int = STORE,
    bias: Floats | None = None,
    cuts: tuple[int, ...] = (),
) -> Floats:
    """x . W^T by the kernel, the rows cut into segments at `cuts`."""
    out = np.full((len(x), w.rows), np.nan, np.float32) if out is None else out
    xq = None if w.type_id in FLOATS else quantized(ctx, x)
    data = w.interleaved(ctx) if interleaved else w.data.reshape(-1)
    row_bytes = w.data.shape[1]
    for first, last in itertools.pairwise((0, *cuts, w.rows)):
        _kernels.linear(
            ctx, w.type_id, interleaved, data.ctypes.data + first * row_bytes, last - first,
            w.columns, x, xq, out, first, epilogue, bias,
        )  # fmt: skip
    return out


def assert_same_bits(a: Floats, b: Floats) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32))


@pytest.fixture(scope="module", params=_kernels.available_isas())
def ctx(request: pytest.FixtureRequest) -> _kernels.Context:
    return _kernels.Context(2, request.param)


@pytest.fixture(scope="module")
def best() -> _kernels.Context:
    return _kernels.Context(2)


def test_supported_types_are_those_of_the_block_table() -> None:
    has_kernel = [t.ggml_id for t in BLOCK_TYPES.values() if t.has_kernel]
    assert sorted(_kernels.supported_types()) == sorted(has_kernel) == sorted(TYPES)
    for type_id in TYPES:
        assert _kernels.group_bytes(type_id, 512) == 16 * BLOCK_TYPES[type_id].row_bytes(512)


# --- dequantize: the unpackers, on their own ---


def kernel_dequantize(w: Matrix) -> Floats:
    out = np.full((w.rows, w.columns), 7, np.float32)
    _kernels.dequantize(w.type_id, w.data.ctypes.data, w.rows, w.columns, out)
    return out


@pytest.mark.parametrize("type_id", TYPES, ids=names)
@pytest.mark.parametrize("blocks", [1, 15, 16, 17, 33])
def test_dequantize_equals_the_reference(type_id: int, blocks: int) -> None:
    w = Matrix.random(type_id, 3, blocks * BLOCK_TYPES[type_id].block_values)
    assert_same_bits(kernel_dequantize(w), w.dequantized())


SCALES = [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, -1.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("type_id", list(HALVES_AT), ids=names)
@pytest.mark.parametrize("payload", [0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0])
def test_dequantize_of_extreme_blocks(type_id: int, payload: int) -> None:
    values = np.array(list(itertools.product(SCALES, SCALES)), np.float16)
    block = BLOCK_TYPES[type_id]
    data = np.full((len(values), block.block_bytes), payload, np.uint8)
    for i, at in enumerate(HALVES_AT[type_id]):
        data[:, at : at + 2] = values[:, i : i + 1].copy().view(np.uint8)
    w = Matrix(type_id, len(values), block.block_values, data)
    expected, actual = w.dequantized(), kernel_dequantize(w)
    np.testing.assert_array_equal(np.isnan(actual), np.isnan(expected))
    assert_same_bits(np.nan_to_num(actual, nan=0.0), np.nan_to_num(expected, nan=0.0))


def test_dequantize_of_every_two_byte_float() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16).view(np.uint8).reshape(1, -1)
    for type_id in (F16, BF16):
        w = Matrix(type_id, 1, (1 << 16) - 3, bits[:, :-6])
        with np.errstate(invalid="ignore"):  # signalling NaNs
            np.testing.assert_array_equal(kernel_dequantize(w), w.dequantized())


def test_dequantize_of_every_power_of_two_as_a_scale() -> None:
    data = np.full((256, 17), 0xB7, np.uint8)
    data[:, 0] = np.arange(256)
    w = Matrix(MXFP4, 256, 32, data)
    assert_same_bits(kernel_dequantize(w), w.dequantized())


@pytest.mark.parametrize("isa", _kernels.available_isas())
def test_every_half_as_a_scale(isa: str) -> None:
    halves = np.arange(1 << 16, dtype=np.uint16)
    data = np.zeros((1 << 16, 34), np.uint8)
    data[:, :2] = halves[:, None].view(np.uint8)
    data[:, 2] = 1
    x = np.zeros((1, 32), np.float32)
    x[0, 0] = 127  # scale 1, q 127
    y = product(_kernels.Context(1, isa), Matrix(Q8_0, 1 << 16, 32, data), x)[0]
    with np.errstate(invalid="ignore"):  # signalling NaNs
        expected = halves.view(np.float16).astype(np.float32) * np.float32(127)
    np.testing.assert_array_equal(y, expected)


# --- quantize ---


def test_quantize_golden(ctx: _kernels.Context) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    x[0, 16:18] = [-127, 3.49]
    x[0, 32:36] = [254, -254, 1, 3]  # scale 2: 0.5 and 1.5
    q, scales, sums = unpacked(quantized(ctx, x), 64)
    assert q[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]
    assert q[0, 16:18].tolist() == [-127, 3]
    assert q[0, 32:36].tolist() == [127, -127, 0, 2]
    assert scales[0].tolist() == [1.0, 2.0]
    assert sums[0].tolist() == [[-253, 124, -129], [-2, 0, -2]]


def test_quantize_equals_numpy(ctx: _kernels.Context) -> None:
    x = activations(5, 416) * np.float32(10.0) ** np.arange(-20, 20, 8, dtype=np.float32)[:, None]
    q, scales, sums = unpacked(quantized(ctx, x), 416)
    blocks = x.reshape(5, -1, 32)
    absmax = np.abs(blocks).max(axis=2)
    expected = np.rint(blocks * (np.float32(127) / absmax)[:, :, None]).astype(np.int8)
    np.testing.assert_array_equal(q.reshape(expected.shape), expected)
    assert_same_bits(scales, absmax / np.float32(127))
    halves = -expected.reshape(5, -1, 2, 16).sum(axis=3, dtype=np.int32)
    np.testing.assert_array_equal(sums[:, :, :2], halves)
    np.testing.assert_array_equal(sums[:, :, 2], halves.sum(axis=2))


def test_quantize_of_zero_tiny_and_not_finite(ctx: _kernels.Context) -> None:
    x = np.zeros((1, 160), np.float32)
    x[0, 32:64] = np.float32(2.0**-101)
    x[0, 64], x[0, 96], x[0, 128] = np.inf, np.nan, np.finfo(np.float32).max
    q, scales, _ = unpacked(quantized(ctx, x), 160)
    assert not q[0, :128].any()
    np.testing.assert_array_equal(scales[0, :4], [0, 0, np.nan, np.nan])
    assert q[0, 128] == 127 and np.isfinite(scales[0, 4])


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_an_activation_that_is_not_finite_shows(type_id: int, best: _kernels.Context) -> None:
    x = activations(2, 512)
    x[0, 300] = np.inf
    y = product(best, Matrix.random(type_id, 16, 512), x)
    assert not np.isfinite(y[0]).any() and np.isfinite(y[1]).all()


# --- linear: right, and always the same ---


@pytest.mark.parametrize("interleaved", [True, False], ids=["interleaved", "file"])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_linear_is_the_product(type_id: int, interleaved: bool, ctx: _kernels.Context) -> None:
    for rows, blocks, tokens in ((1, 1, 1), (37, 3, 3), (16, 9, 8)):
        columns = blocks * max(32, BLOCK_TYPES[type_id].block_values)
        w, x = Matrix.random(type_id, rows, columns), activations(tokens, columns)
        seen = x.astype(np.float64)
        if type_id == BF16:
            seen = as_float_type(BF16, x).view(np.uint16).astype(np.uint32) << 16
            seen = seen.view(np.float32).astype(np.float64)
        elif type_id not in FLOATS:
            q, scales, _ = unpacked(quantized(ctx, x), columns)
            seen = q * np.repeat(scales.astype(np.float64), 32, axis=1)
        weights = w.dequantized().astype(np.float64)
        y = product(ctx, w, x, interleaved=interleaved)
        magnitude = np.abs(seen) @ np.abs(weights).T
        assert (np.abs(y - seen @ weights.T) <= 1e-6 * magnitude).all()


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_linear_bits_depend_on_nothing(type_id: int) -> None:
    """Not on the instruction set, threads, batch, layout, or cuts into segments."""
    w, x = Matrix.random(type_id, 149, 768), activations(300, 768)
    expected = product(_kernels.Context(1), w, x)
    few = Matrix(type_id, 37, 768, w.data[:37])
    for isa, interleaved in itertools.product(_kernels.available_isas(), (True, False)):
        for threads in (1, 2, 3):
            ctx = _kernels.Context(threads, isa)
            for n in (1, 2, 3, 8, 17):
                y = product(ctx, few, x[:n], interleaved=interleaved)
                assert_same_bits(y, expected[:n, :37])
    for threads, interleaved in itertools.product((1, 2, 3), (True, False)):
        ctx = _kernels.Context(threads)
        for n, cuts in itertools.product((1, 2, 3, 8, 17, 64, 300), ((), (16,), (48, 64, 144))):
            y = product(ctx, w, x[:n], interleaved=interleaved, cuts=cuts)
            assert_same_bits(y, expected[:n])


@pytest.mark.parametrize("columns", [32, 64, 576, 1056, 4128])
def test_linear_over_chunks_of_columns(columns: int, ctx: _kernels.Context) -> None:
    for type_id in (*FLOATS, Q4_0, Q8_0, MXFP4):
        w, x = Matrix.random(type_id, 19, columns), activations(2, columns)
        assert_same_bits(
            product(ctx, w, x, interleaved=False), product(ctx, w, x[:, :], interleaved=True)
        )
        one = product(ctx, w, x[1:], interleaved=False)
        assert_same_bits(one, product(ctx, w, x)[1:])


@pytest.mark.parametrize("columns", [1, 2, 3, 15, 33, 255, 257, 513, 1027])
def test_floats_in_any_number_of_columns(columns: int) -> None:
    for type_id in FLOATS:
        w, x = Matrix.random(type_id, 19, columns), activations(9, columns)
        expected = product(_kernels.Context(1), w, x)
        exact = x.astype(np.float64) @ w.dequantized().T.astype(np.float64)
        np.testing.assert_allclose(expected, exact, rtol=0, atol=0.02 * columns**0.5)
        for isa, interleaved in itertools.product(_kernels.available_isas(), (True, False)):
            ctx = _kernels.Context(2, isa)
            assert_same_bits(product(ctx, w, x, interleaved=interleaved), expected)
            assert_same_bits(product(ctx, w, x[:1], interleaved=interleaved), expected[:1])


def test_bf16_rounds_activations_and_takes_pairs_second_first() -> None:
    """Whatever an instruction set has: subnormals too, which bfloat16 instructions flush."""
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 16, (2, 4096, 2), dtype=np.uint16)
    bits &= np.uint16(0x9FFF)  # magnitudes below 2^-64: products at the end of float32's range
    bits[1] ^= np.uint16(0x3F80)
    w, x = (bits.astype(np.uint32) << 16).view(np.float32)
    x = (x.view(np.uint32) | 0x8000).view(np.float32)  # half way to the next bfloat16
    odd = x.view(np.uint32) & 0x10000
    rounded = (x.view(np.uint32) + np.where(odd, 0x8000, -0x8000)).astype(np.uint32)
    first, second = (w.astype(np.float64) * rounded.view(np.float32)).T
    expected = (first + second.astype(np.float32)).astype(np.float32)
    for isa in _kernels.available_isas():
        ctx = _kernels.Context(1, isa)
        y = [
            product(ctx, Matrix(BF16, 1, 2, as_float_type(BF16, w[i : i + 1])), x[i : i + 1])
            for i in range(len(w))
        ]
        assert_same_bits(np.array(y).reshape(-1), expected)


@pytest.mark.parametrize("type_id", QUANTISED, ids=names)
def test_extremes_neither_saturate_nor_overflow(type_id: int) -> None:
    """The largest weights and sub-scales of either sign against the largest activations."""
    block = BLOCK_TYPES[type_id]
    payloads = np.array([0x00, 0xFF, 0x7F, 0x80, 0x88, 0x77, 0x0F, 0xF0, 0x3F, 0x55], np.uint8)
    data = np.repeat(payloads[:, None], 2 * block.block_bytes, axis=1)
    blocks = data.reshape(-1, 2, block.block_bytes)
    if type_id == MXFP4:
        blocks[:, :, 0] = 127
    for at in HALVES_AT.get(type_id, []):
        blocks[:, :, at : at + 2] = np.array([1], np.float16).view(np.uint8)
    w = Matrix(type_id, len(payloads), 2 * block.block_values, data)
    x = np.ones((6, w.columns), np.float32) * 127
    x[1] *= -1
    x[2, ::2] *= -1
    x[3, 1::2] *= -1
    x[4, ::4] *= -1
    x[5] *= np.sign(w.dequantized()[1] + 0.5)
    exact = x.astype(np.float64) @ w.dequantized().T.astype(np.float64)
    assert np.abs(exact).max() < 2**53
    for isa, interleaved in itertools.product(_kernels.available_isas(), (True, False)):
        y = product(_kernels.Context(1, isa), w, x, interleaved=interleaved)
        np.testing.assert_allclose(y, exact, rtol=1e-6, atol=0)


def silu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / (1 + np.exp(-x))


def gelu(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("with_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_epilogues(type_id: int, with_bias: bool, tokens: int) -> None:
    w, x = Matrix.random(type_id, 53, 512), activations(tokens, 512)
    before = activations(tokens, 53, seed=3) * 3
    bias = activations(1, 53, seed=4)[0] if with_bias else None
    y = product(_kernels.Context(1), w, x)
    if bias is not None:
        y = y + bias
    wide = before.astype(np.float64)
    expected = {STORE: y, ADD: before + y, SILU_MUL: silu(wide) * y, GELU_MUL: gelu(wide) * y}
    for epilogue, value in expected.items():
        seen = []
        for isa, interleaved in itertools.product(_kernels.available_isas(), (True, False)):
            ctx = _kernels.Context(2, isa)
            out = before.copy()
            product(
                ctx, w, x, interleaved=interleaved, out=out, epilogue=epilogue, bias=bias,
                cuts=(16, 32),
            )  # fmt: skip
            seen.append(out)
        for out in seen:
            assert_same_bits(out, seen[0])
        if epilogue in (STORE, ADD):
            assert_same_bits(seen[0], value)
        else:
            np.testing.assert_allclose(seen[0], value, rtol=1e-5, atol=1e-6)


def test_silu_and_gelu_far_from_zero(ctx: _kernels.Context) -> None:
    gates = np.array([[-1e30, -200, -104, -88, -20, 0, 20, 88, 104, 200, 1e12]], np.float32)
    w = Matrix(F32, 11, 1, np.ones((11, 1), np.float32).view(np.uint8))
    one = np.ones((1, 1), np.float32)
    y = product(ctx, w, one, out=gates.copy(), epilogue=SILU_MUL)
    expected = np.where(gates < -100, 0, silu(np.maximum(gates.astype(np.float64), -100)))
    np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-35)
    y = product(ctx, w, one, out=gates.copy(), epilogue=GELU_MUL)
    np.testing.assert_allclose(y, np.maximum(gates, 0), rtol=1e-6, atol=1e-6)


def test_only_the_rows_asked_for_are_touched(ctx: _kernels.Context) -> None:
    w, x = Matrix.random(Q4_0, 21, 64), activations(3, 64)
    canvas = np.full((3, 64), 9, np.float32)
    wide = np.full((3, 96), 5, np.float32)
    wide[:, :64] = x
    xq = quantized(ctx, x)
    _kernels.linear(
        ctx, Q4_0, False, w.data.ctypes.data, 21, 64, wide[:, :64], xq, canvas[:, :60], 16, 0, None
    )
    assert_same_bits(canvas[:, 16:37], product(ctx, w, x))
    assert (canvas[:, :16] == 9).all() and (canvas[:, 37:] == 9).all()


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_interleaved_groups_hold_the_same_bits_padded_with_zeros(type_id: int) -> None:
    w = Matrix.random(type_id, 21, 512)
    by_isa = [w.interleaved(_kernels.Context(2, isa)) for isa in _kernels.available_isas()]
    for groups in by_isa:
        np.testing.assert_array_equal(groups, by_isa[0])
    group = _kernels.group_bytes(type_id, 512)
    assert np.unpackbits(by_isa[0][:group]).sum() == np.unpackbits(w.data[:16]).sum()
    assert np.unpackbits(by_isa[0][group:]).sum() == np.unpackbits(w.data[16:]).sum()


def test_read_bandwidth_is_a_rate(ctx: _kernels.Context) -> None:
    memory = np.ones(1 << 22, np.uint8)
    assert 1e8 < _kernels.read_bandwidth(ctx, memory.ctypes.data, memory.nbytes, 2) < 1e13


# --- faults ---


def test_wrong_arguments_are_refused(best: _kernels.Context) -> None:
    w, x = Matrix.random(Q4_0, 16, 64), activations(2, 64)
    xq, out = quantized(best, x), np.zeros((2, 16), np.float32)
    good: dict[str, Any] = {
        "ctx": best, "type_id": Q4_0, "interleaved": False, "weights": w.data.ctypes.data,
        "rows": 16, "columns": 64, "x": x, "xq": xq, "out": out, "row0": 0, "epilogue": 0,
        "bias": None,
    }  # fmt: skip
    _kernels.linear(**good)
    for bad, message in (
        ({"type_id": 16}, "no kernel for block type 16"),
        ({"rows": 0}, "positive"),
        ({"rows": 1 << 50}, "too large"),
        ({"columns": 65}, "65 columns are not whole blocks of 32"),
        ({"columns": 32}, "x has 64 columns"),
        ({"columns": 96}, "x has shape"),
        ({"weights": 0}, "null"),
        ({"xq": None}, "quantised"),
        ({"xq": xq[:1]}, "xq has shape"),
        ({"xq": xq[:, :32]}, "xq has shape"),
        ({"out": out[:1]}, "out has shape"),
        ({"out": out[:, :8]}, "out has shape"),
        ({"out": np.zeros((2, 32), np.float32)[:, ::2]}, "contiguous rows"),
        ({"out": out[::-1]}, "overlap or run backwards"),
        ({"row0": 1}, "out has shape"),
        ({"row0": -1}, "row0"),
        ({"epilogue": 4}, "no epilogue 4"),
        ({"bias": np.zeros(8, np.float32)}, "bias has 8 values, needed: 16"),
    ):
        with pytest.raises(ValueError, match=message):
            _kernels.linear(**(good | bad))
    for bad in ({"x": x.astype(np.float64)}, {"out": out.astype(np.float64)}, {"xq": x}):
        with pytest.raises(TypeError):
            _kernels.linear(**(good | bad))
    with pytest.raises(ValueError, match="33 is not a multiple"):
        _kernels.activation_bytes(33)
    with pytest.raises(ValueError, match="out has shape"):
        _kernels.quantize(best, x, np.zeros((2, 64), np.uint8))
    with pytest.raises(ValueError, match="no kernel"):
        _kernels.group_bytes(29, 256)
