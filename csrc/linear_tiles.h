// The innermost products: blocks of one or two groups with the activations of a few tokens, sums in registers.
//
// Of a block of 256 with sub-scales, whose d and dmin are common, the eight parts are added up first, without them; each is
// then multiplied in once.
#pragma once

#include "blocks.h"
#include "linear.h"

namespace flexinfer::FI_NS {

template <class Type>
constexpr int kBlockParts = Type::kColumns / kActivationValues;

// Scales as the products take them.
template <class Type>
static FI_INLINE void prepare(Scales& scales) {
  for (int sub = 0; sub < Type::kSubs; ++sub) {
    scales.s[sub] = as_factor(scales.s[sub]);
    if constexpr (Type::kMinima) scales.m[sub] = Type::kSubs == 2 ? twice16(scales.m[sub]) : as_i32(to_f32(scales.m[sub]));
  }
}

// One part (32 inputs) of a block of each group, for tokens whose activations are x_stride apart.
template <class Type, int kGroups, int kTokens>
static FI_INLINE void accumulate_part(const i32x16* const* w, const Scales* scales, const uint8_t* x, int64_t x_stride,
                                      f32x16* acc) {
  const ActivationBlock* at[kTokens];
  FI_UNROLL
  for (int t = 0; t < kTokens; ++t) at[t] = reinterpret_cast<const ActivationBlock*>(x + t * x_stride);
  i32x16 sums[kGroups * kTokens];
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) sums[i] = set1_i32(0);
  const auto add_dots = [&]<int N>(int first, int which, const i32x16* factors) {
    const i32x16* from[kGroups];
    const int8_t* q[kTokens];
    const int16_t* minus_sum[kTokens];
    FI_UNROLL
    for (int g = 0; g < kGroups; ++g) from[g] = w[g] + first;
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      q[t] = at[t]->q + 4 * first;
      minus_sum[t] = at[t]->minus_sum[which];
    }
    dots<N, Type::kOffset, Type::kMost, kGroups, kTokens>(from, q, minus_sum, factors, sums);
  };
  i32x16 factors[2][kGroups];
  FI_UNROLL
  for (int i = 0; i < Type::kSubs * kGroups; ++i) factors[i / kGroups][i % kGroups] = scales[i % kGroups].s[i / kGroups];
  if constexpr (Type::kSubs == 2) {
    add_dots.template operator()<4>(0, 0, factors[0]);
    add_dots.template operator()<4>(4, 1, factors[1]);
  } else {
    add_dots.template operator()<8>(0, 2, Type::kSubs ? factors[0] : nullptr);
  }
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) {
    const ActivationBlock* const token = at[i % kTokens];
    const Scales& group = scales[i / kTokens];
    const f32x16 scale = set1(token->scale);
    acc[i] = fma(to_f32(sums[i]), Type::kSubs ? scale : mul(group.d, scale), acc[i]);
    if constexpr (Type::kMinima && !Type::kSubs) acc[i] = fma(group.dmin, set1(token->minus_scaled_sum), acc[i]);
  }
}

// The minima of one part, where it has some of its own.
template <class Type, int kGroups, int kTokens>
static FI_INLINE void accumulate_minima(const Scales* scales, const uint8_t* x, int64_t x_stride, f32x16* acc) {
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) {
    const auto* const token = reinterpret_cast<const ActivationBlock*>(x + i % kTokens * x_stride);
    const Scales& group = scales[i / kTokens];
    if constexpr (Type::kSubs == 1) {
      acc[i] = fma(as_f32(group.m[0]), set1(token->minus_scaled_sum), acc[i]);
    } else {
      const i32x16 all =
          add(madd16(group.m[0], broadcast32(token->minus_sum[0])), madd16(group.m[1], broadcast32(token->minus_sum[1])));
      acc[i] = fma(to_f32(all), set1(token->scale), acc[i]);
    }
  }
}

// A part's share of a block's bytes: so much is fetched ahead while it is computed, for bursts would hold up the loads.
template <class Type, int Part>
static FI_INLINE void prefetch_part(const uint8_t* block, int span) {
  constexpr int kBytes = kGroupRows * Type::kBytes * kActivationValues / Type::kColumns;
  prefetch_stream(block + (span * Type::kSpan / kActivationValues + Part) * kBytes, kBytes);
}

// The parts of one span of a block.
template <class Type, int kTokens, bool kAhead, int Part = 0>
static FI_INLINE void accumulate_span(const uint8_t* block, int span, const typename Type::Header& header,
                                      const uint8_t* x, int64_t x_stride, f32x16 acc[kTokens]) {
  i32x16 w[8];
  const i32x16* const from = w;
  Scales scales;
  if constexpr (kAhead) prefetch_part<Type, Part>(block, span);
  Type::template unpack<Part>(block, span, w);
  Type::template scales<Part>(header, scales);
  prepare<Type>(scales);
  accumulate_part<Type, 1, kTokens>(&from, &scales, x + Part * sizeof(ActivationBlock), x_stride, acc);
  if constexpr ((Part + 1) * kActivationValues < Type::kSpan)
    accumulate_span<Type, kTokens, kAhead, Part + 1>(block, span, header, x, x_stride, acc);
}

template <class Type, int kTokens, int Part = 0>
static FI_INLINE void accumulate_span_minima(const typename Type::Header& header, const uint8_t* x, int64_t x_stride,
                                             f32x16 acc[kTokens]) {
  Scales scales;
  Type::template scales<Part>(header, scales);
  prepare<Type>(scales);
  accumulate_minima<Type, 1, kTokens>(&scales, x + Part * sizeof(ActivationBlock), x_stride, acc);
  if constexpr ((Part + 1) * kActivationValues < Type::kSpan)
    accumulate_span_minima<Type, kTokens, Part + 1>(header, x, x_stride, acc);
}

// Calls f(acc), which adds a block's parts to zeros, and adds factor times what comes of it to sums.
template <int kTokens, class F>
static FI_INLINE void add_block(f32x16 factor, float* sums, const F& f) {
  f32x16 acc[kTokens];
  FI_UNROLL
  for (int t = 0; t < kTokens; ++t) acc[t] = set1(0.0f);
  f(acc);
  FI_UNROLL
  for (int t = 0; t < kTokens; ++t) store(sums + kLanes * t, fma(acc[t], factor, load(sums + kLanes * t)));
}

// Adds `blocks` interleaved blocks of one group to sums[token][16]; what follows them is fetched, if kAhead.
template <class Type, int kTokens, bool kAhead>
static void accumulate_blocks(const uint8_t* block, int64_t blocks, const uint8_t* x, int64_t x_stride, float* sums) {
  constexpr int kSpans = Type::kColumns / Type::kSpan;
  constexpr size_t kSpanBytes = Type::kSpan / kActivationValues * sizeof(ActivationBlock);
  if constexpr (Type::kSubs) {
    for (; blocks > 0; --blocks, block += kGroupRows * Type::kBytes, x += kSpans * kSpanBytes) {
      const typename Type::Header both = Type::header(block, 0);
      add_block<kTokens>(both.d, sums, [&](f32x16* acc) {
        for (int span = 0; span < kSpans; ++span)
          accumulate_span<Type, kTokens, kAhead>(block, span, Type::header(block, span), x + span * kSpanBytes, x_stride, acc);
      });
      if constexpr (Type::kMinima)
        add_block<kTokens>(both.dmin, sums, [&](f32x16* acc) {
          for (int span = 0; span < kSpans; ++span)
            accumulate_span_minima<Type, kTokens>(Type::header(block, span), x + span * kSpanBytes, x_stride, acc);
        });
    }
  } else {
    f32x16 acc[kTokens];
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) acc[t] = load(sums + kLanes * t);
    for (; blocks > 0; --blocks, block += kGroupRows * Type::kBytes, x += kSpanBytes)
      accumulate_span<Type, kTokens, kAhead>(block, 0, Type::header(block, 0), x, x_stride, acc);
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) store(sums + kLanes * t, acc[t]);
  }
}

// Columns of floats, one fma each; in pairs the second column first, as processors' bfloat16 products have it. Sums are
// sums[group · sum_stride + token · 16].
template <class Type, int kGroups, int kTokens, bool kAhead>
static void accumulate_floats(const uint8_t* column, int64_t group_stride, int64_t columns, const uint8_t* x,
                              int64_t x_stride, float* sums, int64_t sum_stride) {
  constexpr int kColumnBytes = kGroupRows * Type::kBytes;
  f32x16 acc[kGroups * kTokens];
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) acc[i] = load(sums + i / kTokens * sum_stride + i % kTokens * kLanes);
  const auto multiply = [&](int i, const auto& weights) {
    f32x16 w[kGroups];
    FI_UNROLL
    for (int g = 0; g < kGroups; ++g) w[g] = weights(column + g * group_stride);
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const f32x16 value = set1(reinterpret_cast<const float*>(x + t * x_stride)[i]);
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) acc[g * kTokens + t] = fma(w[g], value, acc[g * kTokens + t]);
    }
  };
  constexpr int kFirst = Type::kRounds, kSecond = 1 - kFirst;
  for (; columns >= 2; columns -= 2, column += 2 * kColumnBytes, x += 2 * sizeof(float)) {
    if constexpr (kAhead) {
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) prefetch_stream(column + g * group_stride, 2 * kColumnBytes);
    }
    multiply(kFirst, [](const uint8_t* pair) { return Type::template column<kFirst>(pair); });
    multiply(kSecond, [](const uint8_t* pair) { return Type::template column<kSecond>(pair); });
  }
  if (columns > 0) multiply(0, [](const uint8_t* last) { return Type::values(last); });
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) store(sums + i / kTokens * sum_stride + i % kTokens * kLanes, acc[i]);
}

// The unpacked form, for many tokens: of each part its eight vectors of weights and its scales; of floats, float32.
template <class Type>
constexpr int64_t kPartBytes = 64 * (9 + Type::kMinima + Type::kSubs * (1 + Type::kMinima));

template <class Type, int Part = 0>
static FI_INLINE uint8_t* unpack_span(const uint8_t* block, int span, const typename Type::Header& header, uint8_t* out) {
  i32x16 w[8];
  Scales scales;
  Type::template unpack<Part>(block, span, w);
  Type::template scales<Part>(header, scales);
  prepare<Type>(scales);
  const auto put = [&out](i32x16 vector, bool stores = true) {
    if (stores) store64(out, vector);
    out += 64;
  };
  FI_UNROLL
  for (int e = 0; e < 8; ++e) put(w[e]);
  const bool first = Type::kSubs == 0 || (Part == 0 && span == 0);  // else the block's first part has them
  put(as_i32(scales.d), first);
  if constexpr (Type::kMinima) put(as_i32(scales.dmin), first);
  for (int sub = 0; sub < Type::kSubs; ++sub) {
    put(scales.s[sub]);
    if constexpr (Type::kMinima) put(scales.m[sub]);
  }
  if constexpr ((Part + 1) * kActivationValues < Type::kSpan) return unpack_span<Type, Part + 1>(block, span, header, out);
  return out;
}

template <class Type>
static void unpack_blocks(const uint8_t* block, int64_t blocks, uint8_t* out) {
  constexpr int kBlockBytes = kGroupRows * Type::kBytes;
  if constexpr (Type::kFloat) {
    float* to = reinterpret_cast<float*>(out);
    for (; blocks >= 2; blocks -= 2, block += 2 * kBlockBytes, to += 2 * kLanes) {
      store(to, Type::template column<0>(block));
      store(to + kLanes, Type::template column<1>(block));
    }
    if (blocks > 0) store(to, Type::values(block));
  } else {
    for (; blocks > 0; --blocks, block += kBlockBytes)
      for (int span = 0; span < Type::kColumns / Type::kSpan; ++span)
        out = unpack_span<Type>(block, span, Type::header(block, span), out);
  }
}

// Of one unpacked part, as unpack_span() puts them.
template <class Type>
static FI_INLINE Scales unpacked_scales(const uint8_t* part) {
  Scales scales;
  part += 8 * 64;
  const auto take = [&part] {
    part += 64;
    return load64(part - 64);
  };
  scales.d = as_f32(take());
  if constexpr (Type::kMinima) scales.dmin = as_f32(take());
  for (int sub = 0; sub < Type::kSubs; ++sub) {
    scales.s[sub] = take();
    if constexpr (Type::kMinima) scales.m[sub] = take();
  }
  return scales;
}

template <class Type>
struct Unpacked {
  static constexpr int kBytes = sizeof(float);
  static constexpr bool kRounds = Type::kRounds;
  // As an operand of each product it would be loaded once per token.
  static FI_INLINE f32x16 values(const uint8_t* from) { return as_f32(in_register(load64(from))); }
  template <int Which> static FI_INLINE f32x16 column(const uint8_t* pair) { return values(pair + 64 * Which); }
};

// Adds unpacked parts (columns, of floats) of groups that are group_stride apart.
template <class Type, int kGroups, int kTokens>
static void accumulate_unpacked(const uint8_t* tile, int64_t group_stride, int64_t parts, const uint8_t* x,
                                int64_t x_stride, float* sums, int64_t sum_stride) {
  if constexpr (Type::kFloat) {
    accumulate_floats<Unpacked<Type>, kGroups, kTokens, false>(tile, group_stride, parts, x, x_stride, sums, sum_stride);
  } else {
    f32x16 acc[kGroups * kTokens];
    Scales scales[kGroups];
    const auto at = [&](int i) { return sums + i / kTokens * sum_stride + i % kTokens * kLanes; };
    const auto clear = [&] {
      FI_UNROLL
      for (int i = 0; i < kGroups * kTokens; ++i) acc[i] = set1(0.0f);
    };
    const auto take = [&](int64_t part) {
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) scales[g] = unpacked_scales<Type>(tile + g * group_stride + part * kPartBytes<Type>);
    };
    const auto accumulate = [&](int64_t part) {
      const i32x16* w[kGroups];
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g)
        w[g] = reinterpret_cast<const i32x16*>(tile + g * group_stride + part * kPartBytes<Type>);
      take(part);
      accumulate_part<Type, kGroups, kTokens>(w, scales, x + part * sizeof(ActivationBlock), x_stride, acc);
    };
    if constexpr (Type::kSubs) {
      for (int64_t block = 0; block < parts; block += kBlockParts<Type>) {
        clear();
        for (int64_t part = block; part < block + kBlockParts<Type>; ++part) accumulate(part);
        take(block);
        FI_UNROLL
        for (int i = 0; i < kGroups * kTokens; ++i) store(at(i), fma(acc[i], scales[i / kTokens].d, load(at(i))));
        if constexpr (Type::kMinima) {
          clear();
          for (int64_t part = block; part < block + kBlockParts<Type>; ++part) {
            take(part);
            accumulate_minima<Type, kGroups, kTokens>(scales, x + part * sizeof(ActivationBlock), x_stride, acc);
          }
          take(block);
          FI_UNROLL
          for (int i = 0; i < kGroups * kTokens; ++i) store(at(i), fma(acc[i], scales[i / kTokens].dmin, load(at(i))));
        }
      }
    } else {
      FI_UNROLL
      for (int i = 0; i < kGroups * kTokens; ++i) acc[i] = load(at(i));
      for (int64_t part = 0; part < parts; ++part) accumulate(part);
      FI_UNROLL
      for (int i = 0; i < kGroups * kTokens; ++i) store(at(i), acc[i]);
    }
  }
}

}  // namespace flexinfer::FI_NS
