"""Triton kernels that multiply raw blocks: dequantised on their way into the product, never stored.

A row's result is a function of the row and the tokens alone, bit for bit: its inputs are added in
one order, a row has the same place in its tile whatever piece it comes in, nothing is tuned at run
time, and a multiplication and an addition are fused only where it says so. So neither how a matrix
is cut nor its layout shows.

Both kernels take a piece's rows `first` .. of its matrix from `data`, inputs by lanes from `x`
(`torch_triton_blocks`), and store from `out` on, the piece's first row there.
"""

import triton
import triton.language as tl

PLANE_LANES = tl.constexpr(64)  # what inputs of one byte are padded to, with zeros


@triton.constexpr_function
def _halvings(lanes):
    return lanes.bit_length() - 1


@triton.jit
def _places(first, rows, program, row_bytes, ROWS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Of a tile of rows counted from the matrix's first: their numbers, which to store, which can
    be loaded, where they or their groups begin in the piece, and which of their group they are.
    """
    row = (first // ROWS + program) * ROWS + tl.arange(0, ROWS)
    stored = (row >= first) & (row < first + rows)
    if INTERLEAVED:
        first = first // 16 * 16  # it is that; now the compiler sees that groups are whole
        local = row - first
        loaded = (row >= first) & (row < first + tl.cdiv(rows, 16) * 16)
        return row, stored, loaded, (local // 16 * 16).to(tl.int64) * row_bytes, local % 16
    else:
        local = row - first
        return row, stored, stored, local.to(tl.int64) * row_bytes, local * 0


@triton.jit
def _floats(words, BYTE: tl.constexpr, OFFSET: tl.constexpr):
    """A byte n of each word less an offset: 2^23 + n is exact, and there without a conversion."""
    bits = ((words >> (8 * BYTE)) & 0xFF) | 0x4B000000
    return bits.to(tl.float32, bitcast=True) - (8388608.0 + OFFSET)


@triton.jit
def _store(y, at, bias, mask, has_bias, epilogue):
    """After bias and epilogue, by the numbers of `ops.base.Epilogue`."""
    if has_bias:
        y += tl.load(bias, mask, 0.0)
    if epilogue != 0:
        before = tl.load(at, mask, 0.0)
        if epilogue == 1:
            y += before
        elif epilogue == 2:
            y *= before / (1.0 + tl.exp(-before))
        else:
            inner = 0.7978845608028654 * (before + 0.044715 * before * before * before)
            y *= before * (1.0 - 1.0 / (tl.exp(2.0 * inner) + 1.0))
    tl.store(at, y, mask)


_RUNTIME = ["first", "rows", "lanes", "row_bytes", "out_stride", "tokens", "has_bias", "epilogue"]
_POINTERS = ["out", "bias"]
_jit = triton.jit(do_not_specialize=_RUNTIME, do_not_specialize_on_alignment=_POINTERS)


@_jit
def one(
    data, x, out, bias, first, rows, lanes, row_bytes, has_bias, epilogue, out_stride, tokens,
    UNPACK: tl.constexpr, HALVES: tl.constexpr, WORDS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    OFFSET: tl.constexpr, MINIMA: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """One token: lanes multiply on their own, in float32, and are added pairwise at the end."""
    row, stored, loaded, start, in_group = _places(
        first, rows, tl.program_id(0), row_bytes, ROWS, INTERLEAVED
    )
    plane = tl.cdiv(lanes, PLANE_LANES) * PLANE_LANES
    step: tl.constexpr = BLOCK_BYTES * 16 if INTERLEAVED else BLOCK_BYTES
    sums = tl.zeros((ROWS, LANES), tl.float32)
    for begin in range(0, lanes, LANES):
        lane = begin + tl.arange(0, LANES)
        block, word = start[:, None] + (lane // WORDS * step)[None, :], (lane % WORDS)[None, :]
        mask = loaded[:, None] & (lane < lanes)[None, :]
        for half in tl.static_range(HALVES):
            unpacked = UNPACK(data, block, in_group[:, None], word, mask, half, INTERLEAVED)
            product = tl.zeros((ROWS, LANES), tl.float32)
            total = tl.zeros((1, LANES), tl.float32)
            for byte in tl.static_range(4):
                values = tl.load(x + (4 * half + byte) * plane + lane)[None, :]
                product = tl.fma(_floats(unpacked[0], byte, OFFSET), values, product)
                total += values
            sums = tl.fma(unpacked[1], product, sums)
            if MINIMA:
                sums = tl.fma(-unpacked[2], total, sums)
    # In this order, whichever threads have the lanes; a reduction's order would be its layout's.
    for halvings in tl.static_range(_halvings(LANES)):
        even, odd = tl.split(tl.reshape(sums, (ROWS, LANES >> (halvings + 1), 2)))
        sums = even + odd
    at = row - first
    _store(tl.reshape(sums, (ROWS,)), out + at, bias + at, stored, has_bias, epilogue)


@_jit
def many(
    data, x, out, bias, first, rows, lanes, row_bytes, has_bias, epilogue, out_stride, tokens,
    UNPACK: tl.constexpr, HALVES: tl.constexpr, WORDS: tl.constexpr, BLOCK_BYTES: tl.constexpr,
    OFFSET: tl.constexpr, MINIMA: tl.constexpr, INTERLEAVED: tl.constexpr,
    ROWS: tl.constexpr, LANES: tl.constexpr, TOKENS: tl.constexpr,
):  # fmt: skip
    """Tiles of rows times tiles of tokens, in the type of `x`, added in float32."""
    across = tl.cdiv(tokens, TOKENS)  # side by side, so that they find the weights in the cache
    row, stored, loaded, start, in_group = _places(
        first, rows, tl.program_id(0) // across, row_bytes, ROWS, INTERLEAVED
    )
    plane = tl.cdiv(lanes, PLANE_LANES) * PLANE_LANES
    step: tl.constexpr = BLOCK_BYTES * 16 if INTERLEAVED else BLOCK_BYTES
    token = tl.program_id(0) % across * TOKENS + tl.arange(0, TOKENS)
    given = (token < tokens)[None, :]
    y = tl.zeros((ROWS, TOKENS), tl.float32)
    for begin in range(0, lanes, LANES):
        lane = begin + tl.arange(0, LANES)
        block, word = start[:, None] + (lane // WORDS * step)[None, :], (lane % WORDS)[None, :]
        mask = loaded[:, None] & (lane < lanes)[None, :]
        inputs = x + (token * (4 * HALVES * plane))[None, :] + lane[:, None]
        for half in tl.static_range(HALVES):
            unpacked = UNPACK(data, block, in_group[:, None], word, mask, half, INTERLEAVED)
            for byte in tl.static_range(4):
                values = tl.load(inputs + (4 * half + byte) * plane, given, 0.0)
                weights = _floats(unpacked[0], byte, OFFSET) * unpacked[1]
                if MINIMA:
                    weights -= unpacked[2]
                y = tl.dot(weights.to(values.dtype), values, y, input_precision="ieee")
    at = (row - first)[:, None]
    there = out + (token * out_stride)[None, :] + at
    _store(y, there, bias + at, stored[:, None] & given, has_bias, epilogue)
