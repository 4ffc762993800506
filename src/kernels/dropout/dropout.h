// Dropout whose mask is a function of site, token and element alone, whichever rank, thread or micro-batch
// computes it, and whenever. Srivastava et al., 2014.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "base/rng.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// A 16-bit number decides for each element, so `probability` is rounded to a multiple of 2^-16.
struct Dropout {
  float probability = 0;                  // of being dropped, below 1
  uint64_t site = 0;                      // of the seed, the layer and the place there
  std::span<const uint64_t> tokens = {};  // [T] a number for every token

  bool drops() const { return probability > 0; }
  // An element is dropped if its number is below this.
  uint32_t threshold() const { return static_cast<uint32_t>(std::lround(probability * 0x1p16f)); }
  // Of what is kept.
  float scale() const { return 1 / (1 - static_cast<float>(threshold()) * 0x1p-16f); }
  Dropout rows(int64_t begin, int64_t end) const {
    return {probability, site,
            tokens.empty() ? tokens
                           : tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))};
  }
};

// Elements of a token whose numbers are the bits of one counter.
inline constexpr int64_t kDropoutGroup = 8;

// The number of an element of a token.
constexpr uint32_t dropout_number(uint64_t site, uint64_t token, int64_t element) {
  const std::array<uint32_t, 4> words =
      philox4x32(site, static_cast<uint64_t>(element / kDropoutGroup), token);
  return words[static_cast<size_t>(element % kDropoutGroup / 2)] >> (16 * (element % 2)) & 0xFFFF;
}

// In attention, the element of a query's token for a key, `key` places into its sequence.
constexpr int64_t dropout_element(int64_t head, int64_t key) { return head << 32 | key; }

// y_TD = or += x_TD / (1 - probability) where an element is kept, otherwise 0. y may be x.
void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update, ThreadPool& pool);

}  // namespace tessera
