// The SIMD vocabulary (see simd_scalar.h) in AVX-512 F, BW, VL, DQ and VNNI.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#define FI_INLINE inline __attribute__((always_inline))
#define FI_UNROLL _Pragma("GCC unroll 16")

namespace flexinfer::FI_NS {

constexpr int kLanes = 16;
constexpr int kMaxTile = 8;
constexpr int kTileGroups = 2, kTileTokens = 4, kFloatTileGroups = 2, kFloatTileTokens = 8, kFewFloatGroups = 2;
constexpr int64_t kManyQuantisedTokens = 32, kManyFloatTokens = 32;
constexpr int kPrefetchTokens = 3;  // one and two at a time were slowed by it
constexpr int kVectorBlock = 4;  // of attention

struct f32x16 { __m512 v; };
struct i32x16 { __m512i v; };
struct mask16 { __mmask16 v; };

// --- float32 ---
static FI_INLINE mask16 first(int n) { return {static_cast<__mmask16>((1u << n) - 1)}; }
static FI_INLINE f32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
static FI_INLINE f32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
static FI_INLINE void store(float* p, f32x16 a) { _mm512_storeu_ps(p, a.v); }
static FI_INLINE f32x16 load_part(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n).v, p)}; }
static FI_INLINE void store_part(float* p, f32x16 a, int n) { _mm512_mask_storeu_ps(p, first(n).v, a.v); }
static FI_INLINE f32x16 add(f32x16 a, f32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static FI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static FI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static FI_INLINE f32x16 div(f32x16 a, f32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static FI_INLINE f32x16 sqrt(f32x16 a) { return {_mm512_sqrt_ps(a.v)}; }
static FI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static FI_INLINE f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
static FI_INLINE f32x16 neg(f32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
static FI_INLINE f32x16 max(f32x16 a, f32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static FI_INLINE f32x16 min(f32x16 a, f32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static FI_INLINE mask16 less(f32x16 a, f32x16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static FI_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) { return {_mm512_mask_blend_ps(m.v, no.v, yes.v)}; }
static FI_INLINE float reduce_add(f32x16 a) {
  const __m256 by8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 by4 = _mm_add_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_add_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_add_ss(by2, _mm_movehdup_ps(by2)));
}
static FI_INLINE float reduce_max(f32x16 a) {
  const __m256 by8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 by4 = _mm_max_ps(_mm256_castps256_ps128(by8), _mm256_extractf128_ps(by8, 1));
  const __m128 by2 = _mm_max_ps(by4, _mm_movehl_ps(by4, by4));
  return _mm_cvtss_f32(_mm_max_ss(by2, _mm_movehdup_ps(by2)));
}

// --- int32 and bits ---
static FI_INLINE i32x16 set1_i32(int32_t x) { return {_mm512_set1_epi32(x)}; }
static FI_INLINE i32x16 load64(const void* p) { return {_mm512_loadu_si512(p)}; }
// Volatile, so that the compiler keeps the order of such loads.
static FI_INLINE i32x16 load64_in_order(const void* p) { return {*static_cast<const volatile __m512i_u*>(p)}; }
static FI_INLINE i32x16 in_register(i32x16 a) { return a; }
static FI_INLINE void store64(void* p, i32x16 a) { _mm512_storeu_si512(p, a.v); }
static FI_INLINE i32x16 broadcast32(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return {_mm512_set1_epi32(x)};
}
static FI_INLINE i32x16 add(i32x16 a, i32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static FI_INLINE i32x16 sub(i32x16 a, i32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static FI_INLINE i32x16 mul(i32x16 a, i32x16 b) { return {_mm512_mullo_epi32(a.v, b.v)}; }
static FI_INLINE i32x16 max(i32x16 a, i32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
static FI_INLINE i32x16 bit_and(i32x16 a, i32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
static FI_INLINE i32x16 bit_or(i32x16 a, i32x16 b) { return {_mm512_or_si512(a.v, b.v)}; }
static FI_INLINE i32x16 bit_xor(i32x16 a, i32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int N> static FI_INLINE i32x16 shl(i32x16 a) { return {_mm512_slli_epi32(a.v, N)}; }
template <int N> static FI_INLINE i32x16 shr(i32x16 a) { return {_mm512_srli_epi32(a.v, N)}; }
template <int N> static FI_INLINE i32x16 sar(i32x16 a) { return {_mm512_srai_epi32(a.v, N)}; }
static FI_INLINE int32_t reduce_add(i32x16 a) { return _mm512_reduce_add_epi32(a.v); }
static FI_INLINE void reduce_fours(i32x16 a, int32_t sums[4]) {
  const __m256i by8 = _mm256_add_epi32(_mm512_castsi512_si256(a.v), _mm512_extracti64x4_epi64(a.v, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(sums),
                   _mm_add_epi32(_mm256_castsi256_si128(by8), _mm256_extracti128_si256(by8, 1)));
}
static FI_INLINE int32_t reduce_max(i32x16 a) { return _mm512_reduce_max_epi32(a.v); }
static FI_INLINE i32x16 madd16(i32x16 a, i32x16 b) { return {_mm512_madd_epi16(a.v, b.v)}; }
static FI_INLINE i32x16 twice16(i32x16 a) { return bit_or(bit_and(a, set1_i32(0xffff)), shl<16>(a)); }
static FI_INLINE i32x16 as_factor(i32x16 a) { return a; }
template <int N, int kOffset, int kMost, int kGroups, int kTokens>
static FI_INLINE void dots(const i32x16* const* w, const int8_t* const* q, const int16_t* const* minus_sum,
                           const i32x16* factors, i32x16* sums) {
  i32x16 products[kGroups * kTokens];
  FI_UNROLL
  for (int t = 0; t < kTokens; ++t) {
    const i32x16 start = kOffset ? madd16(broadcast32(minus_sum[t]), {_mm512_set1_epi16(kOffset)}) : set1_i32(0);
    FI_UNROLL
    for (int g = 0; g < kGroups; ++g) products[g * kTokens + t] = start;
  }
  // Loads are what limits many products: each broadcast serves all groups.
  FI_UNROLL
  for (int e = 0; e < N; ++e) {
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const __m512i x = broadcast32(q[t] + 4 * e).v;
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) {
        i32x16& product = products[g * kTokens + t];
        product.v = _mm512_dpbusd_epi32(product.v, w[g][e].v, x);
      }
    }
  }
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i)
    sums[i] = add(sums[i], factors ? mul(factors[i / kTokens], products[i]) : products[i]);
}
static FI_INLINE i32x16 repeat16(const uint8_t* p) {
  return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static FI_INLINE i32x16 look_up(i32x16 table, i32x16 indices) { return {_mm512_shuffle_epi8(table.v, indices.v)}; }

// --- conversions (MXCSR's default rounding, to nearest even) ---
static FI_INLINE f32x16 to_f32(i32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
static FI_INLINE i32x16 to_i32(f32x16 a) { return {_mm512_cvtps_epi32(a.v)}; }
static FI_INLINE f32x16 as_f32(i32x16 a) { return {_mm512_castsi512_ps(a.v)}; }
static FI_INLINE i32x16 as_i32(f32x16 a) { return {_mm512_castps_si512(a.v)}; }
static FI_INLINE void store_i8(int8_t* p, i32x16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
static FI_INLINE i32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
static FI_INLINE void store_u16(void* p, i32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
static FI_INLINE i32x16 load_u16(const void* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
static FI_INLINE f32x16 load_f16(const void* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
static FI_INLINE void store_f16(void* p, f32x16 a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static FI_INLINE f32x16 load_f16_part(const void* p, int n) {
  return {_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n).v, p))};
}
static FI_INLINE void store_f16_part(void* p, f32x16 a, int n) {
  _mm256_mask_storeu_epi16(p, first(n).v, _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

// --- rows side by side ---
// Lane group L of vector i gets row 4L + i; a 4×4 transpose within the lane groups then puts the rows in order.
static FI_INLINE __m512i load_every_fourth(const uint8_t* const* rows, size_t offset) {
  const auto at = [=](int row) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[row] + offset)); };
  __m512i r = _mm512_castsi128_si512(at(0));
  r = _mm512_inserti32x4(r, at(4), 1);
  r = _mm512_inserti32x4(r, at(8), 2);
  return _mm512_inserti32x4(r, at(12), 3);
}
static FI_INLINE void transpose_dwords(const uint8_t* const* rows, size_t offset, i32x16 out[4]) {
  const __m512i a = load_every_fourth(rows, offset), b = load_every_fourth(rows + 1, offset);
  const __m512i c = load_every_fourth(rows + 2, offset), d = load_every_fourth(rows + 3, offset);
  const __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
  const __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
  out[0].v = _mm512_unpacklo_epi64(ab_low, cd_low);
  out[1].v = _mm512_unpackhi_epi64(ab_low, cd_low);
  out[2].v = _mm512_unpacklo_epi64(ab_high, cd_high);
  out[3].v = _mm512_unpackhi_epi64(ab_high, cd_high);
}
static FI_INLINE void prefetch_stream(const uint8_t* p, int bytes) {
  constexpr int kAhead = 4096;
  FI_UNROLL
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(p) + kAhead + i, _MM_HINT_T0);
}
static FI_INLINE void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1); }

}  // namespace flexinfer::FI_NS
