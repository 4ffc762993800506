// The treatment of subnormal floats, those below the smallest normal one (1.2e-38), in arithmetic.
//
// Softmax probabilities, small gradients and the moments of rarely seen tokens contain many of them, and each
// costs the processor over 100 cycles: training becomes several times slower as the loss falls. AMX treats
// them as zero anyway.
#pragma once

#include <immintrin.h>

namespace tessera {

// Sets "denormals are zero" and "flush to zero" in this thread's MXCSR register for the lifetime of the
// object.
class SubnormalsAreZero {
 public:
  SubnormalsAreZero() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | kDaz | kFtz); }
  ~SubnormalsAreZero() { _mm_setcsr(saved_); }
  SubnormalsAreZero(const SubnormalsAreZero&) = delete;
  SubnormalsAreZero& operator=(const SubnormalsAreZero&) = delete;

 private:
  static constexpr unsigned kDaz = 0x0040;
  static constexpr unsigned kFtz = 0x8000;
  unsigned saved_;
};

}  // namespace tessera
