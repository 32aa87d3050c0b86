#include "context.h"

#include <new>
#include <stdexcept>
#include <string_view>

namespace flexinfer {
namespace {

struct Isa {
  const char* name;
  const KernelTable* kernels;
};

std::vector<Isa> find_available() {
  std::vector<Isa> isas{{"scalar", &scalar_kernels()}};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
    isas.push_back({"avx2", &avx2_kernels()});
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vnni"))
    isas.push_back({"avx512", &avx512_kernels()});
  if (isas.back().name == std::string_view("avx512") && __builtin_cpu_supports("avx512bf16")) {
    const KernelTable& kernels = avx512bf16_kernels();
    const bool pays = dots_pay(kernels.ports.bf16, kernels.ports.float32);
    isas.insert(pays ? isas.end() : isas.end() - 1, Isa{"avx512bf16", &kernels});
  }
#endif
  return isas;
}

// All that this build has and this processor runs, the best last; the same as long as the process lives.
const std::vector<Isa>& available() {
  static const std::vector<Isa> isas = find_available();
  return isas;
}

Isa choose(const std::optional<std::string>& name) {
  const std::vector<Isa>& isas = available();
  if (!name) return isas.back();
  std::string names;
  for (const Isa& isa : isas) {
    if (*name == isa.name) return isa;
    names += (names.empty() ? "" : ", ") + std::string(isa.name);
  }
  throw std::invalid_argument("instruction set '" + *name + "' is not available here; available: " + names);
}

bool is_intel() {
#if defined(__x86_64__)
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

int at_least_one(int threads) {
  if (threads < 1) throw std::invalid_argument("threads must be at least 1, not " + std::to_string(threads));
  return threads;
}

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : available()) names.emplace_back(isa.name);
  return names;
}

void* Scratch::reserve(size_t bytes) {
  if (bytes > bytes_) {
    memory_.reset();  // first free, then allocate: the peak is the new size, not the sum
    bytes_ = 0;
    const size_t rounded = (bytes + 63) / 64 * 64;
    memory_.reset(std::aligned_alloc(64, rounded));
    if (!memory_) throw std::bad_alloc();
    bytes_ = rounded;
  }
  return memory_.get();
}

Context::Context(int threads, const std::optional<std::string>& isa)
    : isa_(choose(isa).name),
      kernels_(*choose(isa).kernels),
      fetches_ahead_(is_intel()),
      scratch_(at_least_one(threads)),
      pool_(threads) {}

size_t Context::scratch_bytes() const {
  const std::lock_guard turn(turn_);
  size_t bytes = shared_.bytes();
  for (const Scratch& scratch : scratch_) bytes += scratch.bytes();
  return bytes;
}

Context::Lease::Lease(Context& context, size_t shared_bytes, size_t bytes_per_thread)
    : context_(context), turn_(context.turn_) {
  context.shared_.reserve(shared_bytes);
  for (Scratch& scratch : context.scratch_) scratch.reserve(bytes_per_thread);
}

}  // namespace flexinfer
