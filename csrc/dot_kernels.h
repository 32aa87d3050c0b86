// Products with BF16 weights by an instruction for pairs of bfloat16: what the product kernels do otherwise for this type.
// The bits are those of linear<BF16>.
#pragma once

#include "linear_kernels.h"

namespace flexinfer::FI_NS {

struct BF16Dots : BF16 {
  static constexpr int kRoundedBytes = 2;
};

template <>
void round_activations<BF16Dots>(const float* x, int64_t columns, uint8_t* out) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= columns; i += 2 * kLanes) store_bf16(out + 2 * i, load(x + i), load(x + i + kLanes));
  const int rest = static_cast<int>(columns - i), first = rest < kLanes ? rest : kLanes;
  if (rest > 0) store_bf16(out + 2 * i, load_part(x + i, first), load_part(x + i + first, rest - first));
}

// Interleaved columns of groups that are group_stride apart; x as round_activations() leaves it.
template <int kGroups, int kTokens>
static void accumulate_dots(const uint8_t* pair, int64_t group_stride, int64_t columns, const uint8_t* x,
                            int64_t x_stride, float* sums, int64_t sum_stride) {
  f32x16 acc[kGroups * kTokens];
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) acc[i] = load(sums + i / kTokens * sum_stride + i % kTokens * kLanes);
  const auto multiply = [&](const auto& weights) {
    i32x16 w[kGroups];
    FI_UNROLL
    for (int g = 0; g < kGroups; ++g) w[g] = weights(pair + g * group_stride);
    FI_UNROLL
    for (int t = 0; t < kTokens; ++t) {
      const i32x16 value = broadcast32(x + t * x_stride);
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) acc[g * kTokens + t] = dot_bf16(acc[g * kTokens + t], w[g], value);
    }
  };
  for (; columns >= 2; columns -= 2, pair += 64, x += 4) {
    if constexpr (kTokens >= kPrefetchTokens) {
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) prefetch_stream(pair + g * group_stride, 64);
    }
    multiply([](const uint8_t* from) { return load64(from); });
  }
  // The column that a last one lacks: −0 times the 0 that follows its activation changes no sum.
  if (columns > 0) multiply([](const uint8_t* from) { return bit_or(load_u16(from), set1_i32(INT32_MIN)); });
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) store(sums + i / kTokens * sum_stride + i % kTokens * kLanes, acc[i]);
}

// All columns of one or more groups.
template <>
void add_few<BF16Dots>(const Tile& t) {
  const auto add_groups = [&]<int kGroups, int kMostTokens>(int64_t g) {
    in_steps<kMostTokens>(0, t.tokens, [&]<int kTokens>(int64_t token) {
      accumulate_dots<kGroups, kTokens>(t.weights + g * t.group_stride, t.group_stride, t.blocks,
                                        t.x + token * t.x_stride, t.x_stride,
                                        t.sums + g * t.sum_stride + token * kLanes, t.sum_stride);
    });
  };
  if (t.tokens == 1)
    in_steps<kOneTokenGroups>(0, t.groups, [&]<int kGroups>(int64_t g) { add_groups.template operator()<kGroups, 1>(g); });
  else
    in_steps<kTileGroups>(0, t.groups, [&]<int kGroups>(int64_t g) { add_groups.template operator()<kGroups, kMaxTile>(g); });
}

// A piece of some groups' columns that stays in the first-level cache for all tokens.
template <>
void add_many<BF16Dots>(const Tile& t, uint8_t*) {
  constexpr int64_t kPairs = kPieceVectors;
  for (int64_t column = 0; column < t.blocks; column += 2 * kPairs) {
    Tile piece = t;
    piece.weights += column / 2 * 64;
    piece.x += column * BF16Dots::kRoundedBytes;
    piece.blocks = t.blocks - column < 2 * kPairs ? t.blocks - column : 2 * kPairs;
    add_few<BF16Dots>(piece);
  }
}

}  // namespace flexinfer::FI_NS
