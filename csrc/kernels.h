// What one instruction set provides. csrc/isa_*.cpp each compile the same kernels (*_kernels.h) in a namespace of their
// own, so that the linker never shares code built for one instruction set with another.
#pragma once

#include "attention.h"
#include "linear.h"
#include "ops.h"
#include "ports.h"

namespace flexinfer {

struct KernelTable {
  LinearKernels linear;
  OpsKernels ops;
  AttentionKernels attention;
  PortKernels ports;
};

const KernelTable& scalar_kernels();
#if defined(__x86_64__)
const KernelTable& avx2_kernels();        // with FMA and F16C; the caller asks the processor first
const KernelTable& avx512_kernels();      // F, BW, VL, DQ and VNNI; the same
const KernelTable& avx512bf16_kernels();  // and BF16
#endif

}  // namespace flexinfer
