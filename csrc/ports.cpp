#include "ports.h"

#include <atomic>
#include <chrono>

#include "context.h"

namespace flexinfer {

double port_rate(Context& context, bool floats) {
  constexpr std::chrono::duration<double> kLeast = std::chrono::milliseconds{10};
  const PortKernels& kernels = context.kernels().ports;
  const auto kernel = floats ? kernels.float32 : kernels.int8;
  std::atomic<uint32_t> sink{0};
  Context::Lease lease(context, 0, 0);
  for (int64_t rounds = 1;; rounds *= 2) {
    const auto start = std::chrono::steady_clock::now();
    lease.run(context.threads(), [&](int64_t, void*) { sink.fetch_xor(kernel(rounds), std::memory_order_relaxed); });
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    if (elapsed >= kLeast)
      return static_cast<double>(rounds * kPortOperations * context.threads()) / elapsed.count();
  }
}

}  // namespace flexinfer
