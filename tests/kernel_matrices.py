"""Weights of every block type, as in a file, and their products by the kernels."""

import itertools
from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize as reference_dequantize
from gguf.quants import quantize as reference_quantize
from numpy.typing import NDArray

from flexinfer import _kernels
from flexinfer.formats.quants import BLOCK_TYPES

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

STORE, ADD, SILU_MUL, GELU_MUL = range(4)  # epilogues
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


@dataclass(frozen=True)
class Quantised:
    """Activations as the kernels round them."""

    q: NDArray[np.int8]  # [n, columns]
    scales: Floats  # [n, blocks]
    minus_scaled_sums: Floats  # [n, blocks]
    minus_sums: NDArray[np.int16]  # [n, blocks, 3, 2]


def unpacked(xq: Bytes, columns: int) -> Quantised:
    blocks = xq[:, : columns // 32 * 52].reshape(len(xq), -1, 52)
    scales = np.ascontiguousarray(blocks[:, :, 32:40]).view(np.float32)
    sums = np.ascontiguousarray(blocks[:, :, 40:]).view(np.int16)
    return Quantised(
        np.ascontiguousarray(blocks[:, :, :32]).view(np.int8).reshape(len(xq), columns),
        np.ascontiguousarray(scales[:, :, 0]),
        np.ascontiguousarray(scales[:, :, 1]),
        sums.reshape(len(xq), -1, 3, 2),
    )


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
