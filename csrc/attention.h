// The paged KV cache of one layer and attention over it.
//
// A page holds 64 positions of one layer: first K as [kv_head][head_dim][64] (positions are lanes: a vector load gives
// the same element of 16 keys), then V as [kv_head][64][head_dim]. In Q8_0 each head's values are int8, and behind them
// lie the scales of its blocks, 32 elements of one position each, float16 [head_dim / 32][64]. The page of a position
// is table[position / 64], so sequences may share one pool of pages and a page may lie anywhere in it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexinfer {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kPageTokens = 64;  // also the tile of attention: one update of the running softmax per page
constexpr int64_t kKvBlock = 32;     // values to a scale in Q8_0

enum class KvType : int { kF32 = 0, kF16 = 1, kQ8_0 = 8 };  // ggml's ids

struct KvPages {
  std::byte* first;            // this layer's part of page 0
  int64_t page_stride_bytes;   // from a page to the next one
  const int32_t* table;        // page numbers, in order of position
  int64_t kv_heads;
  int64_t head_dim;
  KvType type;                 // Q8_0: head_dim is a multiple of kKvBlock

  // Always inlined: kernels of several instruction sets use these, and must not share one compiled copy.
  [[gnu::always_inline]] int64_t half_bytes() const { return kv_heads * head_bytes(); }
  [[gnu::always_inline]] int64_t head_bytes() const {
    const int64_t values = head_dim * kPageTokens;
    if (type == KvType::kQ8_0) return values + values / kKvBlock * static_cast<int64_t>(sizeof(uint16_t));
    return values * (type == KvType::kF16 ? 2 : 4);
  }
  [[gnu::always_inline]] std::byte* keys(int64_t page_of_sequence, int64_t kv_head) const {
    return first + table[page_of_sequence] * page_stride_bytes + kv_head * head_bytes();
  }
  [[gnu::always_inline]] std::byte* values(int64_t page_of_sequence, int64_t kv_head) const {
    return keys(page_of_sequence, kv_head) + half_bytes();
  }
};

struct Attention {
  KvPages kv;
  const float* q;  // [tokens][heads * head_dim], q_stride apart
  int64_t q_stride;
  float* out;  // the same shape
  int64_t out_stride;
  int64_t tokens;
  int64_t start;  // position of the first token; keys and values of all tokens are in the cache already
  int64_t heads;
  float scale;    // multiplies q.k
  int64_t window;  // a token at position p sees keys max(0, p - window + 1) .. p; 0: all up to p
  float softcap;   // 0: none
};

// One thread's share: the tokens [first_token, first_token + tokens) of the heads [first_head, first_head + heads),
// all of which use the same kv head.
struct AttentionTask {
  int64_t first_token;
  int64_t tokens;
  int64_t first_head;
  int64_t heads;
};

struct AttentionKernels {
  size_t (*scratch_bytes)(int64_t head_dim, int64_t queries);  // for a task of tokens * heads = queries
  void (*attend)(const Attention& args, const AttentionTask& task, void* scratch);
  // Writes k and v [tokens][kv_heads * head_dim] of one kv head to the positions start ..
  void (*append)(const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride, int64_t tokens,
                 int64_t start, int64_t kv_head);
};

class Context;

void attention(Context& context, const Attention& args);
void kv_append(Context& context, const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               int64_t tokens, int64_t start);

}  // namespace flexinfer
