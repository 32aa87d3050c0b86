// The product kernels over every block type. One accumulator chain per output: blocks in column order, so the bits
// depend neither on the number of tokens, nor on threads, cuts at groups, or the layout.
#pragma once

#include "blocks.h"
#include "blocks_k.h"
#include "blocks_table.h"
#include "flushed.h"
#include "linear.h"
#include "linear_tiles.h"
#include "quantize.h"

namespace flexinfer::FI_NS {

constexpr int64_t kTokenBlock = 128;      // tokens whose accumulators and activations stay in cache
constexpr int kOneTokenGroups = 4;        // of floats, whose sums of one token are summed at a time
constexpr int64_t kChunkRowBytes = 1024;  // of a file row that are interleaved at a time, at most
constexpr int64_t kPieceVectors = 128;    // of 64 bytes, of a group's weights that are unpacked at a time

alignas(64) static const uint8_t kZeros[kChunkRowBytes] = {};

template <class Type>
constexpr int64_t kActivationBytes = Type::kFloat ? sizeof(float) : sizeof(ActivationBlock);
template <class Type>
constexpr bool kRounds = requires { requires Type::kRounds; };
template <class Type>
constexpr int64_t kActivationColumns = Type::kFloat ? 1 : kActivationValues;

// From so many tokens on, unpacking once for all is worth writing the result to cache.
template <class Type>
constexpr int64_t kManyTokens = Type::kFloat ? kManyFloatTokens : kManyQuantisedTokens;
// Of which, so many groups at a time.
template <class Type>
constexpr int kMostGroups = Type::kFloat ? kFloatTileGroups : kTileGroups;
// Unpacked at a time: 8 parts, one block of 256 or eight of 32; or as many columns of floats.
template <class Type>
constexpr int64_t kPieceBlocks = Type::kFloat ? kPieceVectors : 256 / Type::kColumns;
constexpr int64_t kPieceBytes = 64 * kPieceVectors;

// What of a matrix is computed at a time: groups that share the activations in cache, and of file rows so many bytes.
struct Blocking {
  int64_t groups;
  int64_t chunk_row_bytes;
};
constexpr Blocking kFewTokens{8, kChunkRowBytes}, kManyFloats{16, kChunkRowBytes / 2};

// Many tokens' activations of floats take much of the cache: narrower chunks of them serve more groups. One token's take
// none, and rows of more groups, often a power of two apart, would meet in the same places of it.
template <class Type>
static FI_INLINE Blocking blocking(int64_t tokens) {
  if (tokens == 1) return {Type::kFloat ? kOneTokenGroups : 1, kChunkRowBytes};
  return Type::kFloat && tokens >= kManyTokens<Type> ? kManyFloats : kFewTokens;
}

// A thread's share of memory.
struct Scratch {
  static constexpr size_t kInterleavedBytes = kGroupRows * kFewTokens.groups * kFewTokens.chunk_row_bytes;
  static constexpr size_t kUnpackedBytes = (kFloatTileGroups > kTileGroups ? kFloatTileGroups : kTileGroups) * kPieceBytes;
  static constexpr size_t kSumsBytes = sizeof(float) * kManyFloats.groups * kTokenBlock * kLanes;
  static constexpr int64_t kRoundedValues = kTokenBlock * kManyFloats.chunk_row_bytes / BF16::kBytes;
  static constexpr size_t kRoundedBytes = BF16::kRoundedBytes * kRoundedValues;
  static constexpr size_t kBytes = kInterleavedBytes + kUnpackedBytes + kSumsBytes + kRoundedBytes;

  uint8_t* interleaved;
  uint8_t* unpacked;
  float* sums;
  uint8_t* rounded;  // activations

  explicit Scratch(uint8_t* memory)
      : interleaved(memory),
        unpacked(interleaved + kInterleavedBytes),
        sums(reinterpret_cast<float*>(unpacked + kUnpackedBytes)),
        rounded(memory + kBytes - kRoundedBytes) {}
};

// At least one of `blocks` blocks; says how many.
template <class Type>
static FI_INLINE int64_t interleave_some(Rows16 rows, [[maybe_unused]] int64_t blocks, uint8_t* out) {
  if constexpr (Type::kFloat)
    return Type::interleave(rows, blocks, out);
  else
    return Type::interleave(rows, out), 1;
}

// `blocks` blocks of `rows` file rows, row_bytes apart, to interleaved ones; the rows that a group lacks are zero.
// At most kChunkRowBytes of each row; `left` are the bytes from here to the row's end. Sixteen short runs are more than the
// processor foresees: the next chunk of `chunk` bytes, at a row's end the next group's first, is fetched into the second
// level ahead.
template <class Type>
static void interleave_chunk(const uint8_t* source, int64_t row_bytes, int64_t left, int64_t rows, int64_t blocks,
                             uint8_t* out, int64_t chunk = kChunkRowBytes) {
  const uint8_t* at[kLanes];
  for (int row = 0; row < kLanes; ++row) at[row] = row < rows ? source + row * row_bytes : kZeros;
  int64_t line = 0;
  for (int64_t start = 0, end = blocks * Type::kBytes; start < end;) {
    for (; line < start + Type::kBytes; line += 64) {
      const int64_t ahead = line + chunk;
      const int64_t jump = ahead < left ? ahead : ahead + (kGroupRows - 1) * row_bytes;
      for (int row = 0; row < kLanes; ++row) prefetch(at[row] + jump - start);
    }
    const int64_t step = interleave_some<Type>(at, (end - start) / Type::kBytes, out) * Type::kBytes;
    for (int row = 0; row < kLanes; ++row) at[row] += step;
    start += step;
    out += kGroupRows * step;
  }
}

template <class Type>
static void interleave(const uint8_t* source, int64_t rows, int64_t columns, uint8_t* out) {
  const int64_t row_bytes = columns / Type::kColumns * Type::kBytes;
  constexpr int64_t kMost = kChunkRowBytes / Type::kBytes * Type::kColumns;
  for (int64_t column = 0; column < columns; column += kMost) {
    const int64_t chunk = columns - column < kMost ? columns - column : kMost;
    const int64_t start = column / Type::kColumns * Type::kBytes, blocks = chunk / Type::kColumns;
    interleave_chunk<Type>(source + start, row_bytes, row_bytes - start, rows, blocks, out + kGroupRows * start);
  }
}

// out = epilogue(out, sums + bias) for one group and token.
static FI_INLINE void finish(const LinearJob& job, int64_t group, int64_t token, const float* sums) {
  const int64_t row = group * kGroupRows;
  const int rows = job.rows - row < kGroupRows ? static_cast<int>(job.rows - row) : static_cast<int>(kGroupRows);
  float* out = job.out + token * job.out_stride + row;
  const auto take = [rows](const float* from) { return rows == kGroupRows ? load(from) : load_part(from, rows); };
  f32x16 y = load(sums);
  if (job.bias) y = add(y, take(job.bias + row));
  if (job.epilogue == Epilogue::kAdd) y = add(take(out), y);
  if (job.epilogue == Epilogue::kSiluMul) y = mul(silu_ps(take(out)), y);
  if (job.epilogue == Epilogue::kGeluMul) y = mul(gelu_ps(take(out)), y);
  if (rows == kGroupRows) {  // storing a part takes AMD's processors tens of cycles
    store(out, y);
  } else {
    store_part(out, y, rows);
  }
}

// Interleaved blocks of some groups, group_stride apart, and activations of some tokens: what a tile adds to its sums,
// sums[group · sum_stride + token · 16].
struct Tile {
  const uint8_t* weights;
  int64_t group_stride;
  int64_t groups;
  int64_t blocks;
  const uint8_t* x;
  int64_t x_stride;
  int64_t tokens;
  float* sums;
  int64_t sum_stride;
  bool fetches_ahead;
};

// Calls f<n>(first) over [0, count) in steps of n = kStep, and of its halves for the rest.
template <int kStep, class F>
static FI_INLINE void in_steps(int64_t first, int64_t count, const F& f) {
  for (; count - first >= kStep; first += kStep) f.template operator()<kStep>(first);
  if constexpr (kStep > 1) in_steps<kStep / 2>(first, count, f);
}

// Activations as a type that kRounds takes them: kRoundedBytes each; there is room up to a multiple of 32.
template <class Type>
static void round_activations(const float* x, int64_t columns, uint8_t* out) {
  round_to_bf16(x, columns, reinterpret_cast<float*>(out));
}

// Calls f<groups, tokens>(group, token) over all of a tile, in steps of so many at most.
template <int kMostGroups, int kMostTokens, class F>
static FI_INLINE void in_tiles(const Tile& t, const F& f) {
  in_steps<kMostGroups>(0, t.groups, [&]<int kGroups>(int64_t group) {
    in_steps<kMostTokens>(0, t.tokens, [&]<int kTokens>(int64_t token) {
      f.template operator()<kGroups, kTokens>(group, token);
    });
  });
}

// Few tokens: blocks are unpacked into registers.
template <class Type, bool kAhead>
static void add_few(const Tile& t) {
  const auto add = [&]<int kGroups, int kTokens>(int64_t group, int64_t token) {
    constexpr bool kFetches = kAhead || kTokens >= kPrefetchTokens;
    const uint8_t* const weights = t.weights + group * t.group_stride;
    const uint8_t* const x = t.x + token * t.x_stride;
    float* const sums = t.sums + group * t.sum_stride + token * kLanes;
    if constexpr (Type::kFloat)
      accumulate_floats<Type, kGroups, kTokens, kFetches>(weights, t.group_stride, t.blocks, x, t.x_stride, sums,
                                                          t.sum_stride);
    else
      accumulate_blocks<Type, kTokens, kFetches>(weights, t.blocks, x, t.x_stride, sums);
  };
  // One token and one group is a chain of additions, slower than memory: several groups make more chains.
  if constexpr (Type::kFloat)
    if (t.tokens == 1) return in_tiles<kOneTokenGroups, 1>(t, add);
  in_tiles<Type::kFloat ? kFewFloatGroups : 1, kMaxTile>(t, add);
}

// The part of `bytes` bytes of each group that falls to tokens [first, last): what comes next is fetched bit by bit, as
// the tokens are computed, for bursts would hold up the loads.
static FI_INLINE void prefetch_share(const Tile& t, int64_t groups, const uint8_t* next, int64_t bytes, int64_t first,
                                     int64_t last) {
  const int64_t start = bytes / 64 * first / t.tokens * 64, end = bytes / 64 * last / t.tokens * 64;
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t at = start; at < end; at += 64) prefetch(next + g * t.group_stride + at);
}

// Many: a piece of each group is unpacked into the first-level cache, once for all tokens.
template <class Type>
static void add_many(const Tile& t, uint8_t* unpacked) {
  constexpr int64_t kBytes = kPieceBlocks<Type> * kGroupRows * Type::kBytes;  // of a piece of a group
  for (int64_t block = 0; block < t.blocks; block += kPieceBlocks<Type>) {
    const int64_t blocks = t.blocks - block < kPieceBlocks<Type> ? t.blocks - block : kPieceBlocks<Type>;
    const int64_t parts = Type::kFloat ? blocks : blocks * Type::kColumns / kActivationValues;
    const uint8_t* const x = t.x + block * Type::kColumns / kActivationColumns<Type> * kActivationBytes<Type>;
    in_steps<kMostGroups<Type>>(0, t.groups, [&]<int kGroups>(int64_t group) {
      const uint8_t* const piece = t.weights + group * t.group_stride + block * kGroupRows * Type::kBytes;
      for (int64_t g = 0; g < kGroups; ++g)
        unpack_blocks<Type>(piece + g * t.group_stride, blocks, unpacked + g * kPieceBytes);
      constexpr int kMostTokens = Type::kFloat ? kFloatTileTokens : kTileTokens;
      in_steps<kMostGroups<Type> * kMostTokens / kGroups>(0, t.tokens, [&]<int kTokens>(int64_t token) {
        prefetch_share(t, kGroups, piece + kBytes, kBytes, token, token + kTokens);
        accumulate_unpacked<Type, kGroups, kTokens>(unpacked, kPieceBytes, parts, x + token * t.x_stride, t.x_stride,
                                                    t.sums + group * t.sum_stride + token * kLanes, t.sum_stride);
      });
    });
  }
}

// Interleaved weights are taken in runs as long as the activations of that many columns stay in cache.
template <class Type>
static int64_t columns_at_once(const LinearJob& job, int64_t tokens, int64_t chunk_row_bytes) {
  if (Type::kFloat && job.interleaved) return Scratch::kRoundedValues / tokens / kActivationValues * kActivationValues;
  if (job.interleaved && tokens <= kMaxTile) return job.columns;
  return chunk_row_bytes / Type::kBytes * Type::kColumns;
}

// Some groups and up to kTokenBlock tokens, by chunks of columns.
template <class Type>
static void linear_tile(const LinearJob& job, int64_t first_group, int64_t groups, int64_t first_token, int64_t tokens,
                        const Scratch& scratch) {
  std::memset(scratch.sums, 0, sizeof(float) * static_cast<size_t>(groups * tokens * kLanes));
  const int64_t row_bytes = job.columns / Type::kColumns * Type::kBytes, row = first_group * kGroupRows;
  const int64_t chunk_row_bytes = blocking<Type>(job.tokens).chunk_row_bytes;
  const int64_t step = columns_at_once<Type>(job, tokens, chunk_row_bytes);
  for (int64_t column = 0; column < job.columns; column += step) {
    const int64_t blocks = (job.columns - column < step ? job.columns - column : step) / Type::kColumns;
    const int64_t start = column / Type::kColumns * Type::kBytes;
    Tile tile{job.weights + row * row_bytes + kGroupRows * start, kGroupRows * row_bytes, groups, blocks,
              job.x + first_token * job.x_stride_bytes + column / kActivationColumns<Type> * kActivationBytes<Type>,
              job.x_stride_bytes, tokens, scratch.sums, tokens * kLanes, job.interleaved && job.fetches_ahead};
    if (!job.interleaved) {
      tile.weights = scratch.interleaved;
      tile.group_stride = kGroupRows * chunk_row_bytes;
      for (int64_t g = 0; g < groups; ++g)
        interleave_chunk<Type>(job.weights + (row + g * kGroupRows) * row_bytes + start, row_bytes, row_bytes - start,
                               job.rows - row - g * kGroupRows, blocks, scratch.interleaved + g * tile.group_stride,
                               chunk_row_bytes);
    }
    if constexpr (kRounds<Type>) {
      const int64_t stride = step * Type::kRoundedBytes;
      for (int64_t t = 0; t < tokens; ++t)
        round_activations<Type>(reinterpret_cast<const float*>(tile.x + t * tile.x_stride), blocks,
                                scratch.rounded + t * stride);
      tile.x = scratch.rounded;
      tile.x_stride = stride;
    }
    if (tokens < kManyTokens<Type> && (tile.fetches_ahead || kPrefetchTokens == 1))
      add_few<Type, true>(tile);
    else if (tokens < kManyTokens<Type>)
      add_few<Type, false>(tile);
    else
      add_many<Type>(tile, scratch.unpacked);
  }
  for (int64_t t = 0; t < tokens; ++t)  // a token's rows are neighbours, and so are found fast
    for (int64_t g = 0; g < groups; ++g)
      finish(job, first_group + g, first_token + t, scratch.sums + (g * tokens + t) * kLanes);
}

template <class Type>
__attribute__((noinline)) static void linear_tiles(const LinearJob& job, int64_t first_group, int64_t last_group,
                                                   uint8_t* memory) {
  const Scratch scratch(memory);
  const int64_t most = blocking<Type>(job.tokens).groups;
  for (int64_t group = first_group; group < last_group; group += most) {
    const int64_t groups = last_group - group < most ? last_group - group : most;
    for (int64_t token = 0; token < job.tokens; token += kTokenBlock) {
      const int64_t tokens = job.tokens - token < kTokenBlock ? job.tokens - token : kTokenBlock;
      linear_tile<Type>(job, group, groups, token, tokens, scratch);
    }
  }
}

template <class Type>
static void linear(const LinearJob& job, int64_t first_group, int64_t last_group, uint8_t* memory) {
  if constexpr (kRounds<Type>) {
    const FlushedSubnormals flushed;
    linear_tiles<Type>(job, first_group, last_group, memory);
  } else {
    linear_tiles<Type>(job, first_group, last_group, memory);
  }
}

// One span of the 16 blocks in tile, which lie in one row and are interleaved as if in 16, to float32.
template <class Type, int Part = 0>
static void dequantize_span(const uint8_t* tile, int span, int blocks, float* out) {
  i32x16 w[8];
  Scales scales;
  Type::template unpack<Part>(tile, span, w);
  Type::template scales<Part>(Type::header(tile, span), scales);
  for (int e = 0; e < 8; ++e) {
    f32x16 d = scales.d, minimum = scales.dmin;
    if constexpr (Type::kSubs) d = mul(d, to_f32(scales.s[Type::kSubs == 2 ? e / 4 : 0]));
    if constexpr (Type::kSubs && Type::kMinima) minimum = mul(minimum, to_f32(scales.m[Type::kSubs == 2 ? e / 4 : 0]));
    i32x16 quads = w[e];
    for (int i = 0; i < 4; ++i, quads = shr<8>(quads)) {
      f32x16 value = mul(d, to_f32(sub(bit_and(quads, set1_i32(0xff)), set1_i32(Type::kOffset))));
      if constexpr (Type::kMinima) value = sub(value, minimum);
      float lanes[kLanes];
      store(lanes, value);
      for (int b = 0; b < blocks; ++b) out[b * Type::kColumns + Part * kActivationValues + 4 * e + i] = lanes[b];
    }
  }
  if constexpr ((Part + 1) * kActivationValues < Type::kSpan)
    dequantize_span<Type, Part + 1>(tile, span, blocks, out);
}

template <class Type>
static void dequantize(const uint8_t* source, int64_t columns, float* out) {
  if constexpr (Type::kFloat) {
    int64_t i = 0;
    for (; i + kLanes <= columns; i += kLanes) store(out + i, Type::values(source + i * Type::kBytes));
    uint8_t rest[kLanes * Type::kBytes] = {};
    std::memcpy(rest, source + i * Type::kBytes, static_cast<size_t>((columns - i) * Type::kBytes));
    store_part(out + i, Type::values(rest), static_cast<int>(columns - i));
  } else {
    for (int64_t left = columns / Type::kColumns; left > 0; left -= kLanes) {
      const int blocks = left < kLanes ? static_cast<int>(left) : kLanes;
      alignas(64) uint8_t tile[kLanes * Type::kBytes];
      interleave_chunk<Type>(source, Type::kBytes, Type::kBytes, blocks, 1, tile);
      for (int span = 0; span < Type::kColumns / Type::kSpan; ++span)
        dequantize_span<Type>(tile, span, blocks, out + span * Type::kSpan);
      source += blocks * Type::kBytes;
      out += blocks * Type::kColumns;
    }
  }
}

static inline uint32_t read(const uint8_t* memory, int64_t bytes) {
  i32x16 bits[4] = {set1_i32(0), set1_i32(0), set1_i32(0), set1_i32(0)};
  for (int64_t i = 0; i + 256 <= bytes; i += 256)
    FI_UNROLL
    for (int j = 0; j < 4; ++j) bits[j] = bit_or(bits[j], load64(memory + i + 64 * j));
  return static_cast<uint32_t>(reduce_add(bit_or(bit_or(bits[0], bits[1]), bit_or(bits[2], bits[3]))));
}

template <class Type>
static constexpr TypeKernels kTypeKernels{Type::kId,    Type::kColumns,   Type::kBytes,    Type::kFloat,
                                          linear<Type>, interleave<Type>, dequantize<Type>};

}  // namespace flexinfer::FI_NS
