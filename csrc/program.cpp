#include "program.h"

#include "context.h"

namespace flexinfer {
namespace {

void apply(Context& context, const Product& op, const Replay& replay) {
  LinearJob job = op.job;
  if (op.request >= 0) job.weights = reinterpret_cast<const uint8_t*>(replay.addresses[op.request]) + op.offset_bytes;
  linear(context, *op.type, job);
}

void apply(Context& context, const CachedAttention& op, const Replay& replay) {
  for (const Span& span : replay.spans) {
    Attention attention = op.attention;
    attention.kv.table = span.tables[op.kind];
    attention.q += span.first * attention.q_stride;
    attention.out += span.first * attention.out_stride;
    attention.tokens = span.tokens;
    attention.start = span.start;
    kv_append(context, attention.kv, op.k.row(span.first), op.k.stride, op.v.row(span.first), op.v.stride, span.tokens,
              span.start);
    flexinfer::attention(context, attention);
  }
}

template <class Other>
void apply(Context& context, const Other& op, const Replay&) {
  run(context, op);
}

}  // namespace

void run(Context& context, const RmsNorm& op) { rms_norm(context, op.x, op.weight, op.eps, op.accumulate, op.out); }

void run(Context& context, const Rope& op) { rope(context, op.x, op.heads, op.angles, op.adjacent); }

void run(Context& context, const Scale& op) { scale(context, op.x, op.factor); }

void run(Context& context, const Softcap& op) { softcap(context, op.x, op.cap); }

void run(Context& context, const Quantize& op) {
  quantize(context, op.x, op.x_stride, op.tokens, op.columns, op.out, op.out_stride_bytes);
}

void run(Context& context, const Product& op) { linear(context, *op.type, op.job); }

void Program::run(int64_t first, int64_t last, const Replay& replay) const {
  for (int64_t i = first; i < last; ++i) std::visit([&](const auto& op) { apply(context_, op, replay); }, ops_[i]);
}

}  // namespace flexinfer
