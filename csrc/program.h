// Calls recorded once and replayed: what Python would call one by one in every sweep, without its time in between.
//
// A record holds addresses, not memory: whoever records vouches that arrays stay where they are as long as the program
// runs. Only what differs from sweep to sweep is given to each replay: the spans of tokens with their pages of the cache,
// and where streamed weights lie.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <variant>
#include <vector>

#include "attention.h"
#include "linear.h"
#include "ops.h"

namespace flexinfer {

// Consecutive tokens of one sequence: rows first .. of the activations, positions start .. of the cache.
struct Span {
  int64_t first;
  int64_t tokens;
  int64_t start;
  std::vector<const int32_t*> tables;  // of each kind of layers
};

struct Replay {
  const std::vector<Span>& spans;
  const int64_t* addresses;  // of streamed requests
};

struct RmsNorm {
  Rows x;
  const float* weight;
  float eps;
  bool accumulate;
  Rows out;
};

struct Rope {
  Rows x;
  int64_t heads;
  Rows angles;
  bool adjacent;
};

struct Scale {
  Rows x;
  float factor;
};

struct Softcap {
  Rows x;
  float cap;
};

struct Quantize {
  const float* x;
  int64_t x_stride;
  int64_t tokens;
  int64_t columns;
  uint8_t* out;
  int64_t out_stride_bytes;
};

struct Product {
  const TypeKernels* type;
  LinearJob job;              // weights: where they lie, or null
  int64_t request = -1;       // the streamed request that they lie in,
  int64_t offset_bytes = 0;   // and how far behind its address
};

// Append to the cache, then attend, for each span: kv has no table yet.
struct CachedAttention {
  Rows k, v;
  Attention attention;
  int64_t kind;  // which of a span's tables
};

using Op = std::variant<RmsNorm, Rope, Scale, Softcap, Quantize, Product, CachedAttention>;

// What needs nothing of a replay can also be run at once.
void run(Context& context, const RmsNorm& op);
void run(Context& context, const Rope& op);
void run(Context& context, const Scale& op);
void run(Context& context, const Softcap& op);
void run(Context& context, const Quantize& op);
void run(Context& context, const Product& op);

class Program {
 public:
  // Of sweeps of `tokens` tokens, in `context`, which must outlive it.
  Program(Context& context, int64_t tokens) : context_(context), tokens_(tokens) {}

  Context& context() const { return context_; }
  int64_t tokens() const { return tokens_; }
  int64_t size() const { return static_cast<int64_t>(ops_.size()); }
  int64_t kinds() const { return kinds_; }        // tables that each span must have
  int64_t requests() const { return requests_; }  // addresses that a replay must have

  template <class Any>
  void add(const Any& op) {
    if constexpr (std::is_same_v<Any, Product>) requests_ = std::max(requests_, op.request + 1);
    if constexpr (std::is_same_v<Any, CachedAttention>) kinds_ = std::max(kinds_, op.kind + 1);
    ops_.push_back(op);
  }

  // Runs the ops [first, last) in order.
  void run(int64_t first, int64_t last, const Replay& replay) const;

 private:
  Context& context_;
  const int64_t tokens_;
  int64_t kinds_ = 0;
  int64_t requests_ = 0;
  std::vector<Op> ops_;
};

}  // namespace flexinfer
