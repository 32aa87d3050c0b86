// Products with BF16 weights by an instruction for pairs of bfloat16: what the product kernels do otherwise for this type.
// The bits are those of linear<BF16>.
#pragma once

#include "linear_kernels.h"
#include "ports_kernels.h"

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

// Some columns from `column` on, an even one.
template <int kGroups, int kTokens, bool kAhead>
static void accumulate_dots(const Tile& tile, int64_t group, int64_t token, int64_t column, int64_t columns) {
  const uint8_t* pair = tile.weights + group * tile.group_stride + column / 2 * 64;
  const uint8_t* x = tile.x + token * tile.x_stride + column * BF16Dots::kRoundedBytes;
  const auto sums = [&](int i) {
    return tile.sums + (group + i / kTokens) * tile.sum_stride + (token + i % kTokens) * kLanes;
  };
  const int64_t group_stride = tile.group_stride, x_stride = tile.x_stride;
  f32x16 acc[kGroups * kTokens];
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) acc[i] = load(sums(i));
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
    if constexpr (kAhead) {
      FI_UNROLL
      for (int g = 0; g < kGroups; ++g) prefetch_stream(pair + g * group_stride, 64);
    }
    multiply([](const uint8_t* from) { return load64(from); });
  }
  // The column that a last one lacks: −0 times the 0 that follows its activation changes no sum.
  if (columns > 0) multiply([](const uint8_t* from) { return bit_or(load_u16(from), set1_i32(INT32_MIN)); });
  FI_UNROLL
  for (int i = 0; i < kGroups * kTokens; ++i) store(sums(i), acc[i]);
}

template <bool kAhead>
static void add_few_dots(const Tile& t) {
  const auto add = [&]<int kGroups, int kTokens>(int64_t group, int64_t token) {
    accumulate_dots<kGroups, kTokens, kAhead || kTokens >= kPrefetchTokens>(t, group, token, 0, t.blocks);
  };
  if (t.tokens == 1) return in_tiles<kOneTokenGroups, 1>(t, add);
  in_tiles<kFewFloatGroups, kMaxTile>(t, add);
}

template <>
void add_few<BF16Dots, false>(const Tile& t) { add_few_dots<false>(t); }
template <>
void add_few<BF16Dots, true>(const Tile& t) { add_few_dots<true>(t); }

// A piece of some groups' columns stays in the first-level cache for all tokens.
template <>
void add_many<BF16Dots>(const Tile& t, uint8_t*) {
  constexpr int64_t kColumns = 2 * kPieceVectors;
  for (int64_t column = 0; column < t.blocks; column += kColumns)
    in_tiles<kFloatTileGroups, kFloatTileTokens>(t, [&]<int kGroups, int kTokens>(int64_t group, int64_t token) {
      const int64_t columns = t.blocks - column < kColumns ? t.blocks - column : kColumns;
      accumulate_dots<kGroups, kTokens, (kTokens >= kPrefetchTokens)>(t, group, token, column, columns);
    });
}

static uint32_t port_dots(int64_t rounds) {
  return port_steps<2>(rounds, [](f32x16 sum, i32x16 w, i32x16 x) { return dot_bf16(sum, w, x); });
}

}  // namespace flexinfer::FI_NS
