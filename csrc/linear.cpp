// How the product kernels are split over a Context's threads: by whole groups, which no result depends on.
#include "linear.h"

#include <algorithm>
#include <atomic>
#include <iterator>

#include "context.h"

namespace flexinfer {
namespace {

constexpr int64_t kTasksPerThread = 4;       // enough to even out a late thread, few enough to read long runs
constexpr int64_t kGroupsTogether = 2;       // kernels compute two at a time where there are many tokens
constexpr int64_t kTaskBytes = 32 << 10;     // of weights, times tokens: less is not worth another thread
constexpr int64_t kTaskValues = 16384;       // of activations to quantise
constexpr int64_t kReadBytes = 1 << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Calls f(first, last, scratch) over [0, count) in runs of per_task.
template <class F>
void for_runs(Context& context, int64_t count, int64_t per_task, size_t scratch_bytes, const F& f) {
  Context::Lease(context, 0, scratch_bytes).run(ceil_div(count, per_task), [&](int64_t task, void* scratch) {
    f(task * per_task, std::min(count, (task + 1) * per_task), static_cast<uint8_t*>(scratch));
  });
}

int64_t groups_per_task(const Context& context, int64_t groups, int64_t group_bytes, int64_t tokens) {
  const int64_t least = ceil_div(kTaskBytes, group_bytes * tokens);
  return ceil_div(std::max(least, ceil_div(groups, kTasksPerThread * context.threads())), kGroupsTogether) *
         kGroupsTogether;
}

}  // namespace

const TypeKernels* find_type(const Context& context, int type_id) {
  const LinearKernels& kernels = context.kernels().linear;
  const auto* type = std::find_if(std::begin(kernels.types), std::end(kernels.types),
                                  [=](const TypeKernels& t) { return t.id == type_id; });
  return type == std::end(kernels.types) ? nullptr : type;
}

int64_t activation_bytes(int64_t columns) {
  return ceil_div(columns / kActivationValues * static_cast<int64_t>(sizeof(ActivationBlock)), 64) * 64;
}

void quantize(Context& context, const float* x, int64_t x_stride, int64_t tokens, int64_t columns, uint8_t* out,
              int64_t out_stride_bytes) {
  const auto kernel = context.kernels().linear.quantize;
  for_runs(context, tokens, std::max<int64_t>(1, kTaskValues / columns), 0, [&](int64_t first, int64_t last, uint8_t*) {
    for (int64_t t = first; t < last; ++t)
      kernel(x + t * x_stride, columns, reinterpret_cast<ActivationBlock*>(out + t * out_stride_bytes));
  });
}

void interleave(Context& context, const TypeKernels& type, const uint8_t* source, int64_t rows, int64_t columns,
                uint8_t* destination) {
  const int64_t row_bytes = columns / type.block_columns * type.block_bytes, group_bytes = kGroupRows * row_bytes;
  const int64_t groups = ceil_div(rows, kGroupRows);
  for_runs(context, groups, groups_per_task(context, groups, group_bytes, 1), 0,
           [&](int64_t first, int64_t last, uint8_t*) {
             for (int64_t g = first; g < last; ++g)
               type.interleave(source + g * group_bytes, std::min(kGroupRows, rows - g * kGroupRows), columns,
                               destination + g * group_bytes);
           });
}

void linear(Context& context, const TypeKernels& type, const LinearJob& of) {
  LinearJob job = of;
  job.fetches_ahead = context.fetches_ahead();
  const int64_t groups = ceil_div(job.rows, kGroupRows);
  const int64_t group_bytes = kGroupRows * (job.columns / type.block_columns) * type.block_bytes;
  for_runs(context, groups, groups_per_task(context, groups, group_bytes, job.tokens),
           context.kernels().linear.scratch_bytes,
           [&](int64_t first, int64_t last, uint8_t* scratch) { type.linear(job, first, last, scratch); });
}

void read_all(Context& context, const uint8_t* memory, int64_t bytes) {
  std::atomic<uint32_t> sink{0};
  for_runs(context, bytes, kReadBytes, 0, [&](int64_t first, int64_t last, uint8_t*) {
    sink.fetch_xor(context.kernels().linear.read(memory + first, last - first), std::memory_order_relaxed);
  });
}

}  // namespace flexinfer
