// Multiply instructions on operands in registers and the first-level cache, once per instruction set: no weights are
// unpacked, nothing is scaled. Results are returned so that nothing is left out.
#pragma once

#include "math.h"
#include "ports.h"

namespace flexinfer::FI_NS {

// The lightest dot product of this instruction set: small weights without an offset.
static uint32_t port_int8(int64_t rounds) {
  constexpr int kDots = kPortOperations / (2 * 32 * kLanes);
  alignas(64) uint8_t weights[4 * kLanes] = {1};
  alignas(64) int8_t q[kDots][32] = {{1}, {2}, {3}, {4}};
  asm volatile("" : : "r"(weights), "r"(q) : "memory");  // the compiler is to know nothing of what they hold
  const i32x16 v = load64(weights);
  const i32x16 w[8] = {v, v, v, v, v, v, v, v};  // few registers, so that none goes to memory and back
  const i32x16* const group = w;
  const int16_t* const no_offset = nullptr;
  i32x16 sum = v;
  for (int64_t round = 0; round < rounds; ++round) {
    asm volatile("" : : "r"(q) : "memory");  // nor that they hold the same again
    FI_UNROLL
    for (int i = 0; i < kDots; ++i) {
      const int8_t* const token = q[i];
      dots<8, 0, 15, 1, 1>(&group, &token, &no_offset, nullptr, &sum);
    }
  }
  return static_cast<uint32_t>(reduce_add(sum));
}

// Steps of 2 · kProducts operations a lane, in as many independent sums as products have: they hide the latency of one.
template <int kProducts, class F>
static FI_INLINE uint32_t port_steps(int64_t rounds, const F& step) {
  constexpr int kSums = kFloatTileGroups * kFloatTileTokens;
  constexpr int kSteps = kPortOperations / (2 * kProducts * kLanes * kSums);
  uint32_t bits[2] = {0x30803080, 0x30803080};  // 1e-9, as float32 or as two bfloat16
  asm volatile("" : : "r"(bits) : "memory");
  const i32x16 w = broadcast32(bits), x = broadcast32(bits + 1);
  f32x16 sums[kSums];
  for (f32x16& sum : sums) sum = as_f32(w);
  for (int64_t i = 0; i < rounds * kSteps; ++i) {
    FI_UNROLL
    for (f32x16& sum : sums) sum = step(sum, w, x);
  }
  for (int i = 1; i < kSums; ++i) sums[0] = add(sums[0], sums[i]);
  return static_cast<uint32_t>(reduce_add(sums[0]));
}

static uint32_t port_float32(int64_t rounds) {
  return port_steps<1>(rounds, [](f32x16 sum, i32x16 w, i32x16 x) { return fma(as_f32(w), as_f32(x), sum); });
}

static constexpr PortKernels kPortKernels{port_int8, port_float32, port_float32};

}  // namespace flexinfer::FI_NS
