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
#include <type_traits>

#include "kernels/block_code/block_code.h"
#include "kernels/optimizer/masters-inl.h"
#include "kernels/rounding_bits-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// A block while it is updated: its codes and the new magnitudes, the largest of which sets the block's scale.
// Magnitudes are of the values (I8) or of their square roots (U8). `i` is the block's first element, counted
// from `codes`.
template <int kMantissaBits>
class BlockUpdate {
  static constexpr bool kIsSigned = kMantissaBits == kSignedMantissaBits;
  using D = FloatTag;
  using D32 = hn::Rebind<int32_t, D>;
  using DU32 = hn::Rebind<uint32_t, D>;
  using D8 = hn::Rebind<std::conditional_t<kIsSigned, int8_t, uint8_t>, D>;
  using V = hn::Vec<D>;
  using V32 = hn::Vec<D32>;
  using VU32 = hn::Vec<DU32>;

 public:
  HWY_INLINE BlockUpdate(std::byte* codes, int64_t i)
      : block_(reinterpret_cast<uint8_t*>(codes) + i / kCodeBlock * kCodeBlockBytes),
        base_(hn::Set(D32(), (block_[0] - 15) << 23)),
        zero_(hn::Set(D32(), block_[0] == kNotFiniteScale ? 0x7FC00000 : 0)),
        largest_(hn::Zero(DU32())) {
    constexpr int64_t kAhead = kUpdatePrefetch / kCodeBlock * kCodeBlockBytes;
    __builtin_prefetch(block_ + kAhead, /*rw=*/1);
  }

  // Lanes(D) magnitudes from element i of the block on; NaN if the block is not finite, whose codes are all
  // 0. I8: with their signs.
  HWY_INLINE V load(int64_t i) const {
    const D32 d32;
    const auto* const from = reinterpret_cast<const hn::TFromD<D8>*>(block_ + 1 + i);
    const V32 code = hn::PromoteTo(d32, hn::LoadU(D8(), from));
    V32 bits = hn::ShiftLeft<23 - kMantissaBits>(code), is_not_zero = code;
    if (kIsSigned) {
      bits = hn::And(bits, hn::Set(d32, static_cast<int32_t>(0x87F00000)));  // the sign was extended
      is_not_zero = hn::And(code, hn::Set(d32, 0x7F));
    }
    const V32 offset = hn::IfThenElse(hn::Eq(is_not_zero, hn::Zero(d32)), zero_, base_);
    return hn::BitCast(D(), hn::Add(bits, offset));
  }
  // Keeps what load() gives next.
  HWY_INLINE void keep(V value, int64_t i) {
    values_[i / lanes(D())] = hn::BitCast(D32(), value);
    largest_ = hn::Max(largest_, hn::BitCast(DU32(), magnitude(values_[i / lanes(D())])));
  }
  // Codes the kept values, rounded with 16 bits of each of the random words from kShift on.
  template <int kShift>
  HWY_INLINE void store(const uint32_t* random) const {
    const D32 d32;
    const uint32_t max_bits = hn::GetLane(hn::MaxOfLanes(DU32(), largest_)) & 0x7FFFFFFF;
    const uint32_t scale = block_scale<kMantissaBits>(max_bits);
    block_[0] = static_cast<uint8_t>(scale);
    if (scale == kNotFiniteScale) {
      std::memset(block_ + 1, 0, static_cast<size_t>(kCodeBlock));
      return;
    }
    const V32 base = hn::Set(d32, static_cast<int32_t>((scale - 15) << kMantissaBits));
    for (int64_t i = 0; i < kCodeBlock; i += lanes(D())) {
      const V32 bits = values_[i / lanes(D())];
      const VU32 words = hn::LoadU(DU32(), random + i);
      // In the upper 16 of the bits that are cut off.
      constexpr int kPlace = 7 - kMantissaBits;
      const V32 places = hn::BitCast(d32, kShift == 0 ? hn::ShiftLeft<kPlace>(words)
                                                      : hn::ShiftRight<std::max(0, kShift - kPlace)>(words));
      const V32 noise = hn::And(places, hn::Set(d32, 0xFFFF << kPlace));
      V32 code = hn::Sub(hn::ShiftRight<23 - kMantissaBits>(hn::Add(magnitude(bits), noise)), base);
      if (kIsSigned) {
        const V32 sign = hn::And(hn::ShiftRight<24>(bits), hn::Set(d32, 0x80));
        code = hn::Or(hn::Max(code, hn::Zero(d32)), sign);
      } else {
        code = hn::IfThenElseZero(hn::Ne(bits, hn::Zero(d32)), hn::Max(code, hn::Set(d32, 1)));
      }
#if HWY_TARGET <= HWY_AVX3
      _mm_storeu_si128(reinterpret_cast<__m128i*>(block_ + 1 + i), _mm512_cvtepi32_epi8(code.raw));
#else
      const hn::Rebind<uint8_t, D> d8;
      hn::StoreU(hn::DemoteTo(d8, code), d8, block_ + 1 + i);
#endif
    }
  }

 private:
  // Square roots are not negative.
  static HWY_INLINE V32 magnitude(V32 bits) {
    return kIsSigned ? hn::And(bits, hn::Set(D32(), 0x7FFFFFFF)) : bits;
  }

  uint8_t* block_;
  V32 base_, zero_;
  VU32 largest_;
  V32 values_[kCodeBlock / hn::MaxLanes(D())];
};

// The elements of a whole block ...
struct WholeBlock {
  HWY_INLINE WholeVector access(int64_t /*lane*/) const { return {}; }
};
// ... or of a partial last block: elements past its end load as 0 and so stay 0 in the codes.
struct PartialBlock {
  int64_t count;

  HWY_INLINE PartialVector access(int64_t lane) const {
    return {static_cast<size_t>(std::clamp(count - lane, int64_t{0}, lanes(FloatTag())))};
  }
};

// Calls body(elements, i, random bits of the block) for the blocks of elements [begin, end) of an array whose
// first is `first_element` of all parameters; elements.access(lane) accesses a vector of them.
template <class Body>
HWY_INLINE void for_each_code_block(int64_t begin, int64_t end, int64_t first_element, int64_t step,
                                    const Body& body) {
  alignas(64) uint32_t random[kRoundingBatch];
  int64_t filled = 0;  // elements whose bits are left
  for (int64_t i = begin; i < end; i += kCodeBlock, filled -= kCodeBlock) {
    const int64_t place = (first_element + i) % kRoundingGroup;
    if (filled == 0) {
      fill_rounding_bits(step, (first_element + i) / kRoundingGroup, random);
      filled = kRoundingBatch - place;
    }
    const uint32_t* const bits = random + kRoundingBatch - filled;
    if (end - i >= kCodeBlock) {
      body(WholeBlock(), i, bits);
    } else {
      body(PartialBlock{end - i}, i, bits);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
