"""Weights from raw blocks to float32 by plain torch operations, on the device that holds them.

Both layouts are known: a file's rows, and the interleaved groups of 16 rows that the CPU's kernels
lock (csrc/blocks.h). The interleaved form is first put back in the file's order, byte for byte, so
that there is one unpacker for each type. Values are those of ggml, bit for bit; on the way there
unpacking takes at most `planner.tiles.UNPACKING_BYTES` a value, the result included.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from flexinfer.formats.quants import BLOCK_TYPES
from flexinfer.planner.placement import GROUP_ROWS

Tensor = Any
# Integers [blocks, subs, values], a scale for each sub-block [blocks, subs, 1], perhaps a minimum.
Parts = tuple[Tensor, Tensor, Tensor | None]

_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled


class Unpacker:
    """Dequantises on one device; the few tables that it needs live there."""

    def __init__(self, device: Any) -> None:
        self._device = device
        self._tables = {
            name: torch.tensor(values, dtype=torch.int8, device=device)
            for name, values in (("IQ4", _IQ4), ("E2M1", _E2M1))
        }
        self._orders: dict[str, Tensor] = {}

    def rows(
        self, type_id: int, data: Tensor, rows: int, columns: int, *, interleaved: bool
    ) -> Tensor:
        """float32 [rows, columns] of uint8 `data`: rows as in the file, or whole groups of 16."""
        kind = BLOCK_TYPES[type_id]
        if interleaved:
            data = self._in_file_order(kind.name, data, kind.block_bytes)
        if kind.name in _FLOATS:
            values = data.reshape(-1).view(_FLOATS[kind.name]).view(-1, columns)
            return values[:rows].to(torch.float32)
        blocks = data.reshape(-1, kind.block_bytes)[: rows * columns // kind.block_values]
        integers, scale, minimum = _UNPACKERS[kind.name](blocks, self._tables)
        values = integers.to(torch.float32).mul_(scale)
        if minimum is not None:
            values.sub_(minimum)
        return values.view(rows, columns)

    def _in_file_order(self, name: str, data: Tensor, block_bytes: int) -> Tensor:
        """Interleaved groups [groups, bytes] to rows [16 * groups, row bytes]."""
        if name == "BF16":
            return _pairs_in_file_order(data)
        if name in _FLOATS:  # a block is one value: units of it are moved, not bytes
            values = data.view(_FLOATS[name]).view(data.shape[0], -1, GROUP_ROWS)
            rows = values.transpose(1, 2).contiguous().view(torch.uint8)
            return rows.view(data.shape[0] * GROUP_ROWS, -1)
        if name not in self._orders:
            order = torch.from_numpy(_byte_order(name, block_bytes))
            self._orders[name] = order.to(self._device)
        groups = data.shape[0]
        blocks = data.reshape(groups, -1, GROUP_ROWS * block_bytes)
        mixed = blocks.index_select(2, self._orders[name])
        mixed = mixed.view(groups, -1, GROUP_ROWS, block_bytes)
        if (fifths := _FIFTHS_AT.get(name)) is not None:
            _restore_fifths(mixed[..., fifths : fifths + 4])
        if (bits := _BITS_AT.get(name)) is not None:
            _restore_bits(mixed[..., bits : bits + 32])
        return mixed.transpose(1, 2).reshape(groups * GROUP_ROWS, -1)


# What lies where in an interleaved block: for each unit of bytes its offset in the file's block and
# its size; a unit of all 16 rows comes before the next unit.
Units = list[tuple[int, int]]


def _dwords(offset: int, count: int) -> Units:
    return [(offset + 4 * i, 4) for i in range(count)]


def _q6_half(half: int) -> Units:
    high, low = _dwords(128 + 32 * half, 8), _dwords(64 * half, 8)
    return [unit for pair in zip(high, low, strict=True) for unit in pair]


_HALF = [(0, 2)]
_HALVES = [(0, 2), (2, 2)]
_SIX_BITS = [*_HALVES, *_dwords(4, 3)]
_UNITS: dict[str, Units] = {
    "Q4_0": [*_HALF, *_dwords(2, 4)],
    "Q4_1": [*_HALVES, *_dwords(4, 4)],
    "Q5_0": [*_HALF, *_dwords(2, 5)],
    "Q5_1": [*_HALVES, *_dwords(4, 5)],
    "Q8_0": [*_HALF, *_dwords(2, 8)],
    "Q2_K": [(80, 2), (82, 2), *_dwords(0, 20)],
    "Q3_K": [
        *((108, 2), *_dwords(96, 3)),
        *(*_dwords(0, 4), *_dwords(32, 8)),
        *(*_dwords(16, 4), *_dwords(64, 8)),
    ],
    "Q4_K": [*_SIX_BITS, *_dwords(16, 32)],
    "Q5_K": [
        *_SIX_BITS,
        *(*_dwords(16, 4), *_dwords(48, 16)),
        *(*_dwords(32, 4), *_dwords(112, 16)),
    ],
    "Q6_K": [
        *((208, 2), *_dwords(192, 4)),
        *(*_q6_half(0), *_dwords(32, 8)),
        *(*_q6_half(1), *_dwords(96, 8)),
    ],
    "IQ4_NL": [*_HALF, *_dwords(2, 4)],
    "IQ4_XS": [*_HALVES, *_dwords(4, 33)],
    "MXFP4": [(0, 1), *_dwords(1, 4)],
}
# Where bits change places within bytes, too: the fifth bits of 32 values, a bit each of 256 values.
_FIFTHS_AT = {"Q5_0": 2, "Q5_1": 4}
_BITS_AT = {"Q3_K": 0, "Q5_K": 16}


def _pairs_in_file_order(groups: Tensor) -> Tensor:
    """Values of two bytes, two of a row side by side, a last odd one alone: rows [16 * groups, row
    bytes].
    """
    row_bytes = groups.shape[1] // GROUP_ROWS
    pairs = groups[:, : row_bytes // 4 * 4 * GROUP_ROWS].view(torch.int32)
    rows = pairs.view(len(groups), -1, GROUP_ROWS).transpose(1, 2).contiguous().view(torch.uint8)
    if row_bytes % 4:
        last = groups[:, -2 * GROUP_ROWS :].reshape(len(groups), GROUP_ROWS, 2)
        rows = torch.cat((rows, last), 2)
    return rows.view(-1, row_bytes)


def _byte_order(name: str, block_bytes: int) -> Any:
    """For each byte of 16 blocks, row after row, where it lies in the interleaved block."""
    order = np.empty((GROUP_ROWS, block_bytes), np.int64)
    at = 0
    for offset, size in _UNITS[name]:
        for row in range(GROUP_ROWS):
            order[row, offset : offset + size] = np.arange(at, at + size)
            at += size
    return order.reshape(-1)


def _restore_fifths(dword: Tensor) -> None:
    """Bit 8 i + e, of value 4 e + i, to bit 4 e + i; uint8 [..., 4], in place."""
    bits = (dword.unsqueeze(-1) >> _steps(dword, 8)) & 1  # [..., i, e]
    bits = bits.transpose(-1, -2).reshape(*dword.shape, 8)
    dword.copy_((bits << _steps(dword, 8)).sum(-1, dtype=torch.uint8))


def _restore_bits(data: Tensor) -> None:
    """Nibbles that are sorted by halves of a block back into bytes; uint8 [..., 32], in place."""
    first, second = data[..., :16].clone(), data[..., 16:].clone()
    data[..., :16] = (first & 15) | (second << 4)
    data[..., 16:] = (first >> 4) | (second & 0xF0)


# Unpackers, from blocks as in the file, uint8 [blocks, block bytes].


def _steps(data: Tensor, stop: int, step: int = 1) -> Tensor:
    return torch.arange(0, stop, step, dtype=torch.uint8, device=data.device)


def _fields(data: Tensor, width: int, bits: int) -> Tensor:
    """Fields of `bits` bits of the bytes, lowest first for each run of `width` bytes: uint8
    [blocks, runs * fields, width].
    """
    runs = data.reshape(len(data), -1, 1, width)
    fields = (runs >> _steps(data, 8, bits)[:, None]).bitwise_and_((1 << bits) - 1)
    return fields.flatten(1, 2)


def _halves(blocks: Tensor, offset: int) -> Tensor:
    """A float16 of each block as float32 [blocks, 1]."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).to(torch.float32)


def _nibbles(blocks: Tensor, offset: int) -> Tensor:
    return _fields(blocks[:, offset : offset + 16], 16, 4).view(-1, 1, 32)


def _fifths(blocks: Tensor, offset: int) -> Tensor:
    return _fields(blocks[:, offset : offset + 4], 1, 1).view(-1, 1, 32) << 4


def _signed(data: Tensor, offset: int) -> Tensor:
    return data.view(torch.int8).sub_(offset)


def _scale(blocks: Tensor, offset: int) -> Tensor:
    return _halves(blocks, offset)[:, None]


def _q4_0(blocks: Tensor, _: Any) -> Parts:
    return _signed(_nibbles(blocks, 2), 8), _scale(blocks, 0), None


def _q4_1(blocks: Tensor, _: Any) -> Parts:
    return _nibbles(blocks, 4), _scale(blocks, 0), -_scale(blocks, 2)


def _q5_0(blocks: Tensor, _: Any) -> Parts:
    return _signed(_nibbles(blocks, 6) | _fifths(blocks, 2), 16), _scale(blocks, 0), None


def _q5_1(blocks: Tensor, _: Any) -> Parts:
    return _nibbles(blocks, 8) | _fifths(blocks, 4), _scale(blocks, 0), -_scale(blocks, 2)


def _q8_0(blocks: Tensor, _: Any) -> Parts:
    return blocks[:, None, 2:].view(torch.int8), _scale(blocks, 0), None


def _q2_k(blocks: Tensor, _: Any) -> Parts:
    scales = blocks[:, :16]
    integers = _fields(blocks[:, 16:80], 32, 2).view(-1, 16, 16)
    d = _halves(blocks, 80) * (scales & 15)
    dmin = _halves(blocks, 82) * (scales >> 4)
    return integers, d[..., None], dmin[..., None]


def _q3_k(blocks: Tensor, _: Any) -> Parts:
    third = _fields(blocks[:, :32], 32, 1) << 2
    integers = _signed(_fields(blocks[:, 32:96], 32, 2) | third, 4).view(-1, 16, 16)
    low = _fields(blocks[:, 96:104], 8, 4).view(-1, 16)
    high = _fields(blocks[:, 104:108], 4, 2).view(-1, 16) << 4
    return integers, (_halves(blocks, 108) * _signed(low | high, 32))[..., None], None


def _six_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of eight sub-blocks, times d and dmin: float32 [blocks, 8, 1]."""
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((a & 63, (c & 15) | (a >> 2 & 48)), 1)
    minima = torch.cat((b & 63, (c >> 4) | (b >> 2 & 48)), 1)
    d, dmin = _halves(blocks, 0) * scales, _halves(blocks, 2) * minima
    return d[..., None], dmin[..., None]


def _q4_k(blocks: Tensor, _: Any) -> Parts:
    return _fields(blocks[:, 16:], 32, 4), *_six_bits(blocks)


def _q5_k(blocks: Tensor, _: Any) -> Parts:
    integers = _fields(blocks[:, 48:], 32, 4) | (_fields(blocks[:, 16:48], 32, 1) << 4)
    return integers, *_six_bits(blocks)


def _q6_k(blocks: Tensor, _: Any) -> Parts:
    low = _fields(blocks[:, :128], 64, 4).view(-1, 8, 32)
    integers = _signed(low | (_fields(blocks[:, 128:192], 32, 2) << 4), 32).view(-1, 16, 16)
    scales = _halves(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    return integers, scales[..., None], None


def _looked_up(table: Tensor, nibbles: Tensor) -> Tensor:
    return table.index_select(0, nibbles.reshape(-1).to(torch.int32)).view(nibbles.shape)


def _iq4_nl(blocks: Tensor, tables: Any) -> Parts:
    return _looked_up(tables["IQ4"], _nibbles(blocks, 2)), _scale(blocks, 0), None


def _iq4_xs(blocks: Tensor, tables: Any) -> Parts:
    low = _fields(blocks[:, 4:8], 1, 4).view(-1, 8)
    high = _fields(blocks[:, 2:4], 1, 2).view(-1, 8) << 4
    scales = _halves(blocks, 0) * _signed(low | high, 32)
    nibbles = _fields(blocks[:, 8:], 16, 4).view(-1, 8, 32)
    return _looked_up(tables["IQ4"], nibbles), scales[..., None], None


def _mxfp4(blocks: Tensor, tables: Any) -> Parts:
    e = blocks[:, :1].to(torch.int32)
    bits = torch.where(e < 2, 0x00200000 << e, (e - 1) << 23)  # 2^(e - 128); 0, 1 are subnormal
    scale = bits.view(torch.float32)[:, None]
    return _looked_up(tables["E2M1"], _nibbles(blocks, 1)), scale, None


_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_UNPACKERS: dict[str, Callable[[Tensor, Any], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
