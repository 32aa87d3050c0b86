#define FI_NS scalar
#define FI_SIMD "simd_scalar.h"
#include "isa_kernels.h"

const flexinfer::KernelTable& flexinfer::scalar_kernels() { return scalar::kKernels; }
