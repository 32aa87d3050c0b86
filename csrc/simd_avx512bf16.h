// The SIMD vocabulary in AVX-512, and what its bfloat16 extension adds.
#pragma once

#include "simd_avx512.h"

namespace flexinfer::FI_NS {

// 32 values as bfloat16: to nearest even, subnormals as zeros of their sign.
static FI_INLINE void store_bf16(void* p, f32x16 a, f32x16 b) {
  const __m512bh both = _mm512_cvtne2ps_pbh(b.v, a.v);
  std::memcpy(p, &both, 64);
}
// Lanes are pairs of bfloat16: fma(w0, x0, fma(w1, x1, sum)), subnormals as zeros everywhere, whatever MXCSR says.
static FI_INLINE f32x16 dot_bf16(f32x16 sum, i32x16 w, i32x16 x) {
  return {_mm512_dpbf16_ps(sum.v, (__m512bh)w.v, (__m512bh)x.v)};
}

}  // namespace flexinfer::FI_NS
