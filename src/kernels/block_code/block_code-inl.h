// The codes of kernels/block_code/block_code.h in vectors of float32.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_BLOCK_CODE_BLOCK_CODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_BLOCK_CODE_BLOCK_CODE_INL_H_
#undef TESSERA_KERNELS_BLOCK_CODE_BLOCK_CODE_INL_H_
#else
#define TESSERA_KERNELS_BLOCK_CODE_BLOCK_CODE_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/block_code/block_code.h"
#include "kernels/rounding_bits-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Codes prefetched ahead of a block: of as many elements as in masters-inl.h.
constexpr int64_t kCodePrefetchBytes = 512 / kCodeBlock * kCodeBlockBytes;

// A block while it is updated: its codes, and beside them the new magnitudes, of which the largest decides
// how they are coded. I8: of the values; U8: of their square roots.
template <int kMantissaBits>
class BlockUpdate {
  using D = FloatTag;
  using D32 = hn::Rebind<int32_t, D>;
  using D8 = hn::Rebind<uint8_t, D>;
  using V = hn::Vec<D>;
  using V32 = hn::Vec<D32>;

 public:
  explicit BlockUpdate(std::byte* block)
      : block_(reinterpret_cast<uint8_t*>(block)), scale_(block_[0]), largest_(hn::Zero(D32())) {}

  // Lanes(D) magnitudes from element i on; NaN if the block is not finite. I8: with their signs.
  HWY_INLINE V load(int64_t i) const {
    const D32 d32;
    const V32 byte = hn::PromoteTo(d32, hn::LoadU(D8(), block_ + 1 + i));
    const V32 code = is_signed() ? hn::And(byte, hn::Set(d32, 0x7F)) : byte;
    const V32 base = hn::Set(d32, static_cast<int32_t>((scale_ - 15) << 23));
    const V32 shifted = hn::Add(hn::ShiftLeft<23 - kMantissaBits>(code), base);
    V32 bits = hn::IfThenZeroElse(hn::Eq(code, hn::Zero(d32)), shifted);
    if (is_signed()) bits = hn::Or(bits, hn::ShiftLeft<24>(hn::AndNot(hn::Set(d32, 0x7F), byte)));
    const V32 nan = hn::Set(d32, scale_ == kNotFiniteScale ? 0x7FC00000 : 0);
    return hn::BitCast(D(), hn::Or(bits, nan));
  }
  // Keeps what load() gives next.
  HWY_INLINE void keep(V value, int64_t i) {
    const D32 d32;
    const V32 bits = hn::BitCast(d32, value);
    largest_ = hn::Max(largest_, hn::And(bits, hn::Set(d32, 0x7FFFFFFF)));
    hn::StoreU(bits, d32, values_ + i);
  }
  // Codes `count` kept values, rounded with 16 bits of each of the random words from kShift on.
  template <int kShift>
  HWY_INLINE void store(int64_t count, const uint32_t* random) {
    const D32 d32;
    scale_ = block_scale<kMantissaBits>(static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d32, largest_))));
    block_[0] = static_cast<uint8_t>(scale_);
    if (scale_ == kNotFiniteScale || count < kCodeBlock) {
      std::memset(block_ + 1, 0, static_cast<size_t>(kCodeBlock));
      if (scale_ == kNotFiniteScale) return;
    }
    const V32 base = hn::Set(d32, static_cast<int32_t>((scale_ - 15) << kMantissaBits));
    for_each_vector(D(), count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
      const V32 bits = hn::LoadU(d32, values_ + i);
      const V32 words = hn::LoadU(d32, reinterpret_cast<const int32_t*>(random) + i);
      // In the upper 16 of the bits that are cut off.
      const auto places = hn::ShiftRight<kShift>(hn::BitCast(hn::RebindToUnsigned<D32>(), words));
      const V32 noise =
          hn::ShiftLeft<7 - kMantissaBits>(hn::And(hn::BitCast(d32, places), hn::Set(d32, 0xFFFF)));
      const V32 magnitude = hn::And(bits, hn::Set(d32, 0x7FFFFFFF));
      V32 code = hn::Sub(hn::ShiftRight<23 - kMantissaBits>(hn::Add(magnitude, noise)), base);
      if (is_signed()) {
        const V32 sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(d32, 0x80));
        code = hn::Or(hn::Max(code, hn::Zero(d32)), sign);
      } else {
        const V32 positive = hn::Max(code, hn::Set(d32, 1));
        code = hn::IfThenZeroElse(hn::Eq(magnitude, hn::Zero(d32)), positive);
      }
      access.store_raw(D8(), hn::DemoteTo(D8(), code), block_ + 1 + i);
    });
  }

 private:
  static constexpr bool is_signed() { return kMantissaBits == kSignedMantissaBits; }

  uint8_t* block_;
  uint32_t scale_;
  V32 largest_;
  // With room for the vector of the last elements.
  alignas(64) int32_t values_[kCodeBlock + hn::MaxLanes(FloatTag())];
};

// Calls body(i, size, random bits of the block) for the blocks of elements [begin, end) of an array whose
// first is `first_element` of all parameters.
template <class Body>
HWY_INLINE void for_each_code_block(int64_t begin, int64_t end, int64_t first_element, int64_t step,
                                    const Body& body) {
  // With room for the vector of the last elements.
  uint32_t random[kRoundingGroup + hn::MaxLanes(FloatTag())] = {};
  for (int64_t i = begin; i < end; i += kCodeBlock) {
    const int64_t element = first_element + i, place = element % kRoundingGroup;
    if (i == begin || place == 0) fill_rounding_bits(step, element / kRoundingGroup, random);
    body(i, std::min(kCodeBlock, end - i), random + place);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
