// Norms, rotary embedding and elementwise operations on one row, once per instruction set.

#pragma once

#include "math.h"
#include "ops.h"

namespace flexinfer::FI_NS {

// Calls full(i) for every whole vector of `width` elements, and last(i, count) for what is left.
template <class Full, class Last>
static inline void over_vectors(int64_t width, const Full& full, const Last& last) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) full(i);
  if (i < width) last(i, static_cast<int>(width - i));
}

// x = f(x), elementwise.
template <class F>
static inline void map_row(float* x, int64_t width, const F& f) {
  over_vectors(
      width, [&](int64_t i) { store(x + i, f(load(x + i))); },
      [&](int64_t i, int count) { store_part(x + i, f(load_part(x + i, count)), count); });
}

// The sum of squares runs in 16 lanes (element i in lane i mod 16), ascending, then the fixed tree of reduce_add.
static inline void rms_norm(const float* x, const float* weight, int64_t width, float eps, bool accumulate,
                            float* out) {
  f32x16 squares = set1(0.0f);
  const auto square = [&](f32x16 v) { squares = fma(v, v, squares); };
  over_vectors(
      width, [&](int64_t i) { square(load(x + i)); },
      [&](int64_t i, int count) { square(load_part(x + i, count)); });
  const float mean = reduce_add(squares) / static_cast<float>(width);
  const f32x16 scale = set1(1.0f / __builtin_sqrtf(mean + eps));
  const auto normal = [&](f32x16 v, f32x16 w) { return mul(mul(v, scale), w); };
  over_vectors(
      width,
      [&](int64_t i) {
        const f32x16 y = normal(load(x + i), load(weight + i));
        store(out + i, accumulate ? add(load(out + i), y) : y);
      },
      [&](int64_t i, int count) {
        const f32x16 y = normal(load_part(x + i, count), load_part(weight + i, count));
        store_part(out + i, accumulate ? add(load_part(out + i, count), y) : y, count);
      });
}

static inline void rope(float* head, const float* angles, int64_t pairs, bool adjacent) {
  const float* const cosines = angles;
  const float* const sines = angles + pairs;
  if (adjacent) {  // no multiply-add here: plain products round alike whatever the compiler makes of the loop
    for (int64_t i = 0; i < pairs; ++i) {
      const float x = head[2 * i];
      const float y = head[2 * i + 1];
      head[2 * i] = x * cosines[i] - y * sines[i];
      head[2 * i + 1] = y * cosines[i] + x * sines[i];
    }
    return;
  }
  const auto turn = [](f32x16& x, f32x16& y, f32x16 c, f32x16 s) {
    const f32x16 turned = sub(mul(x, c), mul(y, s));
    y = add(mul(y, c), mul(x, s));
    x = turned;
  };
  over_vectors(
      pairs,
      [&](int64_t i) {
        f32x16 x = load(head + i), y = load(head + pairs + i);
        turn(x, y, load(cosines + i), load(sines + i));
        store(head + i, x);
        store(head + pairs + i, y);
      },
      [&](int64_t i, int count) {
        f32x16 x = load_part(head + i, count), y = load_part(head + pairs + i, count);
        turn(x, y, load_part(cosines + i, count), load_part(sines + i, count));
        store_part(head + i, x, count);
        store_part(head + pairs + i, y, count);
      });
}

static inline void scale(float* x, int64_t width, float factor) {
  map_row(x, width, [&](f32x16 v) { return mul(v, set1(factor)); });
}

static inline void softcap(float* x, int64_t width, float cap) {
  map_row(x, width, [&](f32x16 v) { return mul(tanh_ps(div(v, set1(cap))), set1(cap)); });
}

static inline void exp_row(float* x, int64_t width) {
  map_row(x, width, [](f32x16 v) { return exp_ps(v); });
}

static constexpr OpsKernels kOpsKernels{rms_norm, rope, scale, softcap, exp_row};

}  // namespace flexinfer::FI_NS
