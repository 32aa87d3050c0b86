// What every kernel call runs in: the thread pool, the kernels of one instruction set, and scratch memory.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "kernels.h"
#include "pool.h"

namespace flexinfer {

// Names of the instruction sets that this build has and this processor runs, the best last.
std::vector<std::string> available_isas();

// 64-byte aligned memory that only grows; its content does not survive growing.
class Scratch {
 public:
  void* reserve(size_t bytes);  // throws std::bad_alloc
  void* data() const { return memory_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_;
  size_t bytes_ = 0;
};

class Context {
 public:
  // Throws std::invalid_argument for threads < 1 and for an ISA that is unknown or unavailable; none = the best.
  explicit Context(int threads, const std::optional<std::string>& isa = std::nullopt);

  int threads() const { return pool_.threads(); }
  const KernelTable& kernels() const { return kernels_; }
  const std::string& isa() const { return isa_; }
  // Intel's processors read a quarter more of memory where a product for one or two tokens fetches ahead, AMD's less.
  bool fetches_ahead() const { return fetches_ahead_; }
  size_t scratch_bytes() const;

  // Exclusive use of the pool and the scratch until it is destroyed: calls from several Python threads take turns.
  // All scratch is allocated here, before any task runs, so tasks never fail.
  class Lease {
   public:
    Lease(Context& context, size_t shared_bytes, size_t bytes_per_thread);

    void* shared() const { return context_.shared_.data(); }

    // Calls f(task, scratch) once for every task in [0, tasks); scratch is bytes_per_thread of the running thread.
    template <class F>
    void run(int64_t tasks, F&& f) {
      context_.pool_.run(tasks, [&](int64_t task, int thread) { f(task, context_.scratch_[thread].data()); });
    }

   private:
    Context& context_;
    std::lock_guard<std::mutex> turn_;
  };

 private:
  std::string isa_;
  const KernelTable& kernels_;
  bool fetches_ahead_;
  Scratch shared_;
  std::vector<Scratch> scratch_;
  mutable std::mutex turn_;
  Pool pool_;
};

}  // namespace flexinfer
