// All kernels, in the namespace FI_NS over the vocabulary of FI_SIMD: the body of every isa_*.cpp.
// No std:: function template may be called in these headers: its instance would be shared between instruction sets.
#include "kernels.h"
#include FI_SIMD
#include "math.h"

#include "linear_kernels.h"

#include "attention_kernels.h"
#include "ops_kernels.h"
#include "ports_kernels.h"

namespace flexinfer::FI_NS {

static constexpr LinearKernels kLinearKernels{
    {kTypeKernels<F32>, kTypeKernels<F16>, kTypeKernels<BF16>, kTypeKernels<Q4_0>, kTypeKernels<Q4_1>,
     kTypeKernels<Q5_0>, kTypeKernels<Q5_1>, kTypeKernels<Q8_0>, kTypeKernels<Q2_K>, kTypeKernels<Q3_K>,
     kTypeKernels<Q4_K>, kTypeKernels<Q5_K>, kTypeKernels<Q6_K>, kTypeKernels<IQ4_NL>, kTypeKernels<IQ4_XS>,
     kTypeKernels<MXFP4>},
    Scratch::kBytes,
    quantize,
    read,
};

static constexpr KernelTable kKernels{kLinearKernels, kOpsKernels, kAttentionKernels, kPortKernels};

}
