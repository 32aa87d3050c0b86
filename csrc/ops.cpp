// How each small operation is split over a Context's threads. No split enters a result: every row, token and head is
// computed whole by one thread.
#include "ops.h"

#include <algorithm>
#include <limits>

#include "attention.h"
#include "context.h"

namespace flexinfer {
namespace {

constexpr int64_t kTaskElements = 16384;  // some microseconds of work: less is not worth another thread

int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

// Calls f(i) for i in [0, count), each costing `elements`.
template <class F>
void for_each(Context& context, int64_t count, int64_t elements, const F& f) {
  const int64_t per_task = std::max<int64_t>(1, kTaskElements / std::max<int64_t>(1, elements));
  Context::Lease(context, 0, 0).run(blocks(count, per_task), [&](int64_t task, void*) {
    const int64_t end = std::min(count, (task + 1) * per_task);
    for (int64_t i = task * per_task; i < end; ++i) f(i);
  });
}

struct AttentionBlock {
  int64_t heads;
  int64_t tokens;
};

// How much of a kv head's work is one task: the block that finishes first, the larger of equals (it shares more).
AttentionBlock attention_block(int64_t kv_heads, int64_t group, int64_t tokens, int64_t threads) {
  constexpr int64_t kQueries = 48;   // at most: the conversion of a tile is then a few percent of its use
  constexpr int64_t kTileCost = 2;   // of loading and converting a tile, in queries (measured)
  AttentionBlock best{};
  int64_t best_cost = std::numeric_limits<int64_t>::max();
  for (int64_t heads = std::min(group, kQueries); heads > 0; --heads) {
    const int64_t block_tokens = std::min(tokens, kQueries / heads);
    const int64_t tasks = kv_heads * blocks(group, heads) * blocks(tokens, block_tokens);
    const int64_t cost = blocks(tasks, threads) * (kTileCost + heads * block_tokens);
    if (cost < best_cost) {
      best_cost = cost;
      best = {heads, block_tokens};
    }
  }
  return best;
}

}  // namespace

void rms_norm(Context& context, const Rows& x, const float* weight, float eps, bool accumulate, const Rows& out) {
  const OpsKernels& ops = context.kernels().ops;
  for_each(context, x.rows, x.width,
           [&](int64_t i) { ops.rms_norm(x.row(i), weight, x.width, eps, accumulate, out.row(i)); });
}

void rope(Context& context, const Rows& x, int64_t heads, const Rows& angles, bool adjacent) {
  const OpsKernels& ops = context.kernels().ops;
  const int64_t head_dim = x.width / heads;
  for_each(context, x.rows, x.width, [&](int64_t i) {
    for (int64_t head = 0; head < heads; ++head)
      ops.rope(x.row(i) + head * head_dim, angles.row(i), angles.width / 2, adjacent);
  });
}

void scale(Context& context, const Rows& x, float factor) {
  const OpsKernels& ops = context.kernels().ops;
  for_each(context, x.rows, x.width, [&](int64_t i) { ops.scale(x.row(i), x.width, factor); });
}

void softcap(Context& context, const Rows& x, float cap) {
  const OpsKernels& ops = context.kernels().ops;
  for_each(context, x.rows, x.width, [&](int64_t i) { ops.softcap(x.row(i), x.width, cap); });
}

void exp_rows(Context& context, const Rows& x) {
  const OpsKernels& ops = context.kernels().ops;
  for_each(context, x.rows, x.width, [&](int64_t i) { ops.exp(x.row(i), x.width); });
}

void kv_append(Context& context, const KvPages& kv, const float* k, int64_t k_stride, const float* v, int64_t v_stride,
               int64_t tokens, int64_t start) {
  const AttentionKernels& kernels = context.kernels().attention;
  for_each(context, kv.kv_heads, tokens * kv.head_dim, [&](int64_t kv_head) {
    kernels.append(kv, k, k_stride, v, v_stride, tokens, start, kv_head);
  });
}

void attention(Context& context, const Attention& args) {
  if (args.tokens == 0) return;
  const AttentionKernels& kernels = context.kernels().attention;
  const int64_t group = args.heads / args.kv.kv_heads;
  const auto [heads, tokens] = attention_block(args.kv.kv_heads, group, args.tokens, context.threads());
  const int64_t head_blocks = blocks(group, heads);
  const int64_t token_blocks = blocks(args.tokens, tokens);
  const int64_t tasks_per_block = args.kv.kv_heads * head_blocks;
  Context::Lease lease(context, 0, kernels.scratch_bytes(args.kv.head_dim, tokens * heads));
  lease.run(tasks_per_block * token_blocks, [&](int64_t index, void* scratch) {
    const int64_t block = token_blocks - 1 - index / tasks_per_block;  // the longest first
    const int64_t kv_head = index % tasks_per_block / head_blocks;
    AttentionTask task;
    task.first_token = block * tokens;
    task.tokens = std::min(tokens, args.tokens - task.first_token);
    task.first_head = kv_head * group + index % head_blocks * heads;
    task.heads = std::min(heads, (kv_head + 1) * group - task.first_head);
    kernels.attend(args, task, scratch);
  });
}

}  // namespace flexinfer
