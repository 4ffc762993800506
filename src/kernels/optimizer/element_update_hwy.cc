#include <algorithm>

#include "kernels/optimizer/element_update_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/optimizer/element_update_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/block_code/block_code-inl.h"
#include "kernels/optimizer/formulas-inl.h"
#include "kernels/optimizer/masters-inl.h"
#include "kernels/rounding_bits-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

template <class D>
struct SetLanes {
  HWY_INLINE hn::Vec<D> operator()(float value) const { return hn::Set(D(), value); }
};

// The moments of a block, one or two: float32 ...
struct WholeMoments {
  using Element = float;
  std::array<float*, 2> of;

  // Calls body(access, i, random bits from i on) for all vectors of [begin, end).
  template <class D, class Body>
  HWY_INLINE void for_each(D d, int64_t begin, int64_t end, const Body& body) const {
    for_each_vector(d, end - begin,
                    [&](auto access, int64_t i) HWY_ATTR { body(access, begin + i, nullptr); });
  }
  template <class D, class Access>
  HWY_INLINE void store(D d, Access access, hn::Vec<D> value, float* to, const uint32_t* /*random*/,
                        int /*shift*/) const {
    access.store(d, value, to);
  }
};

// ... or BF16, rounded stochastically.
struct RoundedMoments {
  using Element = bf16;
  std::array<bf16*, 2> of;
  int64_t first_element, step;

  template <class D, class Body>
  HWY_INLINE void for_each(D d, int64_t begin, int64_t end, const Body& body) const {
    // The extra room takes the last, partial vector.
    uint32_t bits[kRoundingBatch + hn::MaxLanes(D())] = {};
    while (begin < end) {
      const int64_t group = (first_element + begin) / kRoundingGroup;
      const int64_t place = (first_element + begin) % kRoundingGroup;
      const int64_t count = std::min(end - begin, kRoundingBatch - place);
      fill_rounding_bits(step, group, bits);
      for_each_vector(d, count,
                      [&](auto access, int64_t i) HWY_ATTR { body(access, begin + i, bits + place + i); });
      begin += count;
    }
  }
  // `shift`: of the 16 random bits within the 32 of an element.
  template <class D, class Access>
  HWY_INLINE void store(D /*d*/, Access access, hn::Vec<D> value, bf16* to, const uint32_t* random,
                        int shift) const {
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<uint16_t, D> d16;
    const auto words = hn::LoadU(d32, random);
    const auto noise = shift == 0 ? hn::And(words, hn::Set(d32, 0xFFFFu)) : hn::ShiftRight<16>(words);
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::BitCast(d32, value), noise));
    access.store_raw(d16, hn::TruncateTo(d16, rounded), &to->bits);
  }
};

// The update is memory-bound (AdamW's moves 28 bytes per element): from cache the same code runs twice as
// fast.
template <class Rule, class Masters, class Moments>
HWY_INLINE void update(const Masters& masters, const Moments& moments, std::span<const float> gradients,
                       const typename Rule::Scalars& scalars, ThreadPool& pool) {
  constexpr bool kHasSecond = Rule::kMoments.size() == 2;
  const float* const gradient = gradients.data();
  pool.parallel_blocks(std::ssize(gradients), kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    const FloatTag d;
    typename Moments::Element *const first = moments.of[0], *const second = moments.of[1];
    moments.for_each(d, begin, end, [&](auto access, int64_t i, const uint32_t* random) HWY_ATTR {
      const int64_t ahead = std::min(i + kUpdatePrefetch, end - 1);
      __builtin_prefetch(gradient + ahead, /*rw=*/0);
      __builtin_prefetch(first + ahead, /*rw=*/1);
      if constexpr (kHasSecond) __builtin_prefetch(second + ahead, /*rw=*/1);
      masters.prefetch(ahead, 1);
      hn::Vec<FloatTag> state[2] = {access.load(d, first + i), hn::Zero(d)};
      if constexpr (kHasSecond) state[1] = access.load(d, second + i);
      const auto updated = update_element(scalars, SetLanes<FloatTag>(), masters.load(d, access, i),
                                          access.load(d, gradient + i), state);
      moments.store(d, access, state[0], first + i, random, 0);
      if constexpr (kHasSecond) moments.store(d, access, state[1], second + i, random, 16);
      masters.store(d, access, updated, i);
    });
  });
}

// A moment in codes: of its values, or of their roots.
template <bool kIsSquare>
struct CodedMoment : BlockUpdate<kIsSquare ? kSquareMantissaBits : kSignedMantissaBits> {
  using Codes = BlockUpdate<kIsSquare ? kSquareMantissaBits : kSignedMantissaBits>;
  using V = hn::Vec<FloatTag>;

  HWY_INLINE CodedMoment(std::byte* codes, int64_t i) : Codes(codes, i) {}
  HWY_INLINE V load_value(int64_t lane) const {
    const V code = Codes::load(lane);
    return kIsSquare ? hn::Mul(code, code) : code;
  }
  HWY_INLINE void keep_value(V value, int64_t lane) {
    Codes::keep(kIsSquare ? hn::Sqrt(value) : value, lane);
  }
};

template <class Rule, class Masters>
HWY_INLINE void update_coded(const Masters& masters, const OptimizerBlock& block,
                             const typename Rule::Scalars& scalars, ThreadPool& pool) {
  constexpr bool kHasSecond = Rule::kMoments.size() == 2;
  const float* const gradient = block.gradient.data();
  std::byte *const first_codes = block.state[0], *const second_codes = block.state[kHasSecond ? 1 : 0];
  const int64_t first_element = block.first_element;
  pool.parallel_blocks(std::ssize(block.gradient), kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    // By value: the compiler must assume that a store of codes, which are bytes, changes what it can reach.
    const auto update_block = [=](auto elements, int64_t i, const uint32_t* random) TESSERA_LOOP_BODY {
      const FloatTag d;
      prefetch_update(masters, gradient, i, kCodeBlock);
      CodedMoment<Rule::kMoments[0].is_square> first(first_codes, i);
      CodedMoment<Rule::kMoments[kHasSecond ? 1 : 0].is_square> second(second_codes, i);
      for (int64_t lane = 0; lane < kCodeBlock; lane += lanes(d)) {
        const auto access = elements.access(lane);
        hn::Vec<FloatTag> state[2] = {first.load_value(lane), hn::Zero(d)};
        if constexpr (kHasSecond) state[1] = second.load_value(lane);
        const auto updated = update_element(scalars, SetLanes<FloatTag>(), masters.load(d, access, i + lane),
                                            access.load(d, gradient + i + lane), state);
        first.keep_value(state[0], lane);
        if constexpr (kHasSecond) second.keep_value(state[1], lane);
        masters.store(d, access, updated, i + lane);
      }
      first.template store<0>(random);
      if constexpr (kHasSecond) second.template store<16>(random);
    };
    for_each_code_block(begin, end, first_element, scalars.step, update_block);
  });
}

template <class Rule, class Masters>
HWY_INLINE void update_in_form(const Masters& masters, const OptimizerBlock& block, MomentForm form,
                               const typename Rule::Scalars& scalars, ThreadPool& pool) {
  const std::array<std::byte*, 2> state = {block.state[0],
                                           Rule::kMoments.size() == 2 ? block.state[1] : nullptr};
  if (form == MomentForm::kCodes) {
    update_coded<Rule>(masters, block, scalars, pool);
  } else if (form == MomentForm::kBF16) {
    const RoundedMoments moments = {{reinterpret_cast<bf16*>(state[0]), reinterpret_cast<bf16*>(state[1])},
                                    block.first_element,
                                    scalars.step};
    update<Rule>(masters, moments, block.gradient, scalars, pool);
  } else {
    const WholeMoments moments = {{reinterpret_cast<float*>(state[0]), reinterpret_cast<float*>(state[1])}};
    update<Rule>(masters, moments, block.gradient, scalars, pool);
  }
}

template <class Rule>
HWY_INLINE void update_elements_hwy(const OptimizerBlock& block, MomentForm form,
                                    const typename Rule::Scalars& scalars, ThreadPool& pool) {
  if (block.weights.dtype() == DType::kBF16) {
    update_in_form<Rule>(SplitMasters{block.weights.as<bf16>(), block.remainders}, block, form, scalars,
                         pool);
  } else {
    update_in_form<Rule>(WholeMasters{block.weights.as<float>()}, block, form, scalars, pool);
  }
}

#define TESSERA_DEFINE_KERNELS(Rule, name)                                                       \
  void update_##Rule(const OptimizerBlock& block, MomentForm form, const Rule::Scalars& scalars, \
                     ThreadPool& pool) {                                                         \
    update_elements_hwy<Rule>(block, form, scalars, pool);                                       \
  }                                                                                              \
  const UpdateKernels<Rule> k##Rule = {update_##Rule};
TESSERA_UPDATE_RULES(TESSERA_DEFINE_KERNELS)
#undef TESSERA_DEFINE_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

#define TESSERA_DEFINE_HWY(Rule, name)                                  \
  template <>                                                           \
  std::vector<Implementation<UpdateKernels<Rule>>> update_hwy<Rule>() { \
    return TESSERA_HWY_TABLE(k##Rule);                                  \
  }
TESSERA_UPDATE_RULES(TESSERA_DEFINE_HWY)

}  // namespace tessera
#endif
