// Block types whose nibbles stand for the values of a table of 16, in the common form of blocks.h.
#pragma once

#include "blocks.h"

namespace flexinfer::FI_NS {

// −127, −104, −83, −65, −49, −35, −22, −10, 1, 13, 25, 38, 53, 69, 89, 113, and 128.
alignas(16) static const uint8_t kIQ4[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
// Twice 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives, and 12.
alignas(16) static const uint8_t kE2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

// Nibbles as in unpack_nibbles().
static FI_INLINE void unpack_table(const uint8_t* values, const uint8_t* dwords, i32x16 w[8]) {
  const i32x16 table = repeat16(values);
  unpack_nibbles(dwords, w);
  for (int e = 0; e < 8; ++e) w[e] = look_up(table, w[e]);
}

struct IQ4_NL {
  static constexpr int kId = 20, kColumns = 32, kBytes = 18, kSpan = 32;
  static constexpr int kOffset = 128, kMost = 241, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_dwords<1>(rows, 2, out + 32);
  }
  static FI_INLINE Header header(const uint8_t* block, int) { return {load_f16(block)}; }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    unpack_table(kIQ4, block + 32, w);
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

// d; eight 6-bit scales, offset by 32: the high two bits in 2 bytes, the low four in 4 bytes, lowest first; nibbles.
struct IQ4_XS {
  static constexpr int kId = 23, kColumns = 256, kBytes = 136, kSpan = 128;
  static constexpr int kOffset = 128, kMost = 241, kSubs = 1, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header {
    f32x16 d;
    i32x16 low, high;  // from bit 0, 4 and 2 bits per part
  };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    interleave_half(rows, 0, out);
    interleave_half(rows, 2, out + 32);
    interleave_dword(rows, 4, out + 64);
    interleave_dwords<8>(rows, 8, out + 128);
  }
  static FI_INLINE Header header(const uint8_t* block, int half) {
    const i32x16 high = load_u16(block + 32), low = load64_in_order(block + 64);
    return {load_f16(block), half ? shr<16>(low) : low, half ? shr<8>(high) : high};
  }
  template <int Part> static FI_INLINE void unpack(const uint8_t* block, int half, i32x16 w[8]) {
    unpack_table(kIQ4, block + 128 + 1024 * half + 256 * Part, w);
  }
  template <int Part> static FI_INLINE void scales(const Header& h, Scales& s) {
    const i32x16 low = bit_and(shr<4 * Part>(h.low), set1_i32(15)), high = bit_and(shr<2 * Part>(h.high), set1_i32(3));
    s.d = h.d;
    s.s[0] = sub(bit_or(low, shl<4>(high)), set1_i32(32));
  }
};

// An exponent e without sign or fraction, of 2^(e − 127), and nibbles.
struct MXFP4 {
  static constexpr int kId = 39, kColumns = 32, kBytes = 17, kSpan = 32;
  static constexpr int kOffset = 12, kMost = 24, kSubs = 0, kMinima = 0;
  static constexpr bool kFloat = false;
  struct Header { f32x16 d; };
  static FI_INLINE void interleave(Rows16 rows, uint8_t* out) {
    for (int row = 0; row < kLanes; ++row) out[row] = rows[row][0];
    interleave_dwords<1>(rows, 1, out + 16);
  }
  // 2^(e − 128), for the table is doubled; 0 and 1 are subnormal.
  static FI_INLINE Header header(const uint8_t* block, int) {
    const i32x16 e = bit_and(load_i8(reinterpret_cast<const int8_t*>(block)), set1_i32(0xff));
    const i32x16 normal = shl<23>(max(sub(e, set1_i32(1)), set1_i32(0)));
    const i32x16 below = max(sub(set1_i32(2), e), set1_i32(0));  // 2, 1, then 0
    return {as_f32(bit_or(normal, bit_or(shl<22>(bit_and(below, set1_i32(1))), shl<20>(bit_and(below, set1_i32(2))))))};
  }
  template <int> static FI_INLINE void unpack(const uint8_t* block, int, i32x16 w[8]) {
    unpack_table(kE2M1, block + 16, w);
  }
  template <int> static FI_INLINE void scales(const Header& h, Scales& s) { s.d = h.d; }
};

}  // namespace flexinfer::FI_NS
