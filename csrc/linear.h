// Products of weight rows with activations: what an instruction set provides (see linear_kernels.h).
//
// A group is 16 consecutive rows. Weights lie either as in the file, row after row, or interleaved: for each group,
// for each block in column order, every field of the block of rows 0..15 side by side (scales by 2 bytes, all else by
// 4; see the types in blocks.h, of which some reorder fields or bits). Both take the same bytes; a last partial group
// is padded with zero blocks.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexinfer {

constexpr int64_t kGroupRows = 16;
constexpr int64_t kActivationValues = 32;
constexpr int kBlockTypes = 16;  // that have kernels

// 32 activations: value[i] = scale · q[i]. The sums, stored negated, fold weight offsets in exactly; in two parts, as the
// halves of a dword of products have them: those of the first and second of every four q, and of the others. Minima take
// the scaled one.
struct ActivationBlock {
  int8_t q[kActivationValues];
  float scale;
  float minus_scaled_sum;   // scale · −Σ q
  int16_t minus_sum[3][2];  // of q[0..15], q[16..31], and all
};
static_assert(sizeof(ActivationBlock) == 52);

enum class Epilogue : int { kStore = 0, kAdd = 1, kSiluMul = 2, kGeluMul = 3 };

struct LinearJob {
  const uint8_t* weights;
  bool interleaved;
  int64_t rows;
  int64_t columns;
  const uint8_t* x;  // of each token: ActivationBlock[columns / 32], or float[columns] where the type takes floats
  int64_t x_stride_bytes;
  int64_t tokens;
  float* out;  // of row 0 and token 0
  int64_t out_stride;
  Epilogue epilogue;
  const float* bias;  // of row 0, or null
  bool fetches_ahead = false;  // whether weights are fetched ahead of one or two tokens, too: see Context
};

struct TypeKernels {
  int id;  // ggml's
  int block_columns;
  int block_bytes;
  bool float_activations;
  // Rows of groups [first_group, last_group); scratch holds LinearKernels::scratch_bytes.
  void (*linear)(const LinearJob& job, int64_t first_group, int64_t last_group, uint8_t* scratch);
  // One group of `rows` (1..16) file rows.
  void (*interleave)(const uint8_t* source, int64_t rows, int64_t columns, uint8_t* destination);
  // One file row to float32.
  void (*dequantize)(const uint8_t* source, int64_t columns, float* out);
};

struct LinearKernels {
  TypeKernels types[kBlockTypes];
  size_t scratch_bytes;
  void (*quantize)(const float* x, int64_t columns, ActivationBlock* out);
  uint32_t (*read)(const uint8_t* memory, int64_t bytes);  // touches every cache line; the result keeps the reads alive
};

class Context;

// Null where no kernel computes this type.
const TypeKernels* find_type(const Context& context, int type_id);

int64_t activation_bytes(int64_t columns);  // of one token, padded to 64

void quantize(Context& context, const float* x, int64_t x_stride, int64_t tokens, int64_t columns, uint8_t* out,
              int64_t out_stride_bytes);
void interleave(Context& context, const TypeKernels& type, const uint8_t* source, int64_t rows, int64_t columns,
                uint8_t* destination);
void linear(Context& context, const TypeKernels& type, const LinearJob& job);
void read_all(Context& context, const uint8_t* memory, int64_t bytes);

}  // namespace flexinfer
