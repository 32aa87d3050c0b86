"""Block types in the common form of the Triton kernels, from either layout.

A lane is four bytes of a row's packed integers, its word: a part of a lane is four inputs, an
unsigned byte each. Half 0 are the low nibbles, half 1 the high ones (a type of whole bytes has
half 0 alone); byte i of lane l has the input

    2 * S * (l // (S / 4)) + S * half + 4 * (l % (S / 4)) + i    (of whole bytes: 4 * l + i)

where S is the type's `span`. A value is (byte - offset) * scale, less a minimum where the type has
minima; operation by operation it is that of `ops.torch_quants`.

A file's rows lie one after the other. In the interleaved form (csrc/blocks.h) 16 rows have their
halves and words side by side, so places there are given a second time, as those of row 0.
"""

import triton
import triton.language as tl


@triton.jit
def _float16(
    data, block, row, mask, FILE: tl.constexpr, GROUP: tl.constexpr, INTERLEAVED: tl.constexpr
):
    """As float32."""
    # In units of its size, for the compiler to see that neighbours lie side by side.
    at = block // 2 + (GROUP // 2 + row if INTERLEAVED else FILE // 2)
    return tl.load(data.to(tl.pointer_type(tl.float16)) + at, mask, 0.0).to(tl.float32)


@triton.jit
def _dword(
    data, block, row, mask, file, group, ALIGNED: tl.constexpr, INTERLEAVED: tl.constexpr
):  # fmt: skip
    """uint32; in a file it may be aligned to two bytes only."""
    if INTERLEAVED:
        at = block // 4 + (group // 4 + row)
        return tl.load(data.to(tl.pointer_type(tl.uint32)) + at, mask, 0)
    elif ALIGNED:
        return tl.load(data.to(tl.pointer_type(tl.uint32)) + (block // 4 + file // 4), mask, 0)
    else:
        at = data.to(tl.pointer_type(tl.uint16)) + (block // 2 + file // 2)
        low, high = tl.load(at, mask, 0).to(tl.uint32), tl.load(at + 1, mask, 0).to(tl.uint32)
        return low | (high << 16)


@triton.jit
def _nibbles(words, HALF: tl.constexpr):
    return (words >> (4 * HALF)) & 0x0F0F0F0F


@triton.jit
def q4_0(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    words = _dword(data, block, row, mask, 2 + 4 * word, 32 + 64 * word, False, INTERLEAVED)
    return _nibbles(words, HALF), _float16(data, block, row, mask, 0, 0, INTERLEAVED)


@triton.jit
def q4_1(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    words = _dword(data, block, row, mask, 4 + 4 * word, 64 + 64 * word, True, INTERLEAVED)
    scale = _float16(data, block, row, mask, 0, 0, INTERLEAVED)
    return _nibbles(words, HALF), scale, -_float16(data, block, row, mask, 2, 32, INTERLEAVED)


@triton.jit
def _fifths(bits, word, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """Bit 4 of each byte: in a file bit 4 e + i of byte i of dword e, interleaved bit 8 i + e."""
    dword = 4 * HALF + word
    # The factor brings bit i to bit 7 i + i, among others.
    spread = bits >> dword if INTERLEAVED else ((bits >> (4 * dword)) & 15) * 0x00204081
    return (spread & 0x01010101) << 4


@triton.jit
def q5_0(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    bits = _dword(data, block, row, mask, 2, 32, False, INTERLEAVED)
    words = _dword(data, block, row, mask, 6 + 4 * word, 96 + 64 * word, False, INTERLEAVED)
    words = _nibbles(words, HALF) | _fifths(bits, word, HALF, INTERLEAVED)
    return words, _float16(data, block, row, mask, 0, 0, INTERLEAVED)


@triton.jit
def q5_1(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    bits = _dword(data, block, row, mask, 4, 64, True, INTERLEAVED)
    words = _dword(data, block, row, mask, 8 + 4 * word, 128 + 64 * word, True, INTERLEAVED)
    words = _nibbles(words, HALF) | _fifths(bits, word, HALF, INTERLEAVED)
    scale = _float16(data, block, row, mask, 0, 0, INTERLEAVED)
    return words, scale, -_float16(data, block, row, mask, 2, 32, INTERLEAVED)


@triton.jit
def q8_0(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    words = _dword(data, block, row, mask, 2 + 4 * word, 32 + 64 * word, False, INTERLEAVED)
    return words ^ 0x80808080, _float16(data, block, row, mask, 0, 0, INTERLEAVED)


@triton.jit
def _six_bits(data, block, row, part, mask, INTERLEAVED: tl.constexpr):
    """Scale and minimum of parts 0..7 of a block, times d and dmin."""
    a = _dword(data, block, row, mask, 4, 64, True, INTERLEAVED)
    b = _dword(data, block, row, mask, 8, 128, True, INTERLEAVED)
    c = _dword(data, block, row, mask, 12, 192, True, INTERLEAVED) >> (8 * (part % 4))
    a, b = a >> (8 * (part % 4)), b >> (8 * (part % 4))
    scale = tl.where(part < 4, a & 63, (c & 15) | ((a >> 2) & 48))
    minimum = tl.where(part < 4, b & 63, ((c >> 4) & 15) | ((b >> 2) & 48))
    d = _float16(data, block, row, mask, 0, 0, INTERLEAVED)
    dmin = _float16(data, block, row, mask, 2, 32, INTERLEAVED)
    return d * scale.to(tl.float32), dmin * minimum.to(tl.float32)


@triton.jit
def q4_k(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    words = _dword(data, block, row, mask, 16 + 4 * word, 256 + 64 * word, True, INTERLEAVED)
    scale, minimum = _six_bits(data, block, row, 2 * (word // 8) + HALF, mask, INTERLEAVED)
    return _nibbles(words, HALF), scale, minimum


@triton.jit
def q5_k(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    part, dword = 2 * (word // 8) + HALF, word % 8
    # Interleaved, each half of a block has its own fifth bits, then its nibbles.
    start = 256 + 1280 * (part // 4)
    if INTERLEAVED:
        bits = _dword(data, block, row, mask, 0, start + 64 * (dword % 4), True, True)
        bits = bits >> (part % 4 + 4 * (dword // 4))
    else:
        bits = _dword(data, block, row, mask, 16 + 4 * dword, 0, True, False) >> part
    group = start + 256 + 64 * (word % 16)
    words = _dword(data, block, row, mask, 48 + 4 * word, group, True, INTERLEAVED)
    scale, minimum = _six_bits(data, block, row, part, mask, INTERLEAVED)
    return _nibbles(words, HALF) | ((bits & 0x01010101) << 4), scale, minimum


@triton.jit
def q6_k(data, block, row, word, mask, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    half, second, dword = word // 16, word // 8 % 2, word % 8  # of 128 inputs, of 64 bytes
    part = second + 2 * HALF
    start = 288 + 1536 * half
    high = _dword(
        data, block, row, mask, 128 + 32 * half + 4 * dword, start + 128 * dword, False, INTERLEAVED
    )
    group = start + tl.where(second == 0, 64 + 128 * dword, 1024 + 64 * dword)
    words = _dword(data, block, row, mask, 4 * word, group, False, INTERLEAVED)
    sub = 8 * half + 2 * part + dword // 4
    at = block + (32 + 64 * (sub // 4) + 4 * row + sub % 4 if INTERLEAVED else 192 + sub)
    scale = tl.load(data.to(tl.pointer_type(tl.int8)) + at, mask, 0).to(tl.float32)
    scale = _float16(data, block, row, mask, 208, 0, INTERLEAVED) * scale
    return _nibbles(words, HALF) | (((high >> (2 * part)) & 0x03030303) << 4), scale
