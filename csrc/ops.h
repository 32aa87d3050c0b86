// The small operations between the matrix products: what an instruction set provides (see ops_kernels.h) and how a
// Context runs it. Every result depends on its own row only: not on the batch, the threads or the instruction set.
#pragma once

#include <cstdint>

namespace flexinfer {

// Rows of float32, `stride` elements apart, each contiguous.
struct Rows {
  float* data;
  int64_t rows;
  int64_t width;
  int64_t stride;

  float* row(int64_t i) const { return data + i * stride; }
};

struct OpsKernels {
  // out = x / sqrt(mean(x^2) + eps) * weight, or added to out where `accumulate`. out may be x.
  void (*rms_norm)(const float* x, const float* weight, int64_t width, float eps, bool accumulate, float* out);
  // Turns the pairs of one head in place by the angles whose cosines, then sines, are given.
  // Pairs are (0, pairs), (1, pairs + 1), ... or, `adjacent`, (0, 1), (2, 3), ...
  void (*rope)(float* head, const float* angles, int64_t pairs, bool adjacent);
  void (*scale)(float* x, int64_t width, float factor);   // x *= factor
  void (*softcap)(float* x, int64_t width, float cap);    // x = cap * tanh(x / cap)
  void (*exp)(float* x, int64_t width);                   // x = exp(x); for tests of the exponential
};

class Context;

void rms_norm(Context& context, const Rows& x, const float* weight, float eps, bool accumulate, const Rows& out);
void rope(Context& context, const Rows& x, int64_t heads, const Rows& angles, bool adjacent);
void scale(Context& context, const Rows& x, float factor);
void softcap(Context& context, const Rows& x, float cap);
void exp_rows(Context& context, const Rows& x);

}  // namespace flexinfer
