// Attention over the paged cache, once per instruction set: tiles of 64 keys, a running softmax, a fixed order.
//
// For one query and head: score_j = (fma chain over the head's elements, ascending) * scale; per tile,
// m' = max(m, scores), c = exp(m - m'), p_j = exp(score_j - m'), l = fma(l, c, sum of p), o = o * c, then
// o = fma(p_j, v_j, o), j ascending; at the end o / l. (The online softmax of Milakov and Gimelshein, 2018, with the
// tile as its step.) Queries are taken together only to share loads and conversions of K and V: nothing of one enters
// another's sums.

#pragma once

#include <cmath>
#include <cstring>
#include <type_traits>

#include "attention.h"
#include "kv_types.h"
#include "math.h"

namespace flexinfer::FI_NS {

constexpr int kQueryBlock = 6;  // with the instruction set's kVectorBlock: the accumulators that its registers hold
constexpr int kTileVectors = kPageTokens / kLanes;
static_assert(kPageTokens == kTileVectors * kLanes && kTileVectors % kVectorBlock == 0);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up_lanes(int64_t n) { return (n + kLanes - 1) / kLanes * kLanes; }

// c[i][:] = c[i][:] * factor[i] + sum over k, ascending, of a[i][k] * b[k][:], for kQueries rows of kVectors vectors.
// With factor == nullptr c is only written. Row k of `ahead`, 64 values wide, is prefetched meanwhile, if given
// (to the second level: a tile is too much for the first, which cost a third of the bandwidth).
template <int kQueries, int kVectors, class Tile>
static inline void multiply_block(const float* a, int64_t a_stride, const Tile& b, int64_t depth, const float* factor,
                                  float* c, int64_t c_stride, const typename Tile::Value* ahead) {
  f32x16 sum[kQueries][kVectors];
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v)
      sum[i][v] = factor ? mul(load(c + i * c_stride + v * kLanes), set1(factor[i])) : set1(0.0f);
  const auto step = [&](int64_t k) {
    f32x16 row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = b.vector(k, v);
    for (int i = 0; i < kQueries; ++i) {
      const f32x16 x = set1(a[i * a_stride + k]);
      for (int v = 0; v < kVectors; ++v) sum[i][v] = fma(x, row[v], sum[i][v]);
    }
  };
  if (ahead) {
    constexpr int64_t kLineValues = 64 / sizeof(typename Tile::Value);
    for (int64_t k = 0; k < depth; ++k) {
      for (int64_t i = 0; i < kPageTokens; i += kLineValues) prefetch(ahead + k * kPageTokens + i);
      step(k);
    }
  } else {
    for (int64_t k = 0; k < depth; ++k) step(k);
  }
  for (int i = 0; i < kQueries; ++i)
    for (int v = 0; v < kVectors; ++v) store(c + i * c_stride + v * kLanes, sum[i][v]);
}

// The same for any number of rows, in blocks as even as can be, and `columns` values of b's and c's rows.
template <class Tile>
static inline void multiply(int64_t rows, const float* a, int64_t a_stride, const Tile& b, int64_t depth, int64_t columns,
                            const float* factor, float* c, int64_t c_stride, const typename Tile::Value* ahead) {
  int64_t column = 0;
  const auto in_vectors = [&]<int kVectors>() {
    for (; column + kVectors * kLanes <= columns; column += kVectors * kLanes) {
      const Tile tile = b.from(0, column);
      const auto* next = ahead && column % kPageTokens == 0 ? ahead + column * kPageTokens : nullptr;
      for (int64_t row = 0, blocks = (rows + kQueryBlock - 1) / kQueryBlock; blocks > 0; --blocks) {
        const auto block = [&]<int kQueries>() {
          multiply_block<kQueries, kVectors>(a + row * a_stride, a_stride, tile, depth, factor ? factor + row : nullptr,
                                             c + row * c_stride + column, c_stride, next);
          row += kQueries;
          next = nullptr;
        };
        switch ((rows - row + blocks - 1) / blocks) {
          case 6: block.template operator()<6>(); break;
          case 5: block.template operator()<5>(); break;
          case 4: block.template operator()<4>(); break;
          case 3: block.template operator()<3>(); break;
          case 2: block.template operator()<2>(); break;
          case 1: block.template operator()<1>(); break;
        }
      }
    }
  };
  in_vectors.template operator()<kVectorBlock>();
  in_vectors.template operator()<1>();
}
static_assert(kQueryBlock == 6);

// Whole vectors: up to 15 elements more than `count`, which every part of the scratch has room for.
static inline void fill(float* to, int64_t count, float value) {
  for (int64_t i = 0; i < count; i += kLanes) store(to + i, set1(value));
}

// Where a task's state lies in its scratch; every part is a multiple of a vector long.
struct AttentionScratch {
  float* q;           // [queries][head_dim]
  float* scores;      // [queries][64], then the probabilities
  float* out;         // [queries][padded head_dim]
  float* maximum;     // [queries]
  float* sum;         // [queries]
  float* tile_sum;    // [queries]
  float* correction;  // [queries]
  float* keys;        // a tile of one kv head as float32, or its scales alone
  float* values;      // the same, and a vector more: the last row's padding reads past it
  float* end;

  AttentionScratch(void* memory, int64_t head_dim, int64_t queries) {
    float* next = static_cast<float*>(memory);
    const auto take = [&next](int64_t floats) {
      float* const part = next;
      next += round_up_lanes(floats);
      return part;
    };
    q = take(queries * head_dim);
    scores = take(queries * kPageTokens);
    out = take(queries * round_up_lanes(head_dim));
    maximum = take(queries);
    sum = take(queries);
    tile_sum = take(queries);
    correction = take(queries);
    keys = take(kPageTokens * head_dim);
    values = take(kPageTokens * head_dim + kLanes);
    end = next;
  }
};

static inline size_t attention_scratch_bytes(int64_t head_dim, int64_t queries) {
  const AttentionScratch layout(nullptr, head_dim, queries);
  return static_cast<size_t>(reinterpret_cast<uintptr_t>(layout.end));
}

// Turns one query's 64 scores into probabilities relative to the new maximum; only keys [low, high) are seen.
static inline void softmax_step(const Attention& args, int64_t low, int64_t high, float* scores, float& maximum,
                                float& tile_sum, float& correction) {
  if (low >= high) {  // the tile is wholly masked for this query: multiply by 1, add 0
    for (int64_t j = 0; j < kPageTokens; j += kLanes) store(scores + j, set1(0.0f));
    tile_sum = 0.0f;
    correction = 0.0f;  // of the exponent
    return;
  }
  const f32x16 scale = set1(args.scale);
  const f32x16 cap = set1(args.softcap);
  f32x16 x[kTileVectors];
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = mul(load(scores + v * kLanes), scale);
    if (args.softcap != 0.0f) x[v] = mul(tanh_ps(div(x[v], cap)), cap);
  }
  if (low > 0 || high < kPageTokens) {
    for (int v = 0; v < kTileVectors; ++v) store(scores + v * kLanes, x[v]);
    for (int64_t j = 0; j < low; ++j) scores[j] = -INFINITY;
    for (int64_t j = high; j < kPageTokens; ++j) scores[j] = -INFINITY;
    for (int v = 0; v < kTileVectors; ++v) x[v] = load(scores + v * kLanes);
  }
  const float tile_maximum = reduce_max(max(max(x[0], x[1]), max(x[2], x[3])));
  const float new_maximum = tile_maximum > maximum ? tile_maximum : maximum;
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = exp_ps(sub(x[v], set1(new_maximum)));
    store(scores + v * kLanes, x[v]);
  }
  tile_sum = reduce_add(add(add(add(x[0], x[1]), x[2]), x[3]));
  correction = maximum - new_maximum;
  maximum = new_maximum;
}

template <class Value>
static inline void attend_as(const Attention& args, const AttentionTask& task, void* memory) {
  const int64_t dim = args.kv.head_dim;
  const int64_t padded = round_up_lanes(dim);
  const int64_t queries = task.tokens * task.heads;
  const int64_t kv_head = task.first_head / (args.heads / args.kv.kv_heads);
  const int64_t first_position = args.start + task.first_token;
  const int64_t last_position = first_position + task.tokens - 1;
  const auto lowest = [&](int64_t position) {
    return args.window > 0 && position >= args.window ? position - args.window + 1 : 0;
  };
  // Few queries read the cache as it is; many have each tile made float32 once. Rows that do not fill their last vector
  // are always copied, for reading past the last one may leave the page.
  constexpr bool kWide = std::is_same_v<Value, float>;
  const bool copies = dim % kLanes != 0 || (!kWide && queries > 2 * kQueryBlock);

  const AttentionScratch s(memory, dim, queries);
  for (int64_t token = 0; token < task.tokens; ++token)
    std::memcpy(s.q + token * task.heads * dim,
                args.q + (task.first_token + token) * args.q_stride + task.first_head * dim,
                task.heads * dim * sizeof(float));
  fill(s.out, queries * padded, 0.0f);
  fill(s.maximum, queries, -INFINITY);
  fill(s.sum, queries, 0.0f);
  fill(s.tile_sum, queries, 0.0f);
  fill(s.correction, queries, 0.0f);
  fill(s.values + kPageTokens * dim, kLanes, 0.0f);

  const auto score = [&](const auto& keys, const auto* ahead) {
    const float* const none = nullptr;
    multiply(queries, s.q, dim, keys, dim, kPageTokens, none, s.scores, kPageTokens, ahead);
  };
  const auto weigh = [&](const auto& values, int64_t low, int64_t high, const auto* ahead) {
    multiply(queries, s.scores + low, kPageTokens, values.from(low, 0), high - low, padded, s.correction, s.out, padded,
             ahead);
  };

  const int64_t last_tile = last_position / kPageTokens;
  const auto tile_keys = [&](int64_t tile) { return reinterpret_cast<const Value*>(args.kv.keys(tile, kv_head)); };
  for (int64_t tile = lowest(first_position) / kPageTokens; tile <= last_tile; ++tile) {
    const int64_t begin = tile * kPageTokens;
    const Value* keys = tile_keys(tile);
    const Value* values = reinterpret_cast<const Value*>(args.kv.values(tile, kv_head));
    const float* const none = nullptr;
    if (copies) {
      widen_keys(keys, dim, s.keys);
      widen_values(values, dim, s.values);
      score(Floats<float>{s.keys, kPageTokens}, none);
    } else {
      score(keys_of(keys, dim, s.keys), values);
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t position = first_position + i / task.heads;
      const int64_t low = most(lowest(position) - begin, 0);
      const int64_t high = least(position + 1 - begin, kPageTokens);
      softmax_step(args, low, high, s.scores + i * kPageTokens, s.maximum[i], s.tile_sum[i], s.correction[i]);
    }
    for (int64_t i = 0; i < queries; i += kLanes) {
      const f32x16 correction = exp_ps(load(s.correction + i));
      store(s.correction + i, correction);
      store(s.sum + i, fma(load(s.sum + i), correction, load(s.tile_sum + i)));
    }
    // What lies outside is unwritten, or no longer meant: it may be NaN, which a probability of 0 would not hide.
    const int64_t low = most(lowest(first_position) - begin, 0);
    const int64_t high = least(last_position + 1 - begin, kPageTokens);
    if (copies)
      weigh(Floats<float>{s.values, dim}, low, high, none);
    else
      weigh(values_of(values, dim, s.values), low, high, tile < last_tile ? tile_keys(tile + 1) : nullptr);
  }

  for (int64_t i = 0; i < queries; ++i) {
    const float sum = s.sum[i];
    float* const row = s.out + i * padded;
    for (int64_t d = 0; d < padded; d += kLanes)  // + 0 makes every zero positive, also where a product underflowed
      store(row + d, add(div(load(row + d), set1(sum)), set1(0.0f)));
    float* const token = args.out + (task.first_token + i / task.heads) * args.out_stride;
    std::memcpy(token + (task.first_head + i % task.heads) * dim, row, dim * sizeof(float));
  }
}

static inline void attend(const Attention& args, const AttentionTask& task, void* scratch) {
  switch (args.kv.type) {
    case KvType::kF32: return attend_as<float>(args, task, scratch);
    case KvType::kF16: return attend_as<uint16_t>(args, task, scratch);
    case KvType::kQ8_0: return attend_as<int8_t>(args, task, scratch);
  }
}

static constexpr AttentionKernels kAttentionKernels{attention_scratch_bytes, attend, append};

}  // namespace flexinfer::FI_NS
