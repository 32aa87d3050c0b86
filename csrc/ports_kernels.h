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

// As many independent sums as hide the latency of one.
static uint32_t port_float32(int64_t rounds) {
  constexpr int kSums = 4, kSteps = kPortOperations / (2 * kLanes * kSums);
  alignas(64) float values[kSums] = {1.0f, 0.5f, 0.25f, 0.125f};
  const f32x16 w = set1(1e-9f);
  f32x16 sums[kSums] = {w, w, w, w};
  for (int64_t round = 0; round < rounds; ++round)
    for (int step = 0; step < kSteps; ++step) {
      asm volatile("" : : "r"(values) : "memory");
      FI_UNROLL
      for (int i = 0; i < kSums; ++i) sums[i] = fma(w, set1(values[i]), sums[i]);
    }
  return static_cast<uint32_t>(reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3]))));
}

static constexpr PortKernels kPortKernels{port_int8, port_float32};

}  // namespace flexinfer::FI_NS
