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
static constexpr KernelTable kKernels{kLinearKernels, kOpsKernels, kAttentionKernels, kPortKernels};
}
