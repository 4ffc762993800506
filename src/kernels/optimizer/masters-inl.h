// The float32 master weights of a block, as the kernels of optimizers read and write them.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_OPTIMIZER_MASTERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_OPTIMIZER_MASTERS_INL_H_
#undef TESSERA_KERNELS_OPTIMIZER_MASTERS_INL_H_
#else
#define TESSERA_KERNELS_OPTIMIZER_MASTERS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "base/float_types.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements a thread takes at a time, 1 MiB at AdamW's 16 bytes each: with 64 KiB the streams are interrupted
// too often.
constexpr int64_t kUpdateBlock = 64 * 1024;

// Distance between the element being updated and the one being prefetched: 2 KiB of a float32 array. On its
// own, the hardware prefetcher follows AdamW's five arrays at 0.87 of the speed.
constexpr int64_t kUpdatePrefetch = 512;

// Prefetches the cache lines of `count` elements.
template <int kForWriting, typename T>
HWY_INLINE void prefetch_lines(const T* from, int64_t count) {
  for (int64_t i = 0; i < count; i += static_cast<int64_t>(64 / sizeof(T)))
    __builtin_prefetch(from + i, kForWriting);
}

// Float32 weights ...
struct WholeMasters {
  float* weight;

  template <class D, class Access>
  HWY_INLINE hn::Vec<D> load(D d, Access access, int64_t i) const {
    return access.load(d, weight + i);
  }
  template <class D, class Access>
  HWY_INLINE void store(D d, Access access, hn::Vec<D> master, int64_t i) const {
    access.store(d, master, weight + i);
  }
  HWY_INLINE void prefetch(int64_t i, int64_t count) const { prefetch_lines<1>(weight + i, count); }
};

// ... or BF16 weights and their remainders: join_master, master_weight and master_remainder of
// base/float_types.h.
struct SplitMasters {
  bf16* weight;
  int16_t* remainder;

  template <class D, class Access>
  HWY_INLINE hn::Vec<D> load(D d, Access access, int64_t i) const {
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<int32_t, D> di32;
    const auto high = hn::PromoteTo(d32, access.load_raw(hn::Rebind<uint16_t, D>(), &weight[i].bits));
    const auto low = hn::PromoteTo(di32, access.load_raw(hn::Rebind<int16_t, D>(), remainder + i));
    return hn::BitCast(d, hn::Add(hn::ShiftLeft<16>(high), hn::BitCast(d32, low)));
  }
  template <class D, class Access>
  HWY_INLINE void store(D /*d*/, Access access, hn::Vec<D> master, int64_t i) const {
    const hn::Rebind<uint16_t, D> d16;
    const hn::Rebind<int16_t, D> di16;
    const hn::Rebind<uint32_t, D> d32;
    const auto bits = hn::BitCast(d32, master);
    const auto high = hn::ShiftRight<16>(hn::Add(bits, hn::Set(d32, 0x8000u)));
    access.store_raw(d16, hn::TruncateTo(d16, high), &weight[i].bits);
    access.store_raw(di16, hn::BitCast(di16, hn::TruncateTo(d16, bits)), remainder + i);
  }
  HWY_INLINE void prefetch(int64_t i, int64_t count) const {
    prefetch_lines<1>(weight + i, count);
    prefetch_lines<1>(remainder + i, count);
  }
};

// Prefetches what an update of `count` elements reads of masters and gradient kUpdatePrefetch after i;
// harmless beyond the end of an array.
template <class Masters>
HWY_INLINE void prefetch_update(const Masters& masters, const float* gradient, int64_t i, int64_t count) {
  prefetch_lines<0>(gradient + i + kUpdatePrefetch, count);
  masters.prefetch(i + kUpdatePrefetch, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
