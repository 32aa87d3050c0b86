#include "ports.h"

#include <algorithm>
#include <atomic>
#include <chrono>

#include "context.h"

namespace flexinfer {

using Seconds = std::chrono::duration<double>;

double port_rate(Context& context, PortKernel kernel) {
  constexpr Seconds kLeast = std::chrono::milliseconds{10};
  std::atomic<uint32_t> sink{0};
  Context::Lease lease(context, 0, 0);
  for (int64_t rounds = 1;; rounds *= 2) {
    const auto start = std::chrono::steady_clock::now();
    lease.run(context.threads(), [&](int64_t, void*) { sink.fetch_xor(kernel(rounds), std::memory_order_relaxed); });
    const Seconds elapsed = std::chrono::steady_clock::now() - start;
    if (elapsed >= kLeast)
      return static_cast<double>(rounds * kPortOperations * context.threads()) / elapsed.count();
  }
}

bool dots_pay(PortKernel dots, PortKernel floats) {
  constexpr int kTries = 5;  // in turn, the best of each: others use the machine, too
  constexpr int64_t kRounds = 500;
  std::atomic<uint32_t> sink{0};
  Seconds best[2] = {Seconds::max(), Seconds::max()};
  for (int i = 0; i < 2 * kTries; ++i) {
    const auto start = std::chrono::steady_clock::now();
    sink.fetch_xor((i % 2 ? floats : dots)(kRounds), std::memory_order_relaxed);
    best[i % 2] = std::min(best[i % 2], Seconds(std::chrono::steady_clock::now() - start));
  }
  return best[0] < best[1];
}

}  // namespace flexinfer
