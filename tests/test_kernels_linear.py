"""The products against numpy and gguf's reference, and bit for bit against themselves."""

import itertools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES
from kernel_matrices import (
    ADD,
    BF16,
    F32,
    FLOATS,
    GELU_MUL,
    HALVES_AT,
    MXFP4,
    Q4_0,
    Q8_0,
    QUANTISED,
    SILU_MUL,
    STORE,
    TYPES,
    Matrix,
    activations,
    as_float_type,
    assert_same_bits,
    names,
    product,
    quantized,
    unpacked,
)


@pytest.fixture(scope="module", params=_kernels.available_isas())
def ctx(request: pytest.FixtureRequest) -> _kernels.Context:
    return _kernels.Context(2, request.param)


@pytest.fixture(scope="module")
def best() -> _kernels.Context:
    return _kernels.Context(2)


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
            done = unpacked(quantized(ctx, x), columns)
            seen = done.q * np.repeat(done.scales.astype(np.float64), 32, axis=1)
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
        w, x = Matrix.random(type_id, 35, columns), activations(23, columns)
        expected = product(_kernels.Context(1), w, x)
        exact = x.astype(np.float64) @ w.dequantized().T.astype(np.float64)
        np.testing.assert_allclose(expected, exact, rtol=0, atol=0.02 * columns**0.5)
        for isa, interleaved in itertools.product(_kernels.available_isas(), (True, False)):
            ctx = _kernels.Context(2, isa)
            assert_same_bits(product(ctx, w, x, interleaved=interleaved), expected)
            assert_same_bits(product(ctx, w, x[:1], interleaved=interleaved), expected[:1])


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


def test_read_bandwidth_is_a_rate(ctx: _kernels.Context) -> None:
    memory = np.ones(1 << 22, np.uint8)
    assert 1e6 < _kernels.read_bandwidth(ctx, memory.ctypes.data, memory.nbytes, 2) < 1e13


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_an_activation_that_is_not_finite_shows(type_id: int, best: _kernels.Context) -> None:
    x = activations(2, 512)
    x[0, 300] = np.inf
    y = product(best, Matrix.random(type_id, 16, 512), x)
    shows = ~np.isfinite(y[0]) if type_id in FLOATS else np.isnan(y[0])
    assert shows.all() and np.isfinite(y[1]).all()


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
