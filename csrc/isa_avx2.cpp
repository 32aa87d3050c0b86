#if defined(__x86_64__)
#define FI_NS avx2
#define FI_SIMD "simd_avx2.h"
#include "isa_kernels.h"

const flexinfer::KernelTable& flexinfer::avx2_kernels() { return avx2::kKernels; }
#endif
