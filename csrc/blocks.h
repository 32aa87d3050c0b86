// The block types of floats and of 32 values; blocks_k.h and blocks_table.h have the others. Each says how 16 file rows
// become an interleaved block, and how an interleaved block is unpacked into the common form: 32 inputs × 16 rows of
// unsigned bytes w (dword e of a lane: inputs 4e..4e+3 of that row), with
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

// Floats, a block of one value: column after column of 16 rows. interleave() takes as many columns at once as it can, and
// says how many; values() are 16 side by side, column() the first or second column of two. Where the type kRounds,
// activations are rounded to bfloat16 and the second column of a pair comes first.
struct F32 {
  static constexpr int kId = 0, kColumns = 1, kBytes = 4;
  static constexpr bool kFloat = true, kRounds = false;
  static FI_INLINE int64_t interleave(Rows16 rows, int64_t columns, uint8_t* out) {
    if (columns >= 4) return interleave_dwords<1>(rows, 0, out), 4;
    return interleave_dword(rows, 0, out), 1;
  }
  static FI_INLINE f32x16 values(const uint8_t* from) { return as_f32(load64(from)); }
  template <int Which> static FI_INLINE f32x16 column(const uint8_t* pair) { return values(pair + 64 * Which); }
};

struct F16 {
  static constexpr int kId = 1, kColumns = 1, kBytes = 2;
  static constexpr bool kFloat = true, kRounds = false;
  static FI_INLINE int64_t interleave(Rows16 rows, int64_t columns, uint8_t* out) {
    if (columns < 8) return interleave_half(rows, 0, out), 1;
    i32x16 pairs[4];
    transpose_dwords(rows, 0, pairs);
    for (int e = 0; e < 4; ++e) {
      store_u16(out + 64 * e, pairs[e]);
      store_u16(out + 64 * e + 32, shr<16>(pairs[e]));
    }
    return 8;
  }
  static FI_INLINE f32x16 values(const uint8_t* from) { return load_f16(from); }
  template <int Which> static FI_INLINE f32x16 column(const uint8_t* pair) { return values(pair + 32 * Which); }
};

// Two columns of a row stay together, as instructions take them; a last odd one lies by itself.
struct BF16 {
  static constexpr int kId = 30, kColumns = 1, kBytes = 2;
  static constexpr bool kFloat = true, kRounds = true;
  static constexpr int kRoundedBytes = 4;  // an activation, once rounded
  static FI_INLINE int64_t interleave(Rows16 rows, int64_t columns, uint8_t* out) {
    if (columns >= 8) return interleave_dwords<1>(rows, 0, out), 8;
    if (columns >= 2) return interleave_dword(rows, 0, out), 2;
    return interleave_half(rows, 0, out), 1;
  }
  static FI_INLINE f32x16 values(const uint8_t* from) { return as_f32(shl<16>(load_u16(from))); }
  template <int Which> static FI_INLINE f32x16 column(const uint8_t* pair) {
    const i32x16 both = load64(pair);
    return as_f32(Which ? bit_and(both, set1_i32(-0x10000)) : shl<16>(both));
  }
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
// one shift brings those of dword e to their place in all four bytes. The dword and 12 bytes more are read.
static FI_INLINE void interleave_fifths(Rows16 rows, size_t offset, uint8_t* out) {
  i32x16 dwords[4];
  transpose_dwords(rows, offset, dwords);
  i32x16 fifths = swap_index_bits<1, 4>(dwords[0]);
  fifths = swap_index_bits<0, 3>(fifths);
  fifths = swap_index_bits<1, 2>(fifths);
  store64(out, swap_index_bits<0, 1>(fifths));
}
static FI_INLINE void unpack_fifths_and_nibbles(const uint8_t* from, i32x16 w[8]) {
  const i32x16 fifths = load64_in_order(from), place = bytes(0x10);
  unpack_nibbles(from + 64, w);
  w[0] = bit_or(w[0], bit_and(shl<4>(fifths), place));
  w[1] = bit_or(w[1], bit_and(shl<3>(fifths), place));
  w[2] = bit_or(w[2], bit_and(shl<2>(fifths), place));
  w[3] = bit_or(w[3], bit_and(shl<1>(fifths), place));
  w[4] = bit_or(w[4], bit_and(fifths, place));
  w[5] = bit_or(w[5], bit_and(shr<1>(fifths), place));
  w[6] = bit_or(w[6], bit_and(shr<2>(fifths), place));
  w[7] = bit_or(w[7], bit_and(shr<3>(fifths), place));
}

struct Q5_0 {
  static constexpr int kId = 6, kColumns = 32, kBytes = 22, kSpan = 32;
  static constexpr int kOffset = 16, kMost = 31, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_fifths(rows, 2, out + 32);
    interleave_dwords<1>(rows, 6, out + 96);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    unpack_fifths_and_nibbles(block + 32, w);
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

struct Q5_1 {
  static constexpr int kId = 7, kColumns = 32, kBytes = 24, kSpan = 32, kOffset = 0, kMost = 31, kSubs = 0, kMinima = 1;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d, m; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_half(rows, 2, out + 32);
    interleave_fifths(rows, 4, out + 64);
    interleave_dwords<1>(rows, 8, out + 128);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block), load_f16(block + 32)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    unpack_fifths_and_nibbles(block + 64, w);
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) {
    s.d = h.d;
    s.dmin = neg(h.m);
  }
};

struct Q8_0 {
  static constexpr int kId = 8, kColumns = 32, kBytes = 34, kSpan = 32;
  static constexpr int kOffset = 128, kMost = 255, kSubs = 0, kMinima = 0;
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

}  // namespace flexinfer::FI_NS
