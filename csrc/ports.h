// How fast the multiply instructions themselves run: the bound that a processor's ports set to every product. Measured,
// for no table knows every processor and its clock.
#pragma once

#include <cstdint>

namespace flexinfer {

constexpr int64_t kPortOperations = 1 << 12;  // of one round, a multiply and an add counted as two

struct PortKernels {
  uint32_t (*int8)(int64_t rounds);
  uint32_t (*float32)(int64_t rounds);
};

class Context;

// Operations per second of all threads together: int8 products, or float32 ones.
double port_rate(Context& context, bool floats);

}  // namespace flexinfer
