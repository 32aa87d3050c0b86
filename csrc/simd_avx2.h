// The SIMD vocabulary (see simd_scalar.h) in AVX2, FMA and F16C: 16 lanes are two vectors of 8.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define FI_INLINE inline __attribute__((always_inline))
#define FI_UNROLL _Pragma("GCC unroll 16")

namespace flexinfer::FI_NS {

constexpr int kLanes = 16;
constexpr int kMaxTile = 4;
constexpr int kTileGroups = 1, kTileTokens = 4, kFloatTileGroups = 2, kFloatTileTokens = 2, kFewFloatGroups = 1;
constexpr int64_t kManyQuantisedTokens = 8, kManyFloatTokens = 16;
constexpr int kPrefetchTokens = 1;
constexpr int kVectorBlock = 1;  // of attention

struct f32x16 { __m256 lo, hi; };
struct i32x16 { __m256i lo, hi; };
struct mask16 { __m256i lo, hi; };  // all bits of a lane, or none

// --- float32 ---
static FI_INLINE mask16 first(int n) {
  const __m256i count = _mm256_set1_epi32(n), lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm256_cmpgt_epi32(count, lane), _mm256_cmpgt_epi32(count, _mm256_add_epi32(lane, _mm256_set1_epi32(8)))};
}
static FI_INLINE f32x16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static FI_INLINE f32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static FI_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}
static FI_INLINE f32x16 load_part(const float* p, int n) {
  const mask16 m = first(n);
  return {_mm256_maskload_ps(p, m.lo), _mm256_maskload_ps(p + 8, m.hi)};
}
static FI_INLINE void store_part(float* p, f32x16 a, int n) {
  const mask16 m = first(n);
  _mm256_maskstore_ps(p, m.lo, a.lo);
  _mm256_maskstore_ps(p + 8, m.hi, a.hi);
}
static FI_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
static FI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)}; }
static FI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
static FI_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)}; }
static FI_INLINE f32x16 sqrt(f32x16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
static FI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static FI_INLINE f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
}
static FI_INLINE f32x16 neg(f32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_xor_ps(a.lo, sign), _mm256_xor_ps(a.hi, sign)};
}
static FI_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)}; }
static FI_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)}; }
static FI_INLINE mask16 less(f32x16 a, f32x16 b) {
  return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
          _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
}
static FI_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_castsi256_ps(m.lo)),
          _mm256_blendv_ps(no.hi, yes.hi, _mm256_castsi256_ps(m.hi))};
}
static FI_INLINE float reduce_add(f32x16 a) {
  const __m256 by8 = _mm256_add_ps(a.lo, a.hi);
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
static FI_INLINE float reduce_max(f32x16 a) {
  const __m256 by8 = _mm256_max_ps(a.lo, a.hi);
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

// --- int32 and bits ---
static FI_INLINE i32x16 set1_i32(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static FI_INLINE i32x16 load64(const void* p) {
  const __m256i_u* from = static_cast<const __m256i_u*>(p);
  return {from[0], from[1]};
}
// In no particular order: prefetch_stream() goes ahead of them, and the compiler needs the freedom to spare registers.
static FI_INLINE i32x16 load64_in_order(const void* p) { return load64(p); }
static FI_INLINE i32x16 in_register(i32x16 a) {
  asm("" : "+x"(a.lo), "+x"(a.hi));
  return a;
}
static FI_INLINE void store64(void* p, i32x16 a) {
  __m256i_u* to = static_cast<__m256i_u*>(p);
  to[0] = a.lo;
  to[1] = a.hi;
}
static FI_INLINE i32x16 broadcast32(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return set1_i32(x);
}
static FI_INLINE i32x16 add(i32x16 a, i32x16 b) { return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)}; }
static FI_INLINE i32x16 sub(i32x16 a, i32x16 b) { return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)}; }
static FI_INLINE i32x16 mul(i32x16 a, i32x16 b) {
  return {_mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi)};
}
static FI_INLINE i32x16 max(i32x16 a, i32x16 b) { return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)}; }
static FI_INLINE i32x16 bit_and(i32x16 a, i32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
static FI_INLINE i32x16 bit_or(i32x16 a, i32x16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
static FI_INLINE i32x16 bit_xor(i32x16 a, i32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
template <int N> static FI_INLINE i32x16 shl(i32x16 a) {
  return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
}
template <int N> static FI_INLINE i32x16 shr(i32x16 a) {
  return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
}
template <int N> static FI_INLINE i32x16 sar(i32x16 a) {
  return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
}
static FI_INLINE int32_t reduce_add(i32x16 a) {
  const __m256i by8 = _mm256_add_epi32(a.lo, a.hi);
  const __m128i by4 = _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  const __m128i by2 = _mm_add_epi32(by4, _mm_unpackhi_epi64(by4, by4));
  return _mm_cvtsi128_si32(by2) + _mm_extract_epi32(by2, 1);
}
static FI_INLINE void reduce_fours(i32x16 a, int32_t sums[4]) {
  const __m256i by8 = _mm256_add_epi32(a.lo, a.hi);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                   _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1)));
}
static FI_INLINE int32_t reduce_max(i32x16 a) {
  const __m256i by8 = _mm256_max_epi32(a.lo, a.hi);
  const __m128i by4 = _mm_max_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1));
  const __m128i by2 = _mm_max_epi32(by4, _mm_unpackhi_epi64(by4, by4));
  const int32_t a0 = _mm_cvtsi128_si32(by2), a1 = _mm_extract_epi32(by2, 1);
  return a0 > a1 ? a0 : a1;
}
static FI_INLINE i32x16 madd16(i32x16 a, i32x16 b) {
  return {_mm256_madd_epi16(a.lo, b.lo), _mm256_madd_epi16(a.hi, b.hi)};
}
static FI_INLINE i32x16 twice16(i32x16 a) { return bit_or(bit_and(a, set1_i32(0xffff)), shl<16>(a)); }
static FI_INLINE i32x16 as_factor(i32x16 a) { return twice16(a); }
// Weights offset by 128: made signed, their sign given to the activations. A sum of two products fills 16 bits.
template <int N, int kGroups, int kTokens>
static FI_INLINE void signed_dots(const i32x16* const* w, const int8_t* const* q, const i32x16* factors, i32x16* sums) {
  const __m256i top = _mm256_set1_epi8(-128);
  const i32x16 ones = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
  FI_UNROLL
  for (int e = 0; e < N; ++e) {
    __m256i x[kTokens];
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) x[t] = broadcast32(q[t] + 4 * e).lo;
    FI_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const i32x16 s = {_mm256_xor_si256(w[g][e].lo, top), _mm256_xor_si256(w[g][e].hi, top)};
      const i32x16 size = {_mm256_abs_epi8(s.lo), _mm256_abs_epi8(s.hi)};
      FI_UNROLL
      for (int t = 0; t < kTokens; ++t) {
        const i32x16 pairs = {_mm256_maddubs_epi16(size.lo, _mm256_sign_epi8(x[t], s.lo)),
                              _mm256_maddubs_epi16(size.hi, _mm256_sign_epi8(x[t], s.hi))};
        i32x16& sum = sums[g * kTokens + t];
        sum = in_register(add(sum, madd16(pairs, factors ? factors[g] : ones)));
      }
    }
  }
}
// Sums of two products are added up in 16 bits as long as they must fit there, the offset's share among them. Where that
// share makes them fit, passing the limit on the way does not matter. in_register() keeps the compiler from making a tree
// of a chain of sums, whose leaves would not fit the registers.
template <int N, int kOffset, int kMost, int kGroups, int kTokens>
static FI_INLINE void dots(const i32x16* const* w, const int8_t* const* q, const int16_t* const* minus_sum,
                           const i32x16* factors, i32x16* sums) {
  if constexpr (kOffset == 128) {
    signed_dots<N, kGroups, kTokens>(w, q, factors, sums);
  } else {
    constexpr int kLargest = kMost - kOffset > kOffset ? kMost - kOffset : kOffset;
    constexpr int kFit = 32767 / (2 * 127 * kLargest), kRun = N < kFit ? N : kFit;
    static_assert(2 * 127 * kMost <= 32767 && kRun >= 1 && (kOffset == 0 || kRun == N));
    const i32x16 ones = {_mm256_set1_epi16(1), _mm256_set1_epi16(1)};
    i32x16 pairs[kGroups * kTokens];
    if constexpr (kOffset != 0) {
      FI_UNROLL
      for (int i = 0; i < kGroups * kTokens; ++i) {
        const __m256i minus = broadcast32(minus_sum[i % kTokens]).lo;
        const __m256i offset = _mm256_mullo_epi16(minus, _mm256_set1_epi16(kOffset));
        pairs[i] = {offset, offset};
      }
    }
    FI_UNROLL
    for (int e = 0; e < N; ++e) {
      __m256i x[kTokens];
      FI_UNROLL
      for (int t = 0; t < kTokens; ++t) x[t] = broadcast32(q[t] + 4 * e).lo;
      FI_UNROLL
      for (int i = 0; i < kGroups * kTokens; ++i) {
        const int g = i / kTokens, t = i % kTokens;
        const i32x16 two = {_mm256_maddubs_epi16(w[g][e].lo, x[t]), _mm256_maddubs_epi16(w[g][e].hi, x[t])};
        const bool first = e % kRun == 0 && kOffset == 0;
        pairs[i].lo = first ? two.lo : _mm256_add_epi16(pairs[i].lo, two.lo);
        pairs[i].hi = first ? two.hi : _mm256_add_epi16(pairs[i].hi, two.hi);
        pairs[i] = in_register(pairs[i]);
        if ((e + 1) % kRun == 0 || e + 1 == N) sums[i] = add(sums[i], madd16(pairs[i], factors ? factors[g] : ones));
      }
    }
  }
}
static FI_INLINE i32x16 repeat16(const uint8_t* p) {
  const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {table, table};
}
static FI_INLINE i32x16 look_up(i32x16 table, i32x16 indices) {
  return {_mm256_shuffle_epi8(table.lo, indices.lo), _mm256_shuffle_epi8(table.hi, indices.hi)};
}

// --- conversions (MXCSR's default rounding, to nearest even) ---
static FI_INLINE f32x16 to_f32(i32x16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
static FI_INLINE i32x16 to_i32(f32x16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static FI_INLINE f32x16 as_f32(i32x16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
static FI_INLINE i32x16 as_i32(f32x16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
static FI_INLINE void store_i8(int8_t* p, i32x16 a) {
  const i32x16 low = bit_and(a, set1_i32(0xff));
  const __m256i words = _mm256_packus_epi32(low.lo, low.hi);  // lanes 0-3, 8-11 | 4-7, 12-15
  const __m256i bytes = _mm256_packus_epi16(words, words);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_unpacklo_epi32(_mm256_castsi256_si128(bytes), _mm256_extracti128_si256(bytes, 1)));
}
static FI_INLINE i32x16 load_i8(const int8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8))};
}
static FI_INLINE void store_u16(void* p, i32x16 a) {
  const i32x16 low = bit_and(a, set1_i32(0xffff));
  const __m256i halves = _mm256_packus_epi32(low.lo, low.hi);  // lanes 0-3, 8-11 | 4-7, 12-15
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(halves, 0b11011000));
}
static FI_INLINE i32x16 load_u16(const void* p) {
  const __m128i_u* from = static_cast<const __m128i_u*>(p);
  return {_mm256_cvtepu16_epi32(from[0]), _mm256_cvtepu16_epi32(from[1])};
}
static FI_INLINE f32x16 load_f16(const void* p) {
  const __m128i_u* from = static_cast<const __m128i_u*>(p);
  return {_mm256_cvtph_ps(from[0]), _mm256_cvtph_ps(from[1])};
}
static FI_INLINE void store_f16(void* p, f32x16 a) {
  __m128i_u* to = static_cast<__m128i_u*>(p);
  to[0] = _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  to[1] = _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static FI_INLINE f32x16 load_f16_part(const void* p, int n) {
  uint16_t halves[kLanes] = {};
  std::memcpy(halves, p, 2 * static_cast<size_t>(n));
  return load_f16(halves);
}
static FI_INLINE void store_f16_part(void* p, f32x16 a, int n) {
  uint16_t halves[kLanes];
  store_f16(halves, a);
  std::memcpy(p, halves, 2 * static_cast<size_t>(n));
}

// --- rows side by side ---
// Vector i of a half gets its rows i and 4 + i; a 4×4 transpose within the 16 bytes then puts the rows in order.
static FI_INLINE void transpose_half(const uint8_t* const* rows, size_t offset, __m256i out[4]) {
  const auto at = [=](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset)); };
  const auto both = [=](int i) { return _mm256_inserti128_si256(_mm256_castsi128_si256(at(i)), at(4 + i), 1); };
  const __m256i a = both(0), b = both(1), c = both(2), d = both(3);
  const __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
  const __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
  out[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
  out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
  out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
  out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}
static FI_INLINE void transpose_dwords(const uint8_t* const* rows, size_t offset, i32x16 out[4]) {
  __m256i lo[4], hi[4];
  transpose_half(rows, offset, lo);
  transpose_half(rows + 8, offset, hi);
  for (int e = 0; e < 4; ++e) out[e] = {lo[e], hi[e]};
}
static FI_INLINE void prefetch_stream(const uint8_t* p, int bytes) {  // Zen 3 gains a fifth from memory
  constexpr int kAhead = 1024;
  FI_UNROLL
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead + i, _MM_HINT_T0);
}
static FI_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace flexinfer::FI_NS
