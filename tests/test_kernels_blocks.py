"""The block types against gguf's reference, and the activations that they meet against numpy."""

import itertools

import numpy as np
import pytest

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES
from kernel_matrices import (
    BF16,
    F16,
    HALVES_AT,
    MXFP4,
    TYPES,
    Floats,
    Matrix,
    activations,
    assert_same_bits,
    names,
    quantized,
    unpacked,
)


@pytest.fixture(scope="module", params=_kernels.available_isas())
def ctx(request: pytest.FixtureRequest) -> _kernels.Context:
    return _kernels.Context(2, request.param)


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


# --- quantize ---


def test_quantize_golden(ctx: _kernels.Context) -> None:
    x = np.zeros((1, 64), np.float32)
    x[0, :8] = [127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]
    x[0, 16:18] = [-127, 3.49]
    x[0, 32:36] = [254, -254, 1, 3]  # scale 2: 0.5 and 1.5
    done = unpacked(quantized(ctx, x), 64)
    q, sums = done.q, done.minus_sums
    assert q[0, :8].tolist() == [127, 0, 2, 2, 0, -2, -2, 126]
    assert q[0, 16:18].tolist() == [-127, 3]
    assert q[0, 32:36].tolist() == [127, -127, 0, 2]
    assert done.scales[0].tolist() == [1.0, 2.0]
    assert done.minus_scaled_sums[0].tolist() == [-129.0, -4.0]
    assert sums[0, 0].tolist() == [[-125, -128], [124, 0], [-1, -128]]
    assert sums[0, 1].tolist() == [[0, -2], [0, 0], [0, -2]]


def test_quantize_equals_numpy(ctx: _kernels.Context) -> None:
    x = activations(5, 416) * np.float32(10.0) ** np.arange(-20, 20, 8, dtype=np.float32)[:, None]
    done = unpacked(quantized(ctx, x), 416)
    blocks = x.reshape(5, -1, 32)
    absmax = np.abs(blocks).max(axis=2)
    expected = np.rint(blocks * (np.float32(127) / absmax)[:, :, None]).astype(np.int8)
    np.testing.assert_array_equal(done.q.reshape(expected.shape), expected)
    scales, total = absmax / np.float32(127), -expected.sum(axis=2, dtype=np.int32)
    assert_same_bits(done.scales, scales)
    assert_same_bits(done.minus_scaled_sums, scales * total.astype(np.float32))
    halves = -expected.reshape(5, -1, 2, 4, 2, 2).sum(axis=(3, 5), dtype=np.int16)
    np.testing.assert_array_equal(done.minus_sums[:, :, :2], halves)
    np.testing.assert_array_equal(done.minus_sums[:, :, 2], halves.sum(axis=2))


def test_quantize_of_zero_tiny_and_not_finite(ctx: _kernels.Context) -> None:
    x = np.zeros((1, 160), np.float32)
    x[0, 32:64] = np.float32(2.0**-101)
    x[0, 64], x[0, 96], x[0, 128] = np.inf, np.nan, np.finfo(np.float32).max
    done = unpacked(quantized(ctx, x), 160)
    assert not done.q[0, :128].any()
    for scales in (done.scales, done.minus_scaled_sums):
        np.testing.assert_array_equal(scales[0, :4], [0, 0, np.nan, np.nan])
    assert done.q[0, 128] == 127 and np.isfinite(done.scales[0, 4])


# --- interleave ---


@pytest.mark.parametrize("type_id", TYPES, ids=names)
def test_interleaved_groups_hold_the_same_bits_padded_with_zeros(type_id: int) -> None:
    w = Matrix.random(type_id, 21, 512)
    by_isa = [w.interleaved(_kernels.Context(2, isa)) for isa in _kernels.available_isas()]
    for groups in by_isa:
        np.testing.assert_array_equal(groups, by_isa[0])
    group = _kernels.group_bytes(type_id, 512)
    assert np.unpackbits(by_isa[0][:group]).sum() == np.unpackbits(w.data[:16]).sum()
    assert np.unpackbits(by_isa[0][group:]).sum() == np.unpackbits(w.data[16:]).sum()
