// Activations to int8, 32 values at a time, or to bfloat16.
#pragma once

#include "linear.h"

namespace flexinfer::FI_NS {

// scale = absmax / 127, q = x · (127 / absmax) rounded half to even, all in float32. Blocks whose absmax is below
// 2^-100 become zero (127 / absmax could overflow); a block with an infinity or NaN gets scale NaN and q = 0, so every
// output that it reaches is NaN.
static FI_INLINE void quantize_block(const float* x, ActivationBlock* out) {
  const f32x16 a = load(x), b = load(x + 16);
  // As integers, magnitudes of floats are ordered, infinity and NaN last.
  const i32x16 magnitude = set1_i32(0x7fffffff);
  const int32_t most_bits = reduce_max(max(bit_and(as_i32(a), magnitude), bit_and(as_i32(b), magnitude)));
  float most;
  std::memcpy(&most, &most_bits, 4);
  const bool finite = most_bits < 0x7f800000;
  if (!finite || most < 0x1p-100f) {
    std::memset(out, 0, sizeof *out);
    if (!finite) out->scale = out->minus_scaled_sum = __builtin_nanf("");
    return;
  }
  const f32x16 inverse = set1(127.0f / most);
  const i32x16 qa = to_i32(mul(a, inverse)), qb = to_i32(mul(b, inverse));
  store_i8(out->q, qa);
  store_i8(out->q + 16, qb);
  out->scale = most / 127.0f;
  int32_t first[4], second[4];
  reduce_fours(qa, first);
  reduce_fours(qb, second);
  for (int i = 0; i < 2; ++i) {
    out->minus_sum[0][i] = static_cast<int16_t>(-first[2 * i] - first[2 * i + 1]);
    out->minus_sum[1][i] = static_cast<int16_t>(-second[2 * i] - second[2 * i + 1]);
    out->minus_sum[2][i] = static_cast<int16_t>(out->minus_sum[0][i] + out->minus_sum[1][i]);
  }
  out->minus_scaled_sum = out->scale * static_cast<float>(out->minus_sum[2][0] + out->minus_sum[2][1]);
}

static inline void quantize(const float* x, int64_t columns, ActivationBlock* out) {
  for (int64_t i = 0; i < columns; i += kActivationValues) quantize_block(x + i, out++);
}

// To nearest even, as float32; subnormals become zeros of their sign, what is not finite stays.
static FI_INLINE f32x16 to_bf16(f32x16 x) {
  const i32x16 bits = as_i32(x), odd = bit_and(shr<16>(bits), set1_i32(1));
  const i32x16 rounded = bit_and(add(bits, add(odd, set1_i32(0x7fff))), set1_i32(-0x10000));
  const f32x16 size = as_f32(bit_and(bits, set1_i32(0x7fffffff)));
  const f32x16 zero = as_f32(bit_and(bits, set1_i32(INT32_MIN)));
  const f32x16 finite = select(less(size, set1(0x1p-126f)), zero, as_f32(rounded));
  return select(less(size, set1(__builtin_inff())), finite, x);
}

static FI_INLINE void round_to_bf16(const float* x, int64_t columns, float* out) {
  int64_t i = 0;
  for (; i + kLanes <= columns; i += kLanes) store(out + i, to_bf16(load(x + i)));
  const int rest = static_cast<int>(columns - i);
  store_part(out + i, to_bf16(load_part(x + i, rest)), rest);
}

}  // namespace flexinfer::FI_NS
