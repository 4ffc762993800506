// A sum of non-negative numbers that does not depend on their order, so threads can add to it as they finish.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace tessera {

// Exact for up to 2^30 numbers that are multiples of 2^-384 and sum to less than 2^320: squares of float32
// values are multiples of 2^-298 and at most 2^256 each. Numbers below 2^-332 count as zero. A fixed-point
// number of 704 bits, held as 22 digits of 32 bits in 64-bit words so that carries can wait. (Kulisch,
// Computer Arithmetic and Validity, 2013.)
class ExactSum {
 public:
  // Adds value >= 0, infinite or NaN.
  void add(double value) {
    const auto bits = std::bit_cast<uint64_t>(value);
    const auto exponent = static_cast<int>(bits >> kFractionBits);
    if (exponent >= kNotFinite) {
      not_finite_ |= std::isnan(value) ? kNan : kInfinity;
      return;
    }
    if (exponent < kLeastExponent) return;
    const uint64_t mantissa = (bits & (kImplicitBit - 1)) | kImplicitBit;
    const int shift = exponent - kExponentBias - kFractionBits - kLowestExponent;
    const auto digit = static_cast<size_t>(shift / kDigitBits);
    const int offset = shift % kDigitBits;
    const uint64_t low = (mantissa & kDigitMask) << offset, high = (mantissa >> kDigitBits) << offset;
    digits_[digit] += low & kDigitMask;
    digits_[digit + 1] += (low >> kDigitBits) + (high & kDigitMask);
    digits_[digit + 2] += high >> kDigitBits;
  }

  // Several threads may do this with the same `to` at once.
  void add_to_shared(ExactSum& to) const {
    for (size_t i = 0; i < kNumDigits; ++i) {
      if (digits_[i] == 0) continue;
      std::atomic_ref(to.digits_[i]).fetch_add(digits_[i], std::memory_order_relaxed);
    }
    if (not_finite_ == 0) return;
    std::atomic_ref(to.not_finite_).fetch_or(not_finite_, std::memory_order_relaxed);
  }

  // Within 2^-52 of the sum; NaN or infinite if an added number was.
  double value() const {
    if ((not_finite_ & kNan) != 0) return std::numeric_limits<double>::quiet_NaN();
    if ((not_finite_ & kInfinity) != 0) return std::numeric_limits<double>::infinity();
    std::array<uint64_t, kNumDigits> digits = digits_;
    for (size_t i = 0; i + 1 < kNumDigits; ++i) {
      digits[i + 1] += digits[i] >> kDigitBits;
      digits[i] &= kDigitMask;
    }
    double sum = 0;
    for (size_t i = kNumDigits; i-- > 0;) {
      sum += std::ldexp(static_cast<double>(digits[i]), static_cast<int>(i) * kDigitBits + kLowestExponent);
    }
    return sum;
  }

 private:
  static constexpr int kFractionBits = 52, kExponentBias = 1023, kNotFinite = 2047;
  static constexpr uint64_t kImplicitBit = uint64_t{1} << kFractionBits;
  static constexpr int kDigitBits = 32, kLowestExponent = -384;
  // A biased double exponent: bits of anything below it would fall off the lowest digit.
  static constexpr int kLeastExponent = kLowestExponent + kFractionBits + kExponentBias;
  static constexpr uint64_t kDigitMask = (uint64_t{1} << kDigitBits) - 1;
  static constexpr size_t kNumDigits = 22;
  static constexpr uint32_t kInfinity = 1, kNan = 2;

  std::array<uint64_t, kNumDigits> digits_ = {};
  uint32_t not_finite_ = 0;
};

}  // namespace tessera
