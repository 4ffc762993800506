// The random bits of kernels/rounding_bits.h, for vector code.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_ROUNDING_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#undef TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#else
#define TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/rounding_bits.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Groups whose bits are computed at once.
constexpr int64_t kRoundingGroups = 2;
constexpr int64_t kRoundingBatch = kRoundingGroups * kRoundingGroup;

// rounding_bits() of the elements of kRoundingGroups groups.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void fill_rounding_bits(int64_t step, int64_t group, uint32_t* bits) {
  for (int64_t i = 0; i < kRoundingBatch; ++i) bits[i] = rounding_bits(step, group * kRoundingGroup + i);
}
#else
// philox4x32() of base/rng.h. A vector has half as many counters as lanes: a word is in the even lanes, where
// a product leaves its lower half; in the odd lanes is what is left of other words. So a round is two
// products, two shifts and two sums of three words. They depend on each other: what limits is how many chains
// the processor works on side by side.
HWY_INLINE void fill_rounding_bits(int64_t step, int64_t group, uint32_t* bits) {
  const hn::CappedTag<uint32_t, kRoundingLanes> d;
  const hn::RepartitionToWide<decltype(d)> d64;
  using V = hn::Vec<decltype(d)>;
  // The number of chains that registers hold: 4 with 32 registers, otherwise 2.
  constexpr int64_t kChains = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
  const auto upper_half = [&](V product) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, product)));
  };
  for (int64_t begin = 0; begin < kRoundingGroups * kRoundingLanes; begin += kChains / 2 * lanes(d)) {
    V words[kChains][4];
    for (int64_t chain = 0; chain < kChains; ++chain) {
      // A multiple of lanes(d).
      const auto first = static_cast<uint64_t>(group * kRoundingLanes + begin + chain / 2 * lanes(d));
      const V counters = hn::Or(hn::Set(d, static_cast<uint32_t>(first)), hn::Iota(d, 0));
      words[chain][0] = chain % 2 == 0 ? counters : upper_half(counters);
      words[chain][1] = hn::Set(d, static_cast<uint32_t>(first >> 32));
      words[chain][2] = hn::Set(d, static_cast<uint32_t>(kRoundingStream));
      words[chain][3] = hn::Set(d, static_cast<uint32_t>(kRoundingStream >> 32));
    }
    auto k0 = static_cast<uint32_t>(step), k1 = static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32);
    for (int round = 0; round < 10; ++round) {
      for (auto& word : words) {
        const V product0 = hn::BitCast(d, hn::MulEven(word[0], hn::Set(d, 0xD2511F53u)));
        const V product1 = hn::BitCast(d, hn::MulEven(word[2], hn::Set(d, 0xCD9E8D57u)));
        word[0] = hn::Xor3(upper_half(product1), word[1], hn::Set(d, k0));
        word[2] = hn::Xor3(upper_half(product0), word[3], hn::Set(d, k1));
        word[1] = product1;
        word[3] = product0;
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (int64_t chain = 0; chain < kChains; chain += 2) {
      const int64_t lane = begin + chain / 2 * lanes(d);
      uint32_t* const to = bits + lane / kRoundingLanes * kRoundingGroup + lane % kRoundingLanes;
      for (int64_t word = 0; word < 4; ++word) {
        const V odd = hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(d64, words[chain + 1][word])));
        hn::StoreU(hn::OddEven(odd, words[chain][word]), d, to + word * kRoundingLanes);
      }
    }
  }
}
#endif

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
