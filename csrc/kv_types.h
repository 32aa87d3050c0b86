// The types of the KV cache, once per instruction set: rounding what is appended, widening what is read.
#pragma once

#include <cstring>

#include "attention.h"

namespace flexinfer::FI_NS {

static inline f32x16 load_values(const float* values) { return load(values); }
static inline f32x16 load_values(const uint16_t* values) { return load_f16(values); }
static inline void store_values(float* values, f32x16 x) { store(values, x); }
static inline void store_values(uint16_t* values, f32x16 x) { store_f16(values, x); }

// --- a tile of one kv head: 64 positions, read as it is ---

template <class V>
struct Floats {
  using Value = V;
  const Value* first;
  int64_t stride;

  FI_INLINE f32x16 vector(int64_t row, int v) const { return load_values(first + row * stride + v * kLanes); }
  FI_INLINE Floats from(int64_t row, int64_t column) const { return {first + row * stride + column, stride}; }
};
template <class Value>
static inline Floats<Value> keys_of(const Value* tile, int64_t, float*) { return {tile, kPageTokens}; }
template <class Value>
static inline Floats<Value> values_of(const Value* tile, int64_t dim, float*) { return {tile, dim}; }

// Q8_0's products of value and scale are exact, 8 bits by 11: it does not matter where they are made. The scales of both
// are [head_dim / 32][64], already float32.
struct BlockKeys {
  using Value = int8_t;
  const Value* first;  // [head_dim][64]
  const float* scales;

  FI_INLINE f32x16 vector(int64_t row, int v) const {
    const f32x16 scale = load(scales + row / kKvBlock * kPageTokens + v * kLanes);
    return mul(to_f32(load_i8(first + row * kPageTokens + v * kLanes)), scale);
  }
  FI_INLINE BlockKeys from(int64_t, int64_t column) const { return {first + column, scales + column}; }
};
struct BlockValues {
  using Value = int8_t;
  const Value* first;  // [64][stride], stride = head_dim
  int64_t stride;
  const float* scales;

  FI_INLINE f32x16 vector(int64_t row, int v) const {
    const f32x16 scale = set1(scales[v * kLanes / kKvBlock * kPageTokens + row]);
    return mul(to_f32(load_i8(first + row * stride + v * kLanes)), scale);
  }
  FI_INLINE BlockValues from(int64_t row, int64_t column) const {
    return {first + row * stride + column, stride, scales + column / kKvBlock * kPageTokens + row};
  }
};

template <class Value>
static inline void widen(const Value* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, load_values(from + i));
}
// `scales` has room for those of the tile.
static inline const float* widen_scales(const int8_t* tile, int64_t dim, float* scales) {
  widen(reinterpret_cast<const uint16_t*>(tile + kPageTokens * dim), dim / kKvBlock * kPageTokens, scales);
  return scales;
}
static inline BlockKeys keys_of(const int8_t* tile, int64_t dim, float* scales) {
  return {tile, widen_scales(tile, dim, scales)};
}
static inline BlockValues values_of(const int8_t* tile, int64_t dim, float* scales) {
  return {tile, dim, widen_scales(tile, dim, scales)};
}

// --- the same, made float32 first ---

template <class Value>
static inline void widen_keys(const Value* tile, int64_t dim, float* to) {
  widen(tile, kPageTokens * dim, to);
}
template <class Value>
static inline void widen_values(const Value* tile, int64_t dim, float* to) {
  widen(tile, kPageTokens * dim, to);
}
static inline void widen_keys(const int8_t* tile, int64_t dim, float* to) {
  float scales[kMaxHeadDim / kKvBlock * kPageTokens];
  const BlockKeys keys = keys_of(tile, dim, scales);
  for (int64_t d = 0; d < dim; ++d)
    for (int v = 0; v < kPageTokens / kLanes; ++v, to += kLanes) store(to, keys.vector(d, v));
}
static inline void widen_values(const int8_t* tile, int64_t dim, float* to) {
  float scales[kMaxHeadDim / kKvBlock * kPageTokens];
  const BlockValues values = values_of(tile, dim, scales);
  for (int64_t lane = 0; lane < kPageTokens; ++lane)
    for (int v = 0; v < dim / kLanes; ++v, to += kLanes) store(to, values.vector(lane, v));
}

// --- appending ---

template <class Value>
static inline void append_as(const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                             int64_t tokens, int64_t start, int64_t kv_head) {
  alignas(64) float wide[kMaxHeadDim] = {};
  alignas(64) Value rounded[kMaxHeadDim];
  const auto round = [&](const float* row) {
    std::memcpy(wide, row + kv_head * kv.head_dim, kv.head_dim * sizeof(float));
    for (int64_t d = 0; d < kv.head_dim; d += kLanes) store_values(rounded + d, load(wide + d));
  };
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t page = (start + token) / kPageTokens;
    const int64_t lane = (start + token) % kPageTokens;
    Value* const keys = reinterpret_cast<Value*>(kv.keys(page, kv_head));
    Value* const values = reinterpret_cast<Value*>(kv.values(page, kv_head));
    round(k + token * k_stride);
    for (int64_t d = 0; d < kv.head_dim; ++d) keys[d * kPageTokens + lane] = rounded[d];
    round(v + token * v_stride);
    std::memcpy(values + lane * kv.head_dim, rounded, kv.head_dim * sizeof(Value));
  }
}

// scale = float16(absmax / 127), q = x / scale rounded half to even, at most 127 (the scale may have been rounded down).
// The scale that is stored is the one divided by, so that no value errs by more than half of it. Below 2^-25 it is 0 and
// so are the values; where it overflows, or x has an infinity or NaN, it is not finite, and what it reaches is NaN.
static inline uint16_t round_block(const float* x, int8_t* q) {
  const f32x16 a = load(x), b = load(x + kLanes);
  // As integers, magnitudes of floats are ordered, infinity and NaN last.
  const i32x16 magnitude = set1_i32(0x7fffffff);
  const int32_t most_bits = reduce_max(max(bit_and(as_i32(a), magnitude), bit_and(as_i32(b), magnitude)));
  float most;
  std::memcpy(&most, &most_bits, sizeof most);
  uint16_t stored[kLanes];
  store_f16(stored, set1(most / 127.0f));
  float scale[kLanes];
  store(scale, load_f16(stored));
  if (scale[0] > 0.0f && scale[0] < __builtin_inff()) {
    const f32x16 divisor = set1(scale[0]), limit = set1(127.0f);
    const auto rounded = [=](f32x16 v) { return to_i32(max(min(div(v, divisor), limit), neg(limit))); };
    store_i8(q, rounded(a));
    store_i8(q + kLanes, rounded(b));
  } else {
    std::memset(q, 0, kKvBlock);
  }
  return stored[0];
}

template <>
inline void append_as<int8_t>(const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                              int64_t tokens, int64_t start, int64_t kv_head) {
  const int64_t dim = kv.head_dim;
  for (int64_t token = 0; token < tokens; ++token) {
    const int64_t page = (start + token) / kPageTokens;
    const int64_t lane = (start + token) % kPageTokens;
    int8_t* const keys = reinterpret_cast<int8_t*>(kv.keys(page, kv_head));
    int8_t* const values = reinterpret_cast<int8_t*>(kv.values(page, kv_head));
    uint16_t* key_scales = reinterpret_cast<uint16_t*>(keys + kPageTokens * dim) + lane;
    uint16_t* value_scales = reinterpret_cast<uint16_t*>(values + kPageTokens * dim) + lane;
    for (int64_t d = 0; d < dim; d += kKvBlock, key_scales += kPageTokens, value_scales += kPageTokens) {
      int8_t q[kKvBlock];
      *key_scales = round_block(k + token * k_stride + kv_head * dim + d, q);
      for (int64_t i = 0; i < kKvBlock; ++i) keys[(d + i) * kPageTokens + lane] = q[i];
      *value_scales = round_block(v + token * v_stride + kv_head * dim + d, values + lane * dim + d);
    }
  }
}

static inline void append(const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
                          int64_t tokens, int64_t start, int64_t kv_head) {
  switch (kv.type) {
    case KvType::kF32: return append_as<float>(kv, k, k_stride, v, v_stride, tokens, start, kv_head);
    case KvType::kF16: return append_as<uint16_t>(kv, k, k_stride, v, v_stride, tokens, start, kv_head);
    case KvType::kQ8_0: return append_as<int8_t>(kv, k, k_stride, v, v_stride, tokens, start, kv_head);
  }
}

}  // namespace flexinfer::FI_NS
