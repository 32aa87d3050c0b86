// The product kernels over every block type. One accumulator chain per output: blocks in column order, so the bits
// depend neither on the number of tokens, nor on threads, cuts at groups, or the layout.
#pragma once

#include "blocks.h"
#include "blocks_k.h"
#include "blocks_table.h"
#include "linear.h"
#include "quantize.h"

namespace flexinfer::FI_NS {

constexpr int64_t kTokenBlock = 256;    // tokens whose accumulators stay in cache
constexpr int64_t kGroupBlock = 4;      // groups that share the activations in cache
constexpr int64_t kChunkRowBytes = 1024;  // of a file row that are interleaved at a time
constexpr size_t kTileBytes = kGroupBlock * kGroupRows * kChunkRowBytes;
constexpr size_t kSumsBytes = sizeof(float) * kGroupBlock * kTokenBlock * kLanes;
constexpr size_t kRoundedBytes = sizeof(float) * kMaxTile * kChunkRowBytes / BF16::kBytes;
constexpr size_t kScratchBytes = kTileBytes + kSumsBytes + kRoundedBytes;

alignas(64) static const uint8_t kZeros[kChunkRowBytes] = {};

// The columns of whole blocks that a chunk holds.
template <class Type>
constexpr int64_t kChunkColumns = kChunkRowBytes / Type::kBytes * Type::kColumns;

template <class Type>
constexpr int64_t kActivationBytes = Type::kFloat ? sizeof(float) : sizeof(ActivationBlock);
template <class Type>
constexpr bool kRounds = requires { requires Type::kRounds; };
template <class Type>
constexpr int64_t kActivationColumns = Type::kFloat ? 1 : kActivationValues;

template <class Type>
static FI_INLINE f32x16 accumulate_part(const i32x16 w[8], const Scales& scales, const ActivationBlock& x, f32x16 acc) {
  i32x16 sum;
  if constexpr (Type::kSubs == 2) {
    sum = add(mul(scales.s[0], dot<4, Type::kOffset, Type::kMost>(w, x.q, x.minus_sum[0])),
              mul(scales.s[1], dot<4, Type::kOffset, Type::kMost>(w + 4, x.q + 16, x.minus_sum[1])));
  } else {
    sum = dot<8, Type::kOffset, Type::kMost>(w, x.q, x.minus_total);
    if constexpr (Type::kSubs == 1) sum = mul(scales.s[0], sum);
  }
  const f32x16 scale = set1(x.scale);
  acc = fma(to_f32(sum), mul(scales.d, scale), acc);
  if constexpr (Type::kMinima) {
    i32x16 minus;
    if constexpr (Type::kSubs == 2)
      minus = add(mul(scales.m[0], broadcast32(&x.minus_sum[0])), mul(scales.m[1], broadcast32(&x.minus_sum[1])));
    else if constexpr (Type::kSubs == 1)
      minus = mul(scales.m[0], broadcast32(&x.minus_total));
    else
      minus = broadcast32(&x.minus_total);
    acc = fma(to_f32(minus), mul(scales.dmin, scale), acc);
  }
  return acc;
}

// The parts (32 inputs each) of one span of a block, for `Tokens` tokens.
template <class Type, int Tokens, int Part = 0>
static FI_INLINE void accumulate_span(const uint8_t* block, int span, const typename Type::Header& header,
                                      const uint8_t* x, int64_t x_stride, f32x16 acc[Tokens]) {
  i32x16 w[8];
  Scales scales;
  Type::template unpack<Part>(block, span, w);
  Type::template scales<Part>(header, scales);
  FI_UNROLL
  for (int t = 0; t < Tokens; ++t)
    acc[t] = accumulate_part<Type>(w, scales, reinterpret_cast<const ActivationBlock*>(x + t * x_stride)[Part], acc[t]);
  if constexpr ((Part + 1) * kActivationValues < Type::kSpan)
    accumulate_span<Type, Tokens, Part + 1>(block, span, header, x, x_stride, acc);
}

// Columns of floats, one fma each; in pairs the second column first, as processors' bfloat16 products have it. One chain
// of these is slower than memory: where there are not several tokens, several groups, group_stride apart, make more.
template <class Type, int Tokens, int Groups>
static FI_INLINE void accumulate_floats(const uint8_t* column, int64_t group_stride, int64_t columns, const uint8_t* x,
                                        int64_t x_stride, float* sums) {
  constexpr int kColumnBytes = kGroupRows * Type::kBytes;
  f32x16 acc[Groups * Tokens];
  FI_UNROLL
  for (int i = 0; i < Groups * Tokens; ++i) acc[i] = load(sums + kLanes * i);
  const auto multiply = [&](int i) {
    f32x16 w[Groups];
    FI_UNROLL
    for (int g = 0; g < Groups; ++g) w[g] = Type::weights(column + g * group_stride + i * kColumnBytes);
    FI_UNROLL
    for (int t = 0; t < Tokens; ++t) {
      const f32x16 value = set1(reinterpret_cast<const float*>(x + t * x_stride)[i]);
      FI_UNROLL
      for (int g = 0; g < Groups; ++g) acc[g * Tokens + t] = fma(w[g], value, acc[g * Tokens + t]);
    }
  };
  if constexpr (Type::kRounds)
    for (; columns >= 2; columns -= 2, column += 2 * kColumnBytes, x += 2 * sizeof(float)) {
      multiply(1);
      multiply(0);
    }
  for (; columns > 0; --columns, column += kColumnBytes, x += sizeof(float)) multiply(0);
  FI_UNROLL
  for (int i = 0; i < Groups * Tokens; ++i) store(sums + kLanes * i, acc[i]);
}

// Adds `blocks` interleaved blocks of one group to sums[token][16].
template <class Type, int Tokens>
static void accumulate(const uint8_t* block, int64_t blocks, const uint8_t* x, int64_t x_stride, float* sums) {
  if constexpr (Type::kFloat) {
    accumulate_floats<Type, Tokens, 1>(block, 0, blocks, x, x_stride, sums);
  } else {
    f32x16 acc[Tokens];
    FI_UNROLL
    for (int t = 0; t < Tokens; ++t) acc[t] = load(sums + kLanes * t);
    for (; blocks > 0; --blocks, block += kGroupRows * Type::kBytes)
      for (int span = 0; span < Type::kColumns / Type::kSpan; ++span) {
        accumulate_span<Type, Tokens>(block, span, Type::header(block, span), x, x_stride, acc);
        x += Type::kSpan / kActivationValues * sizeof(ActivationBlock);
      }
    FI_UNROLL
    for (int t = 0; t < Tokens; ++t) store(sums + kLanes * t, acc[t]);
  }
}

template <class Type, int Tokens = kMaxTile>
static void accumulate_tokens(const uint8_t* block, int64_t blocks, const uint8_t* x, int64_t x_stride, int64_t tokens,
                              float* sums) {
  for (; tokens >= Tokens; tokens -= Tokens, x += Tokens * x_stride, sums += Tokens * kLanes)
    accumulate<Type, Tokens>(block, blocks, x, x_stride, sums);
  if constexpr (Tokens > 1) accumulate_tokens<Type, Tokens / 2>(block, blocks, x, x_stride, tokens, sums);
}

// At least one of `blocks` blocks; says how many.
template <class Type>
static FI_INLINE int64_t interleave_some(Rows16 rows, int64_t blocks, uint8_t* out) {
  if constexpr (Type::kFloat)
    if (blocks >= Type::kRun) {
      Type::interleave_run(rows, out);
      return Type::kRun;
    }
  Type::interleave(rows, out);
  return 1;
}

// `blocks` blocks of `rows` file rows, row_bytes apart, to interleaved ones; the rows that a group lacks are zero.
// At most kChunkRowBytes of each row; `left` are the bytes from here to the row's end. Sixteen short runs are more than
// the processor foresees: the next chunk, at a row's end the next group's first, is fetched into the second level ahead.
template <class Type>
static void interleave_chunk(const uint8_t* source, int64_t row_bytes, int64_t left, int64_t rows, int64_t blocks,
                             uint8_t* out) {
  const uint8_t* at[kLanes];
  for (int row = 0; row < kLanes; ++row) at[row] = row < rows ? source + row * row_bytes : kZeros;
  int64_t line = 0;
  for (int64_t start = 0, end = blocks * Type::kBytes; start < end;) {
    for (; line < start + Type::kBytes; line += 64) {
      const int64_t ahead = line + kChunkRowBytes;
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
  for (int64_t column = 0; column < columns; column += kChunkColumns<Type>) {
    const int64_t chunk = columns - column < kChunkColumns<Type> ? columns - column : kChunkColumns<Type>;
    const int64_t start = column / Type::kColumns * Type::kBytes, blocks = chunk / Type::kColumns;
    interleave_chunk<Type>(source + start, row_bytes, row_bytes - start, rows, blocks, out + kGroupRows * start);
  }
}

// out = epilogue(out, sums + bias) for one group and token.
static FI_INLINE void finish(const LinearJob& job, int64_t group, int64_t token, const float* sums) {
  const int64_t row = group * kGroupRows;
  const int rows = job.rows - row < kGroupRows ? static_cast<int>(job.rows - row) : static_cast<int>(kGroupRows);
  float* out = job.out + token * job.out_stride + row;
  f32x16 y = load(sums);
  if (job.bias) y = add(y, load_part(job.bias + row, rows));
  if (job.epilogue == Epilogue::kAdd) y = add(load_part(out, rows), y);
  if (job.epilogue == Epilogue::kSiluMul) y = mul(silu_ps(load_part(out, rows)), y);
  if (job.epilogue == Epilogue::kGeluMul) y = mul(gelu_ps(load_part(out, rows)), y);
  store_part(out, y, rows);
}

// Up to kGroupBlock groups and kTokenBlock tokens, by chunks of columns.
template <class Type>
static void linear_tile(const LinearJob& job, int64_t first_group, int64_t groups, int64_t first_token, int64_t tokens,
                        uint8_t* scratch) {
  float* sums = reinterpret_cast<float*>(scratch + kTileBytes);
  std::memset(sums, 0, sizeof(float) * static_cast<size_t>(groups * tokens * kLanes));
  const int64_t row_bytes = job.columns / Type::kColumns * Type::kBytes;
  uint8_t* rounded = scratch + kTileBytes + kSumsBytes;  // activations, kChunkColumns apart
  const int64_t step = tokens == 1 && job.interleaved && !kRounds<Type> ? job.columns : kChunkColumns<Type>;
  for (int64_t column = 0; column < job.columns; column += step) {
    const int64_t blocks = (job.columns - column < step ? job.columns - column : step) / Type::kColumns;
    const int64_t start = column / Type::kColumns * Type::kBytes;
    const uint8_t* tile[kGroupBlock];
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t row = (first_group + g) * kGroupRows;
      if (job.interleaved) {
        tile[g] = job.weights + row * row_bytes + kGroupRows * start;
      } else {
        uint8_t* own = scratch + g * kGroupRows * kChunkRowBytes;
        interleave_chunk<Type>(job.weights + row * row_bytes + start, row_bytes, row_bytes - start, job.rows - row,
                               blocks, own);
        tile[g] = own;
      }
    }
    const uint8_t* x = job.x + first_token * job.x_stride_bytes +
                       column / kActivationColumns<Type> * kActivationBytes<Type>;
    for (int64_t t = 0; t < tokens; t += kMaxTile) {
      const int64_t some = tokens - t < kMaxTile ? tokens - t : kMaxTile;
      const uint8_t* from = x + t * job.x_stride_bytes;
      int64_t stride = job.x_stride_bytes;
      if constexpr (kRounds<Type>) {
        for (int64_t i = 0; i < some; ++i) {
          round_to_bf16(reinterpret_cast<const float*>(from + i * stride), blocks,
                        reinterpret_cast<float*>(rounded) + i * kChunkColumns<Type>);
          for (int64_t line = 0; line < blocks * kActivationBytes<Type>; line += 64)  // of the next tile
            prefetch(from + (i + kMaxTile) * stride + line);
        }
        from = rounded;
        stride = sizeof(float) * kChunkColumns<Type>;
      }
      if constexpr (Type::kFloat)
        if (tokens == 1 && groups == kGroupBlock) {
          accumulate_floats<Type, 1, kGroupBlock>(tile[0], tile[1] - tile[0], blocks, from, stride, sums);
          continue;
        }
      for (int64_t g = 0; g < groups; ++g)
        accumulate_tokens<Type>(tile[g], blocks, from, stride, some, sums + (g * tokens + t) * kLanes);
    }
  }
  for (int64_t g = 0; g < groups; ++g)
    for (int64_t t = 0; t < tokens; ++t) finish(job, first_group + g, first_token + t, sums + (g * tokens + t) * kLanes);
}

template <class Type>
static void linear(const LinearJob& job, int64_t first_group, int64_t last_group, uint8_t* scratch) {
  const int64_t most = job.tokens == 1 && !Type::kFloat ? 1 : kGroupBlock;
  for (int64_t group = first_group; group < last_group; group += most) {
    const int64_t groups = last_group - group < most ? last_group - group : most;
    for (int64_t token = 0; token < job.tokens; token += kTokenBlock) {
      const int64_t tokens = job.tokens - token < kTokenBlock ? job.tokens - token : kTokenBlock;
      linear_tile<Type>(job, group, groups, token, tokens, scratch);
    }
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
    for (; i + kLanes <= columns; i += kLanes) store(out + i, Type::weights(source + i * Type::kBytes));
    uint8_t rest[kLanes * Type::kBytes] = {};
    std::memcpy(rest, source + i * Type::kBytes, static_cast<size_t>((columns - i) * Type::kBytes));
    store_part(out + i, Type::weights(rest), static_cast<int>(columns - i));
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

static uint32_t read(const uint8_t* memory, int64_t bytes) {
  i32x16 bits[4] = {set1_i32(0), set1_i32(0), set1_i32(0), set1_i32(0)};
  for (int64_t i = 0; i + 256 <= bytes; i += 256)
    FI_UNROLL
    for (int j = 0; j < 4; ++j) bits[j] = bit_or(bits[j], load64(memory + i + 64 * j));
  return static_cast<uint32_t>(reduce_add(bit_or(bit_or(bits[0], bits[1]), bit_or(bits[2], bits[3]))));
}

template <class Type>
static constexpr TypeKernels kTypeKernels{Type::kId,    Type::kColumns,   Type::kBytes,    Type::kFloat,
                                          linear<Type>, interleave<Type>, dequantize<Type>};

static constexpr TypeKernels kTypes[] = {
    kTypeKernels<F32>,  kTypeKernels<F16>,  kTypeKernels<BF16>,   kTypeKernels<Q4_0>,   kTypeKernels<Q4_1>,
    kTypeKernels<Q5_0>, kTypeKernels<Q5_1>, kTypeKernels<Q8_0>,   kTypeKernels<Q2_K>,   kTypeKernels<Q3_K>,
    kTypeKernels<Q4_K>, kTypeKernels<Q5_K>, kTypeKernels<Q6_K>,   kTypeKernels<IQ4_NL>, kTypeKernels<IQ4_XS>,
    kTypeKernels<MXFP4>,
};

static constexpr LinearKernels kLinearKernels{kTypes, sizeof kTypes / sizeof *kTypes, kScratchBytes, quantize, read};

}  // namespace flexinfer::FI_NS
