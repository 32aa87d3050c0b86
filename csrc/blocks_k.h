// Blocks of 256 values with sub-scales in the common form of blocks.h. A span is a half, of 128 inputs: parts 0..3.
#pragma once

#include "blocks.h"

namespace flexinfer::FI_NS {

// One bit of each value in 32 bytes, bit 4h + p for part p of half h. Interleaved, each half has four dwords of its own,
// bit p of dword e for inputs 4e.., bit 4 + p for inputs 16 + 4e...
static FI_INLINE void interleave_bits(Rows16 rows, size_t offset, uint8_t* first_half, uint8_t* second_half) {
  i32x16 a[4], b[4];
  transpose_dwords(rows, offset, a);
  transpose_dwords(rows, offset + 16, b);
  for (int e = 0; e < 4; ++e) {
    store64(first_half + 64 * e, bit_or(low_nibbles(a[e]), shl<4>(low_nibbles(b[e]))));
    store64(second_half + 64 * e, bit_or(high_nibbles(a[e]), shl<4>(high_nibbles(b[e]))));
  }
}
// Bit From of every byte moved to bit To, alone.
template <int From, int To>
static FI_INLINE i32x16 moved_bit(i32x16 a) {
  return bit_and(From > To ? shr<(From > To ? From - To : 0)>(a) : shl<(From > To ? 0 : To - From)>(a), bytes(1 << To));
}
template <int Part, int To>
static FI_INLINE void unpack_bits(const uint8_t* from, i32x16 w[8]) {
  for (int e = 0; e < 4; ++e) {
    const i32x16 bits = load64_in_order(from + 64 * e);
    w[e] = moved_bit<Part, To>(bits);
    w[e + 4] = moved_bit<Part + 4, To>(bits);
  }
}

// A byte for 16 inputs: of 8 bytes, two dwords, those of one part.
template <int Part, int Half>
static FI_INLINE i32x16 sub_scale(const i32x16 s[2]) { return unsigned_byte<2 * Part % 4 + Half>(s[Part / 2]); }

// 16 bytes of a 4-bit scale and, above, a 4-bit minimum; bits 2p, 2p+1 of 32 bytes for part p of each half; d, dmin.
struct Q2_K {
  static constexpr int kId = 10, kColumns = 256, kBytes = 84, kSpan = 128;
  static constexpr int kOffset = 0, kMost = 3, kSubs = 2, kMinima = 1;
  static constexpr bool kFloat = false;
  struct Header {
    f32x16 d, dmin;
    i32x16 s[2];  // two bytes per part, scales and minima
  };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 80, out);
    interleave_half(rows, 82, out + 32);
    interleave_dwords<1>(rows, 0, out + 64);
    interleave_dwords<4>(rows, 16, out + 320);
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    const uint8_t* s = block + 64 + 128 * half;
    return {load_f16(block), load_f16(block + 32), {load64_in_order(s), load64_in_order(s + 64)}};
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    for (int e = 0; e < 8; ++e)
      w[e] = bit_and(shr<2 * Part>(load64_in_order(block + 320 + 512 * half + 64 * e)), bytes(0x03));
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    const i32x16 low = set1_i32(0x0f), first = sub_scale<Part, 0>(h.s), second = sub_scale<Part, 1>(h.s);
    s.d = h.d;
    s.dmin = h.dmin;
    s.s[0] = bit_and(first, low);
    s.s[1] = bit_and(second, low);
    s.m[0] = shr<4>(first);
    s.m[1] = shr<4>(second);
  }
};

// The third bits in 32 bytes; the other two as in Q2_K; 16 scales, offset by 32, of 6 bits in 12 bytes: the low four in
// the nibbles of 8 bytes, first the low nibbles, the high two in pairs of bits of 4 bytes, first the lowest; d.
// Interleaved in the order of use: d, scales, then for each half the third bits and the other two.
struct Q3_K {
  static constexpr int kId = 11, kColumns = 256, kBytes = 110, kSpan = 128;
  static constexpr int kOffset = 4, kMost = 7, kSubs = 2, kMinima = 0;
  static constexpr bool kFloat = false;
  static constexpr int kScales = 32, kHalves = 224, kHalfBytes = 768;  // offsets in the interleaved block
  struct Header {
    f32x16 d;
    i32x16 s[2];  // two bytes per part, offset by 32
  };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 108, out);
    i32x16 dwords[4];  // the first is none of the scales
    transpose_dwords(rows, 92, dwords);
    for (int e = 0; e < 3; ++e) store64(out + kScales + 64 * e, dwords[e + 1]);
    interleave_bits(rows, 0, out + kHalves, out + kHalves + kHalfBytes);
    interleave_dwords<2>(rows, 32, out + kHalves + 256);
    interleave_dwords<2>(rows, 64, out + kHalves + kHalfBytes + 256);
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    i32x16 a = load64_in_order(block + kScales), b = load64_in_order(block + kScales + 64);
    i32x16 high = load64_in_order(block + kScales + 128);
    if (half) {
      a = shr<4>(a);
      b = shr<4>(b);
      high = shr<4>(high);
    }
    const i32x16 top = bytes(0x30);
    return {load_f16(block),
            {bit_or(low_nibbles(a), bit_and(shl<4>(high), top)), bit_or(low_nibbles(b), bit_and(shl<2>(high), top))}};
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    const uint8_t* from = block + kHalves + kHalfBytes * half;
    unpack_bits<Part, 2>(from, w);
    for (int e = 0; e < 8; ++e)
      w[e] = bit_or(w[e], bit_and(shr<2 * Part>(load64_in_order(from + 256 + 64 * e)), bytes(0x03)));
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    const i32x16 offset = set1_i32(32);
    s.d = h.d;
    s.s[0] = sub(sub_scale<Part, 0>(h.s), offset);
    s.s[1] = sub(sub_scale<Part, 1>(h.s), offset);
  }
};

// d, dmin; eight 6-bit scales and minima in 12 bytes.
struct SixBits {
  struct Header {
    f32x16 d, dmin;
    i32x16 s, m;  // a byte per part
  };
  static constexpr int kPacked = 256;  // bytes that they take, interleaved
  static FI_INLINE void interleave_scales(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_half(rows, 2, out + 32);
    i32x16 dwords[4];  // the first is d and dmin again
    transpose_dwords(rows, 0, dwords);
    for (int e = 0; e < 3; ++e) store64(out + 64 + 64 * e, dwords[e + 1]);
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    const i32x16 a = load64_in_order(block + 64), b = load64_in_order(block + 128), c = load64_in_order(block + 192);
    const f32x16 d = load_f16(block), dmin = load_f16(block + 32);
    if (half == 0) return {d, dmin, bit_and(a, bytes(0x3f)), bit_and(b, bytes(0x3f))};
    const i32x16 top = bytes(0x30);
    return {d, dmin, bit_or(low_nibbles(c), bit_and(shr<2>(a), top)), bit_or(high_nibbles(c), bit_and(shr<2>(b), top))};
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    s.d = h.d;
    s.dmin = h.dmin;
    s.s[0] = unsigned_byte<Part>(h.s);
    s.m[0] = unsigned_byte<Part>(h.m);
  }
};

// Part p in the low (even p) or high nibbles of 32 bytes of each half.
template <int Part>
static FI_INLINE i32x16 part_nibbles(const uint8_t* half, int e) {
  const i32x16 pairs = load64_in_order(half + 512 * (Part / 2) + 64 * e);
  return Part % 2 ? high_nibbles(pairs) : low_nibbles(pairs);
}

struct Q4_K : SixBits {
  static constexpr int kId = 12, kColumns = 256, kBytes = 144, kSpan = 128;
  static constexpr int kOffset = 0, kMost = 15, kSubs = 1, kMinima = 1;
  static constexpr bool kFloat = false;
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_scales(rows, out);
    interleave_dwords<8>(rows, 16, out + kPacked);
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    for (int e = 0; e < 8; ++e) w[e] = part_nibbles<Part>(block + kPacked + 1024 * half, e);
  }
};

// The fifth bits in 32 bytes before the nibbles; interleaved, those of each half are.
struct Q5_K : SixBits {
  static constexpr int kId = 13, kColumns = 256, kBytes = 176, kSpan = 128;
  static constexpr int kOffset = 0, kMost = 31, kSubs = 1, kMinima = 1;
  static constexpr bool kFloat = false;
  static constexpr int kHalfBytes = 1280;
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_scales(rows, out);
    interleave_bits(rows, 16, out + kPacked, out + kPacked + kHalfBytes);
    interleave_dwords<4>(rows, 48, out + kPacked + 256);
    interleave_dwords<4>(rows, 112, out + kPacked + kHalfBytes + 256);
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    const uint8_t* from = block + kPacked + kHalfBytes * half;
    unpack_bits<Part, 4>(from, w);
    for (int e = 0; e < 8; ++e) w[e] = bit_or(w[e], part_nibbles<Part>(from + 256, e));
  }
};

// In each half of 128 inputs, parts 0 and 1 take the low, 2 and 3 the high nibbles of 64 bytes, and bits 2p, 2p+1 of 32
// bytes; 16 signed scales; d. Interleaved in the order of use, for the processor prefetches only streams that ascend: d,
// scales, then for each half the 32 bytes and the first 32 of the 64, dword about, then the other 32.
struct Q6_K {
  static constexpr int kId = 14, kColumns = 256, kBytes = 210, kSpan = 128;
  static constexpr int kOffset = 32, kMost = 63, kSubs = 2, kMinima = 0;
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
