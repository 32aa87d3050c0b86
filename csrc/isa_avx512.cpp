#if defined(__x86_64__)
#define FI_NS avx512
#define FI_SIMD "simd_avx512.h"
#include "isa_kernels.h"

const flexinfer::KernelTable& flexinfer::avx512_kernels() { return avx512::kKernels; }
#endif
