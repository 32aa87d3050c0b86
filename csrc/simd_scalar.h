// The SIMD vocabulary in plain C++: 16 lanes as an array. Every other header of this kind gives the same names and,
// operation for operation, the same bits; kernels are written once over it, inside the namespace FI_NS.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

// Not forced: 16 lanes of plain code for every operation would unroll into functions no compiler can finish.
#define FI_INLINE inline
#define FI_UNROLL

namespace flexinfer::FI_NS {

constexpr int kLanes = 16;
constexpr int kMaxTile = 2;  // tokens whose accumulators stay in registers; here, that compile in little time
// The same where weights are unpacked into cache first, and from how many tokens on they are.
constexpr int kTileGroups = 1, kTileTokens = 2, kFloatTileGroups = 1, kFloatTileTokens = 2, kFewFloatGroups = 1;
constexpr int64_t kManyQuantisedTokens = 4, kManyFloatTokens = 4;
constexpr int kPrefetchTokens = 1;
constexpr int kVectorBlock = 4;  // of attention

struct f32x16 { float v[kLanes]; };
// 16 dwords; little-endian bytes of them where a function says so.
struct i32x16 { uint32_t v[kLanes]; };
struct mask16 { bool v[kLanes]; };

template <class Vector, class Lane>
static FI_INLINE Vector each(Lane lane) {
  Vector result;
  for (int i = 0; i < kLanes; ++i) result.v[i] = lane(i);
  return result;
}

// --- float32 ---
static FI_INLINE f32x16 set1(float x) { return each<f32x16>([=](int) { return x; }); }
static FI_INLINE f32x16 load(const float* p) { f32x16 r; std::memcpy(r.v, p, sizeof r.v); return r; }
static FI_INLINE void store(float* p, f32x16 a) { std::memcpy(p, a.v, sizeof a.v); }
// The first n (0..16) lanes; the rest are zero and not touched in memory.
static FI_INLINE f32x16 load_part(const float* p, int n) {
  return each<f32x16>([=](int i) { return i < n ? p[i] : 0.0f; });
}
static FI_INLINE void store_part(float* p, f32x16 a, int n) { std::memcpy(p, a.v, sizeof(float) * static_cast<size_t>(n)); }
static FI_INLINE f32x16 add(f32x16 a, f32x16 b) { return each<f32x16>([&](int i) { return a.v[i] + b.v[i]; }); }
static FI_INLINE f32x16 sub(f32x16 a, f32x16 b) { return each<f32x16>([&](int i) { return a.v[i] - b.v[i]; }); }
static FI_INLINE f32x16 mul(f32x16 a, f32x16 b) { return each<f32x16>([&](int i) { return a.v[i] * b.v[i]; }); }
static FI_INLINE f32x16 div(f32x16 a, f32x16 b) { return each<f32x16>([&](int i) { return a.v[i] / b.v[i]; }); }
static FI_INLINE f32x16 sqrt(f32x16 a) { return each<f32x16>([&](int i) { return __builtin_sqrtf(a.v[i]); }); }
// a·b + c and c − a·b, rounded once.
static FI_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return each<f32x16>([&](int i) { return __builtin_fmaf(a.v[i], b.v[i], c.v[i]); });
}
static FI_INLINE f32x16 fnma(f32x16 a, f32x16 b, f32x16 c) {
  return each<f32x16>([&](int i) { return __builtin_fmaf(-a.v[i], b.v[i], c.v[i]); });
}
static FI_INLINE f32x16 neg(f32x16 a) { return each<f32x16>([&](int i) { return -a.v[i]; }); }
// b where either is NaN or both are zero, as x86 does.
static FI_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return each<f32x16>([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static FI_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return each<f32x16>([&](int i) { return a.v[i] < b.v[i] ? a.v[i] : b.v[i]; });
}
static FI_INLINE mask16 less(f32x16 a, f32x16 b) { return each<mask16>([&](int i) { return a.v[i] < b.v[i]; }); }
static FI_INLINE mask16 first(int n) { return each<mask16>([=](int i) { return i < n; }); }
static FI_INLINE f32x16 select(mask16 m, f32x16 yes, f32x16 no) {
  return each<f32x16>([&](int i) { return m.v[i] ? yes.v[i] : no.v[i]; });
}
// Sums and maxima in a fixed tree: lanes 8, then 4, 2, 1 apart.
static FI_INLINE float reduce_add(f32x16 a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] + a.v[i + step];
  return a.v[0];
}
static FI_INLINE float reduce_max(f32x16 a) {
  for (int step = 8; step; step /= 2)
    for (int i = 0; i < step; ++i) a.v[i] = a.v[i] > a.v[i + step] ? a.v[i] : a.v[i + step];
  return a.v[0];
}

// --- int32 (wrapping) and bits ---
static FI_INLINE i32x16 set1_i32(int32_t x) { return each<i32x16>([=](int) { return static_cast<uint32_t>(x); }); }
static FI_INLINE i32x16 load64(const void* p) { i32x16 r; std::memcpy(r.v, p, 64); return r; }
// For memory that is read once: where loads ascend, the processor fetches ahead, and the compiler must not shuffle them.
static FI_INLINE i32x16 load64_in_order(const void* p) { return load64(p); }
static FI_INLINE void store64(void* p, i32x16 a) { std::memcpy(p, a.v, 64); }
// The same value, which the compiler must have in a register here.
static FI_INLINE i32x16 in_register(i32x16 a) { return a; }
// The four bytes (or one dword) at p in every lane.
static FI_INLINE i32x16 broadcast32(const void* p) { int32_t x; std::memcpy(&x, p, 4); return set1_i32(x); }
static FI_INLINE i32x16 add(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] + b.v[i]; }); }
static FI_INLINE i32x16 sub(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] - b.v[i]; }); }
static FI_INLINE i32x16 mul(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] * b.v[i]; }); }
static FI_INLINE i32x16 max(i32x16 a, i32x16 b) {
  return each<i32x16>([&](int i) { return static_cast<int32_t>(a.v[i]) > static_cast<int32_t>(b.v[i]) ? a.v[i] : b.v[i]; });
}
static FI_INLINE i32x16 bit_and(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] & b.v[i]; }); }
static FI_INLINE i32x16 bit_or(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] | b.v[i]; }); }
static FI_INLINE i32x16 bit_xor(i32x16 a, i32x16 b) { return each<i32x16>([&](int i) { return a.v[i] ^ b.v[i]; }); }
template <int N> static FI_INLINE i32x16 shl(i32x16 a) { return each<i32x16>([&](int i) { return a.v[i] << N; }); }
template <int N> static FI_INLINE i32x16 shr(i32x16 a) { return each<i32x16>([&](int i) { return a.v[i] >> N; }); }
template <int N> static FI_INLINE i32x16 sar(i32x16 a) {
  return each<i32x16>([&](int i) { return static_cast<uint32_t>(static_cast<int32_t>(a.v[i]) >> N); });
}
static FI_INLINE int32_t reduce_add(i32x16 a) {
  uint32_t sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += a.v[i];
  return static_cast<int32_t>(sum);
}
// The sums of lanes 0, 4, 8, 12, of 1, 5, 9, 13, ...
static FI_INLINE void reduce_fours(i32x16 a, int32_t sums[4]) {
  for (int i = 0; i < 4; ++i) sums[i] = static_cast<int32_t>(a.v[i] + a.v[i + 4] + a.v[i + 8] + a.v[i + 12]);
}
static FI_INLINE int32_t reduce_max(i32x16 a) {
  int32_t most = static_cast<int32_t>(a.v[0]);
  for (int i = 1; i < kLanes; ++i)
    if (static_cast<int32_t>(a.v[i]) > most) most = static_cast<int32_t>(a.v[i]);
  return most;
}
// Each dword as two signed halves: their products, added.
static FI_INLINE i32x16 madd16(i32x16 a, i32x16 b) {
  return each<i32x16>([&](int i) {
    const auto half = [i](i32x16 x, int shift) { return int32_t{static_cast<int16_t>(x.v[i] >> shift & 0xffff)}; };
    return static_cast<uint32_t>(half(a, 0) * half(b, 0) + half(a, 16) * half(b, 16));
  });
}
// A small integer in both halves, for madd16().
static FI_INLINE i32x16 twice16(i32x16 a) {
  return each<i32x16>([&](int i) { return (a.v[i] & 0xffff) | a.v[i] << 16; });
}
// A factor, of 16 bits with its sign, as dots() takes it.
static FI_INLINE i32x16 as_factor(i32x16 a) { return a; }
// sums[group][token] += factor[group] · Σ (w − kOffset)·q over 4·N inputs, exact; without factors they are 1. Weights are
// unsigned bytes of at most kMost, four inputs to a dword; every lane has the same q, of −127..127, and minus_sum[token]
// is −Σ q in two parts: of the first two and of the last two of every four.
template <int N, int kOffset, int kMost, int kGroups, int kTokens>
static FI_INLINE void dots(const i32x16* const* w, const int8_t* const* q, const int16_t* const* minus_sum,
                           const i32x16* factors, i32x16* sums) {
  for (int g = 0; g < kGroups; ++g)
    for (int t = 0; t < kTokens; ++t)
      for (int i = 0; i < kLanes; ++i) {
        int32_t sum = kOffset * (minus_sum[t][0] + minus_sum[t][1]);
        for (int e = 0; e < N; ++e)
          for (int k = 0; k < 4; ++k) sum += static_cast<int32_t>(w[g][e].v[i] >> 8 * k & 0xff) * q[t][4 * e + k];
        sums[g * kTokens + t].v[i] += static_cast<uint32_t>(factors ? static_cast<int32_t>(factors[g].v[i]) * sum : sum);
      }
}

// The 16 bytes at p, in every four lanes, and what they hold at the index (0..15) in each byte.
static FI_INLINE i32x16 repeat16(const uint8_t* p) {
  i32x16 r;
  for (int i = 0; i < kLanes; i += 4) std::memcpy(&r.v[i], p, 16);
  return r;
}
static FI_INLINE i32x16 look_up(i32x16 table, i32x16 indices) {
  uint8_t bytes[64], from[64];
  std::memcpy(from, table.v, 64);
  std::memcpy(bytes, indices.v, 64);
  for (int i = 0; i < 64; ++i) bytes[i] = from[bytes[i]];
  return load64(bytes);
}

// --- conversions ---
static FI_INLINE f32x16 to_f32(i32x16 a) {
  return each<f32x16>([&](int i) { return static_cast<float>(static_cast<int32_t>(a.v[i])); });
}
// To nearest, ties to even; NaN and what does not fit become INT32_MIN.
static FI_INLINE i32x16 to_i32(f32x16 a) {
  return each<i32x16>([&](int i) {
    const float x = __builtin_nearbyintf(a.v[i]);
    return x >= -2147483648.0f && x < 2147483648.0f ? static_cast<uint32_t>(static_cast<int32_t>(x)) : 0x80000000u;
  });
}
static FI_INLINE f32x16 as_f32(i32x16 a) { f32x16 r; std::memcpy(r.v, a.v, 64); return r; }
static FI_INLINE i32x16 as_i32(f32x16 a) { i32x16 r; std::memcpy(r.v, a.v, 64); return r; }
static FI_INLINE void store_i8(int8_t* p, i32x16 a) {  // the low byte of each lane
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(a.v[i]);
}
static FI_INLINE i32x16 load_i8(const int8_t* p) {
  return each<i32x16>([=](int i) { return static_cast<uint32_t>(static_cast<int32_t>(p[i])); });
}
static FI_INLINE void store_u16(void* p, i32x16 a) {  // the low half of each lane
  uint16_t halves[kLanes];
  for (int i = 0; i < kLanes; ++i) halves[i] = static_cast<uint16_t>(a.v[i]);
  std::memcpy(p, halves, sizeof halves);
}
static FI_INLINE i32x16 load_u16(const void* p) {
  uint16_t halves[kLanes];
  std::memcpy(halves, p, sizeof halves);
  return each<i32x16>([&](int i) { return uint32_t{halves[i]}; });
}

static FI_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7fff;
  uint32_t bits;
  if (rest >= 0x7c00) {
    bits = 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x00400000 : 0);
  } else if (rest >= 0x0400) {
    bits = (rest << 13) + (112u << 23);
  } else {  // zero or subnormal: rest · 2^-24, exact
    const float value = static_cast<float>(rest) * 0x1p-24f;
    std::memcpy(&bits, &value, 4);
  }
  bits |= sign;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}
static FI_INLINE uint16_t float_to_half(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  bits &= 0x7fffffff;
  uint32_t half;
  if (bits > 0x7f800000) {
    half = 0x7e00 | (bits >> 13 & 0x3ff);
  } else if (bits >= 0x477ff000) {  // 65520 and more round to infinity
    half = 0x7c00;
  } else if (bits >= 0x38800000) {  // normal: round the low 13 bits to even
    half = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
  } else {  // subnormal: adding 0.5 leaves round(value · 2^24) in the low bits
    float magnitude;
    std::memcpy(&magnitude, &bits, 4);
    const float shifted = magnitude + 0.5f;
    std::memcpy(&half, &shifted, 4);
    half -= 0x3f000000;
  }
  return static_cast<uint16_t>(sign | half);
}
static FI_INLINE f32x16 load_f16(const void* p) {
  uint16_t halves[kLanes];
  std::memcpy(halves, p, sizeof halves);
  return each<f32x16>([&](int i) { return half_to_float(halves[i]); });
}
static FI_INLINE void store_f16(void* p, f32x16 a) {  // to nearest even
  uint16_t halves[kLanes];
  for (int i = 0; i < kLanes; ++i) halves[i] = float_to_half(a.v[i]);
  std::memcpy(p, halves, sizeof halves);
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
// 16 bytes of each of 16 rows in; out[e] holds dword e of rows 0..15.
static FI_INLINE void transpose_dwords(const uint8_t* const* rows, size_t offset, i32x16 out[4]) {
  for (int row = 0; row < kLanes; ++row)
    for (int e = 0; e < 4; ++e) std::memcpy(&out[e].v[row], rows[row] + offset + 4 * e, 4);
}
// A stream of weights some way ahead of p, where that helps.
static FI_INLINE void prefetch_stream(const uint8_t*, int) {}
// Into the second-level cache; any address will do.
static FI_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

}  // namespace flexinfer::FI_NS
