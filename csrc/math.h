// Elementary functions over the SIMD vocabulary: our own, so that every instruction set gives the same bits.
#pragma once

namespace flexinfer::FI_NS {

// e^x to 2 ulp: x = n·ln 2 + r, Taylor to r^7 (next term below 2^-27), then 2^n in two steps so that subnormal results
// round once and large ones overflow to infinity. exp(0) = 1, exp(-inf) = 0, NaN stays NaN.
static FI_INLINE f32x16 exp_ps(f32x16 x) {
  x = max(set1(-104.0f), min(set1(89.0f), x));
  const i32x16 n = to_i32(mul(x, set1(0x1.715476p+0f)));
  const f32x16 whole = to_f32(n);
  f32x16 r = fnma(whole, set1(0x1.62e43p-1f), x);
  r = fnma(whole, set1(-0x1.05c610p-29f), r);
  f32x16 p = set1(1.0f / 5040);
  p = fma(p, r, set1(1.0f / 720));
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  const i32x16 half = sar<1>(n);
  const i32x16 bias = set1_i32(127);
  p = mul(p, as_f32(shl<23>(add(half, bias))));
  return mul(p, as_f32(shl<23>(add(sub(n, half), bias))));
}

static FI_INLINE f32x16 silu_ps(f32x16 x) { return div(x, add(set1(1.0f), exp_ps(neg(x)))); }

// The tanh form, 0.5·x·(1 + tanh u) with u = √(2/π)·(x + 0.044715·x³), which is x / (1 + e^(−2u)).
static FI_INLINE f32x16 gelu_ps(f32x16 x) {
  const f32x16 inner = fma(mul(mul(x, x), x), set1(0.044715f), x);
  return div(x, add(set1(1.0f), exp_ps(mul(inner, set1(-1.5957691216057308f)))));
}

// tanh by an odd polynomial (Cephes' tanhf) below 0.625, else by (1 - e^(-2|x|)) / (1 + e^(-2|x|)).
static FI_INLINE f32x16 tanh_ps(f32x16 x) {
  const f32x16 size = max(x, neg(x));
  const f32x16 e = exp_ps(mul(size, set1(-2.0f)));
  const f32x16 large = div(sub(set1(1.0f), e), add(set1(1.0f), e));
  const f32x16 square = mul(x, x);
  f32x16 p = set1(-5.70498872745e-3f);
  p = fma(p, square, set1(2.06390887954e-2f));
  p = fma(p, square, set1(-5.37397155531e-2f));
  p = fma(p, square, set1(1.33314422036e-1f));
  p = fma(p, square, set1(-3.33332819422e-1f));
  const f32x16 small = fma(mul(p, square), x, x);
  return select(less(size, set1(0.625f)), small, select(less(x, set1(0.0f)), neg(large), large));
}

}  // namespace flexinfer::FI_NS
