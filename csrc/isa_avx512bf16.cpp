// AVX-512 with bfloat16 products: other kernels for BF16 weights, all else as in AVX-512.
#if defined(__x86_64__)
#define FI_NS avx512bf16
#include "kernels.h"
#include "simd_avx512bf16.h"
#include "math.h"

#include "dot_kernels.h"

const flexinfer::KernelTable& flexinfer::avx512bf16_kernels() {
  static const KernelTable kernels = [] {
    KernelTable table = avx512_kernels();
    for (TypeKernels& type : table.linear.types)
      if (type.id == avx512bf16::BF16::kId) type = avx512bf16::kTypeKernels<avx512bf16::BF16Dots>;
    table.ports.bf16 = avx512bf16::port_dots;
    return table;
  }();
  return kernels;
}
#endif
