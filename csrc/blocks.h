// The block types. Each says how 16 file rows become an interleaved block, and how an interleaved block is unpacked
// into the common form: 32 inputs × 16 rows of unsigned bytes w (dword e of a lane: inputs 4e..4e+3 of that row), with
//   value = (d · s) · (w − kOffset) − (dmin · m)
// where w is at most kMost, and s and m are small integers for each 32 (kSubs = 1) or 16 inputs (2), or left out (0). A
// span of kSpan inputs is what the compiler unrolls into parts of 32; a loop runs over the spans of a block.
#pragma once

#include "linear.h"

namespace flexinfer::FI_NS {

using Rows16 = const uint8_t* const*;  // 16 file rows

// 2 bytes of each row side by side.
static FI_INLINE void interleave_half(Rows16 rows, size_t offset, uint8_t* out) {
  for (int row = 0; row < kLanes; ++row) std::memcpy(out + 2 * row, rows[row] + offset, 2);
}
// 16·n bytes of each row side by side by dwords; from one dword's 64 bytes to the next are `step`.
template <int N>
static FI_INLINE void interleave_dwords(Rows16 rows, size_t offset, uint8_t* out, size_t step = 64) {
  for (int i = 0; i < N; ++i) {
    i32x16 dwords[4];
    transpose_dwords(rows, offset + 16 * i, dwords);
    for (int e = 0; e < 4; ++e) store64(out + step * (4 * i + e), dwords[e]);
  }
}
static FI_INLINE void interleave_dword(Rows16 rows, size_t offset, uint8_t* out) {
  for (int row = 0; row < kLanes; ++row) std::memcpy(out + 4 * row, rows[row] + offset, 4);
}

static FI_INLINE i32x16 bytes(int value) { return set1_i32(value * 0x01010101); }
static FI_INLINE i32x16 low_nibbles(i32x16 a) { return bit_and(a, bytes(0x0f)); }
static FI_INLINE i32x16 high_nibbles(i32x16 a) { return bit_and(shr<4>(a), bytes(0x0f)); }
template <int Byte>
static FI_INLINE i32x16 unsigned_byte(i32x16 a) {
  return Byte == 3 ? shr<24>(a) : bit_and(shr<8 * Byte>(a), set1_i32(0xff));
}
template <int Byte>
static FI_INLINE i32x16 signed_byte(i32x16 a) { return sar<24>(shl<24 - 8 * Byte>(a)); }

// Within each dword, moves every bit to the index that has bits Low and High of its own index exchanged.
template <int Low, int High>
static FI_INLINE i32x16 swap_index_bits(i32x16 a) {
  constexpr int kShift = (1 << High) - (1 << Low);
  constexpr uint32_t kMoving = [] {
    uint32_t mask = 0;
    for (int i = 0; i < 32; ++i)
      if (i >> Low & 1 && !(i >> High & 1)) mask |= 1u << i;
    return mask;
  }();
  const i32x16 differ = bit_and(bit_xor(shr<kShift>(a), a), set1_i32(static_cast<int32_t>(kMoving)));
  return bit_xor(bit_xor(a, differ), shl<kShift>(differ));
}

// Scales of one 32-input part; what a type does not have stays unset and unread.
struct Scales {
  f32x16 d, dmin;
  i32x16 s[2], m[2];
};

// Nibble pairs of 32 inputs: dword e holds inputs 4e.. in its low and 16 + 4e.. in its high nibbles.
static FI_INLINE void unpack_nibbles(const uint8_t* dwords, i32x16 w[8]) {
  for (int e = 0; e < 4; ++e) {
    const i32x16 pairs = load64_in_order(dwords + 64 * e);
    w[e] = low_nibbles(pairs);
    w[e + 4] = high_nibbles(pairs);
  }
}

// A block of one value; accumulate() has a form of its own for it.
struct F32 {
  static constexpr int kId = 0, kColumns = 1, kBytes = 4;
  static constexpr bool kFloat = true;
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) { interleave_dword(rows, 0, out); }
};

struct Q4_0 {
  static constexpr int kId = 2, kColumns = 32, kBytes = 18, kSpan = 32, kOffset = 8, kMost = 15, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_dwords<1>(rows, 2, out + 32);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) { unpack_nibbles(block + 32, w); }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

struct Q4_1 {
  static constexpr int kId = 3, kColumns = 32, kBytes = 20, kSpan = 32, kOffset = 0, kMost = 15, kSubs = 0, kMinima = 1;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d, m; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_half(rows, 2, out + 32);
    interleave_dwords<1>(rows, 4, out + 64);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block), load_f16(block + 32)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) { unpack_nibbles(block + 64, w); }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) {
    s.d = h.d;
    s.dmin = neg(h.m);
  }
};

// The fifth bits lie in one dword, bit 4e + i for byte i of dword e; interleaved they are moved to bit 8i + e, so that
// one shift brings those of dword e to their place in all four bytes.
struct Q5_0 {
  static constexpr int kId = 6, kColumns = 32, kBytes = 22, kSpan = 32, kOffset = 16, kMost = 31, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    i32x16 dwords[4];  // the fifth bits, and nibbles that follow once more
    transpose_dwords(rows, 2, dwords);
    i32x16 fifth = swap_index_bits<1, 4>(dwords[0]);
    fifth = swap_index_bits<0, 3>(fifth);
    fifth = swap_index_bits<1, 2>(fifth);
    store64(out + 32, swap_index_bits<0, 1>(fifth));
    interleave_dwords<1>(rows, 6, out + 96);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    const i32x16 fifth = load64_in_order(block + 32), place = bytes(0x10);
    unpack_nibbles(block + 96, w);
    w[0] = bit_or(w[0], bit_and(shl<4>(fifth), place));
    w[1] = bit_or(w[1], bit_and(shl<3>(fifth), place));
    w[2] = bit_or(w[2], bit_and(shl<2>(fifth), place));
    w[3] = bit_or(w[3], bit_and(shl<1>(fifth), place));
    w[4] = bit_or(w[4], bit_and(fifth, place));
    w[5] = bit_or(w[5], bit_and(shr<1>(fifth), place));
    w[6] = bit_or(w[6], bit_and(shr<2>(fifth), place));
    w[7] = bit_or(w[7], bit_and(shr<3>(fifth), place));
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

struct Q8_0 {
  static constexpr int kId = 8, kColumns = 32, kBytes = 34, kSpan = 32, kOffset = 128, kMost = 255, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_dwords<2>(rows, 2, out + 32);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    const i32x16 top = set1_i32(static_cast<int32_t>(0x80808080));
    for (int e = 0; e < 8; ++e) w[e] = bit_xor(load64_in_order(block + 32 + 64 * e), top);
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

// d, dmin; eight 6-bit scales and minima in 12 bytes; part p in the low (even p) or high nibbles of 32 bytes.
struct Q4_K {
  static constexpr int kId = 12, kColumns = 256, kBytes = 144, kSpan = 128, kOffset = 0, kMost = 15, kSubs = 1, kMinima = 1;
  static constexpr bool kFloat = false;
  struct Header {
    f32x16 d, dmin;
    i32x16 s, m;  // a byte per part
  };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_half(rows, 2, out + 32);
    i32x16 dwords[4];  // the first is d and dmin again
    transpose_dwords(rows, 0, dwords);
    for (int e = 0; e < 3; ++e) store64(out + 64 + 64 * e, dwords[e + 1]);
    interleave_dwords<8>(rows, 16, out + 256);
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    const i32x16 a = load64_in_order(block + 64), b = load64_in_order(block + 128), c = load64_in_order(block + 192);
    const f32x16 d = load_f16(block), dmin = load_f16(block + 32);
    if (half == 0) return {d, dmin, bit_and(a, bytes(0x3f)), bit_and(b, bytes(0x3f))};
    const i32x16 top = bytes(0x30);
    return {d, dmin, bit_or(low_nibbles(c), bit_and(shr<2>(a), top)), bit_or(high_nibbles(c), bit_and(shr<2>(b), top))};
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    const uint8_t* from = block + 256 + 1024 * half + 512 * (Part / 2);
    for (int e = 0; e < 8; ++e) {
      const i32x16 pairs = load64_in_order(from + 64 * e);
      w[e] = Part % 2 ? high_nibbles(pairs) : low_nibbles(pairs);
    }
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    s.d = h.d;
    s.dmin = h.dmin;
    s.s[0] = unsigned_byte<Part>(h.s);
    s.m[0] = unsigned_byte<Part>(h.m);
  }
};

// In each half of 128 inputs, parts 0 and 1 take the low, 2 and 3 the high nibbles of 64 bytes, and bits 2p, 2p+1 of 32
// bytes; 16 signed scales; d. Interleaved in the order of use, for the processor prefetches only streams that ascend: d,
// scales, then for each half the 32 bytes and the first 32 of the 64, dword about, then the other 32.
struct Q6_K {
  static constexpr int kId = 14, kColumns = 256, kBytes = 210, kSpan = 128, kOffset = 32, kMost = 63, kSubs = 2, kMinima = 0;
  static constexpr bool kFloat = false;
  static constexpr int kScales = 32, kHalves = 288, kHalfBytes = 1536;  // offsets in the interleaved block
  struct Header {
    f32x16 d;
    i32x16 s[2];
  };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 208, out);
    interleave_dwords<1>(rows, 192, out + kScales);
    for (int half = 0; half < 2; ++half) {
      uint8_t* to = out + kHalves + kHalfBytes * half;
      interleave_dwords<2>(rows, 128 + 32 * half, to, 128);
      interleave_dwords<2>(rows, 64 * half, to + 64, 128);
      interleave_dwords<2>(rows, 64 * half + 32, to + 1024);
    }
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    const uint8_t* s = block + kScales + 128 * half;
    return {load_f16(block), {load64_in_order(s), load64_in_order(s + 64)}};
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    const uint8_t* high = block + kHalves + kHalfBytes * half;
    for (int e = 0; e < 8; ++e) {
      const i32x16 bits = load64_in_order(high + 128 * e);
      const i32x16 pairs = load64_in_order(high + (Part % 2 ? 1024 + 64 * e : 64 + 128 * e));
      const i32x16 nibble = Part < 2 ? low_nibbles(pairs) : high_nibbles(pairs);
      const i32x16 top =
          Part == 0 ? shl<4>(bits) : Part == 1 ? shl<2>(bits) : Part == 2 ? bits : shr<2>(bits);
      w[e] = bit_or(nibble, bit_and(top, bytes(0x30)));
    }
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    s.d = h.d;
    s.s[0] = signed_byte<2 * Part % 4>(h.s[Part / 2]);
    s.s[1] = signed_byte<2 * Part % 4 + 1>(h.s[Part / 2]);
  }
};

}  // namespace flexinfer::FI_NS
