// Activations to int8, 32 values at a time.
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
    if (!finite) out->scale = __builtin_nanf("");
    return;
  }
  const f32x16 inverse = set1(127.0f / most);
  const i32x16 qa = to_i32(mul(a, inverse)), qb = to_i32(mul(b, inverse));
  store_i8(out->q, qa);
  store_i8(out->q + 16, qb);
  out->scale = most / 127.0f;
  out->minus_sum[0] = -reduce_add(qa);
  out->minus_sum[1] = -reduce_add(qb);
  out->minus_total = out->minus_sum[0] + out->minus_sum[1];
}

static void quantize(const float* x, int64_t columns, ActivationBlock* out) {
  for (int64_t i = 0; i < columns; i += kActivationValues) quantize_block(x + i, out++);
}

}  // namespace flexinfer::FI_NS
