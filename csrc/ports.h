// How fast the multiply instructions themselves run: the bound that a processor's ports set to every product. Measured,
// for no table knows every processor and its clock.
#pragma once

#include <cstdint>

namespace flexinfer {

constexpr int64_t kPortOperations = 1 << 12;  // of one round, a multiply and an add counted as two

// Each takes so many rounds; what it returns only keeps it from being left out.
using PortKernel = uint32_t (*)(int64_t rounds);

struct PortKernels {
  PortKernel int8;
  PortKernel float32;
  PortKernel bf16;  // as products with BF16 weights are computed
};

class Context;

// Operations per second of all threads together.
double port_rate(Context& context, PortKernel kernel);
// Whether this processor multiplies pairs of bfloat16 faster by `dots`, one instruction, than by `floats`, two float32
// ones. Some have the instruction and run it at a quarter of the rate. Takes some tenths of a millisecond.
bool dots_pay(PortKernel dots, PortKernel floats);

}  // namespace flexinfer
