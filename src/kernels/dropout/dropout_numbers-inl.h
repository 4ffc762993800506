// dropout_number() of many elements, for vector code.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_DROPOUT_NUMBERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_DROPOUT_NUMBERS_INL_H_
#undef TESSERA_DROPOUT_NUMBERS_INL_H_
#else
#define TESSERA_DROPOUT_NUMBERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/dropout/dropout.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

using CounterTag = hn::ScalableTag<uint32_t>;
using CounterVec = hn::Vec<CounterTag>;

// Vectors of counters that are computed side by side: their products depend on each other, and registers hold
// this many.
constexpr size_t kCounterVectors = HWY_TARGET <= HWY_AVX3 ? 2 : 1;

// philox4x32() of base/rng.h, a counter in each lane: words are the four of the counter, and on return those
// of the result.
#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void philox_lanes(uint64_t key, CounterVec (&words)[kCounterVectors][4]) {
  const auto wide = [&](size_t word) {
    return static_cast<uint64_t>(hn::GetLane(words[0][word + 1])) << 32 | hn::GetLane(words[0][word]);
  };
  const std::array<uint32_t, 4> result = philox4x32(key, wide(0), wide(2));
  for (size_t word = 0; word < 4; ++word) words[0][word] = hn::Set(CounterTag(), result[word]);
}
#else
HWY_INLINE void philox_lanes(uint64_t key, CounterVec (&words)[kCounterVectors][4]) {
  // A product takes the even lanes alone: the counters of odd lanes are a second set.
  const CounterTag d;
  const hn::RepartitionToWide<CounterTag> d64;
  const auto upper_half = [&](CounterVec product) HWY_ATTR {
    return hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, product)));
  };
  CounterVec halves[2 * kCounterVectors][4];
  for (size_t i = 0; i < kCounterVectors; ++i) {
    for (size_t word = 0; word < 4; ++word) {
      halves[2 * i][word] = words[i][word];
      halves[2 * i + 1][word] = upper_half(words[i][word]);
    }
  }
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (auto& word : halves) {
      const CounterVec product0 = hn::BitCast(d, hn::MulEven(word[0], hn::Set(d, 0xD2511F53u)));
      const CounterVec product1 = hn::BitCast(d, hn::MulEven(word[2], hn::Set(d, 0xCD9E8D57u)));
      word[0] = hn::Xor3(upper_half(product1), word[1], hn::Set(d, k0));
      word[2] = hn::Xor3(upper_half(product0), word[3], hn::Set(d, k1));
      word[1] = product1;
      word[3] = product0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (size_t i = 0; i < kCounterVectors; ++i) {
    for (size_t word = 0; word < 4; ++word) {
      const auto odd = hn::BitCast(d, hn::ShiftLeft<32>(hn::BitCast(d64, halves[2 * i + 1][word])));
      words[i][word] = hn::OddEven(odd, halves[2 * i][word]);
    }
  }
}
#endif

HWY_INLINE CounterVec set_counter(uint64_t value, int half) {
  return hn::Set(CounterTag(), static_cast<uint32_t>(value >> (32 * half)));
}

// Elements whose numbers are computed at once.
HWY_INLINE int64_t dropout_batch() {
  return static_cast<int64_t>(kCounterVectors) * lanes(CounterTag()) * kDropoutGroup;
}
constexpr size_t kMaxDropoutBatch = kCounterVectors * hn::MaxLanes(CounterTag()) * kDropoutGroup;

// The numbers of elements [first, first + dropout_batch()) of a token; `first` is a multiple of
// dropout_batch().
HWY_INLINE void fill_dropout_numbers(uint64_t site, uint64_t token, int64_t first, uint16_t* numbers) {
  const CounterTag d;
  CounterVec words[kCounterVectors][4];
  for (size_t i = 0; i < kCounterVectors; ++i) {
    const auto counter = static_cast<uint64_t>(first / kDropoutGroup) + i * hn::Lanes(d);
    // A power of two divides the counter and is not below the number of lanes: nothing is carried.
    words[i][0] = hn::Or(set_counter(counter, 0), hn::Iota(d, 0));
    words[i][1] = set_counter(counter, 1);
    words[i][2] = set_counter(token, 0);
    words[i][3] = set_counter(token, 1);
  }
  philox_lanes(site, words);
  auto* const to = reinterpret_cast<uint32_t*>(numbers);
  for (size_t i = 0; i < kCounterVectors; ++i)
    hn::StoreInterleaved4(words[i][0], words[i][1], words[i][2], words[i][3], d, to + i * 4 * hn::Lanes(d));
}

// Calls body(i, numbers) with the numbers of element first + i, first + i + 1, ... of a group of
// kDropoutGroup elements, one vector for each, a token in each lane; `low` and `high` have the halves of the
// tokens. For `count` elements from `first` on, a multiple of the group.
template <class Body>
HWY_INLINE void for_each_dropout_number(uint64_t site, CounterVec low, CounterVec high, int64_t first,
                                        int64_t count, const Body& body) {
  const CounterTag d;
  constexpr auto kStep = static_cast<int64_t>(kCounterVectors) * kDropoutGroup;
  for (int64_t begin = 0; begin < count; begin += kStep) {
    CounterVec words[kCounterVectors][4];
    for (size_t i = 0; i < kCounterVectors; ++i) {
      const uint64_t counter = static_cast<uint64_t>((first + begin) / kDropoutGroup) + i;
      words[i][0] = set_counter(counter, 0);
      words[i][1] = set_counter(counter, 1);
      words[i][2] = low;
      words[i][3] = high;
    }
    philox_lanes(site, words);
    for (size_t i = 0; i < kCounterVectors; ++i) {
      for (size_t word = 0; word < 4; ++word) {
        const int64_t element =
            begin + static_cast<int64_t>(i) * kDropoutGroup + 2 * static_cast<int64_t>(word);
        if (element < count) body(element, hn::And(words[i][word], hn::Set(d, 0xFFFFu)));
        if (element + 1 < count) body(element + 1, hn::ShiftRight<16>(words[i][word]));
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
