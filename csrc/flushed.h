// Subnormal numbers as zeros, in which a chain of fused multiply-adds equals the processors' bfloat16 products.
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace flexinfer::FI_NS {

// While it lives, this thread's arithmetic takes and gives zeros, with their sign, for subnormal numbers. What is
// computed meanwhile belongs into a function that is not inlined, for the compiler may move arithmetic across.
class FlushedSubnormals {
 public:
#if defined(__x86_64__)
  FI_INLINE FlushedSubnormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | kFlushToZero | kDenormalsAreZero); }
  FI_INLINE ~FlushedSubnormals() { _mm_setcsr(before_); }
  FlushedSubnormals(const FlushedSubnormals&) = delete;

 private:
  static constexpr unsigned kFlushToZero = 1u << 15, kDenormalsAreZero = 1u << 6;
  const unsigned before_;
#else
  FlushedSubnormals() {}
#endif
};

}  // namespace flexinfer::FI_NS
