#include "pool.h"

#include <unistd.h>

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace flexinfer {
namespace {

constexpr std::chrono::microseconds kSpin{50};
constexpr int kPausesPerLook = 32;  // reading the clock is the dearer part of spinning
constexpr uint32_t kOpen = 1u << 31;

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

// On its own cache lines: the counter of tasks is written by all threads, the epoch is what idle ones watch.
struct Pool::Shared {
  alignas(64) std::atomic<uint32_t> epoch{0};    // one step per job (and one to stop): what idle workers wait on
  alignas(64) std::atomic<uint32_t> gate{0};     // kOpen while the job takes workers, plus how many are inside
  alignas(64) std::atomic<int64_t> next_task{0};
  alignas(64) Job job{};                         // written only while the gate is shut and nobody is inside
  std::atomic<bool> stopping{false};
  pid_t owner = getpid();
  bool spins = false;

  void work(int thread) {
    for (int64_t task; (task = next_task.fetch_add(1, std::memory_order_relaxed)) < job.tasks;)
      job.call(job.callable, task, thread);
  }

  bool enter() {
    uint32_t seen = gate.load(std::memory_order_relaxed);
    while (seen & kOpen)
      if (gate.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed)) return true;
    return false;
  }

  void await_next_epoch(uint32_t last) {
    if (spins) {
      const auto until = std::chrono::steady_clock::now() + kSpin;
      do {
        for (int i = 0; i < kPausesPerLook; ++i) {
          if (epoch.load(std::memory_order_acquire) != last) return;
          relax();
        }
      } while (std::chrono::steady_clock::now() < until);
    }
    epoch.wait(last, std::memory_order_acquire);
  }

  void worker(int thread) {
    for (uint32_t last = 0;;) {
      await_next_epoch(last);
      last = epoch.load(std::memory_order_acquire);
      if (stopping.load(std::memory_order_relaxed)) return;
      if (!enter()) continue;
      work(thread);
      gate.fetch_sub(1, std::memory_order_release);
    }
  }
};

Pool::Pool(int threads) : threads_(threads), shared_(std::make_unique<Shared>()) {
  shared_->spins = threads <= static_cast<int>(std::thread::hardware_concurrency());  // counts the affinity mask
  workers_.reserve(threads - 1);
  try {
    for (int thread = 1; thread < threads; ++thread)
      workers_.emplace_back([shared = shared_.get(), thread] { shared->worker(thread); });
  } catch (...) {  // std::system_error: the system gives no more threads
    stop();
    throw;
  }
}

void Pool::stop() {
  shared_->stopping.store(true, std::memory_order_relaxed);
  shared_->epoch.fetch_add(1, std::memory_order_release);
  shared_->epoch.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

Pool::~Pool() {
  if (shared_->owner != getpid()) {
    // A forked child: the workers do not exist here and cannot be joined. What they would use is left alone.
    shared_.release();
    new std::vector<std::thread>(std::move(workers_));
    return;
  }
  stop();
}

void Pool::run_shared(const Job& job) {
  Shared& shared = *shared_;
  shared.job = job;
  shared.next_task.store(0, std::memory_order_relaxed);
  shared.gate.store(kOpen, std::memory_order_release);
  shared.epoch.fetch_add(1, std::memory_order_release);
  shared.epoch.notify_all();  // no system call while nobody sleeps
  shared.work(0);
  shared.gate.fetch_and(~kOpen, std::memory_order_acq_rel);
  for (int spins = 0; shared.gate.load(std::memory_order_acquire) != 0; ++spins) {
    relax();
    if (!shared.spins || spins > 1000) std::this_thread::yield();
  }
}

}  // namespace flexinfer
