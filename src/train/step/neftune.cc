#include "train/step/neftune.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/rng.h"

namespace tessera {

NeftuneNoise::NeftuneNoise(double alpha, uint64_t seed) : alpha_(alpha), key_(seed ^ hash_name("neftune")) {}

void NeftuneNoise::begin(int64_t step, std::span<const int64_t> rows, const Dataset& dataset,
                         const PackedBatch& batch) {
  constexpr int kRowBits = 40;
  tokens_.clear();
  for (const int64_t row : rows) {
    const uint64_t stream = (static_cast<uint64_t>(step) << kRowBits) ^ static_cast<uint64_t>(row);
    const auto length = static_cast<uint64_t>(dataset.row_length(row));
    for (uint64_t position = 0; position < length; ++position) tokens_.push_back({stream, position, 0});
  }
  TESSERA_CHECK(std::ssize(tokens_) == batch.num_tokens(), "rows of {} tokens, a batch of {}", tokens_.size(),
                batch.num_tokens());
  for (size_t i = 1; i < batch.cu_seqlens.size(); ++i) {
    const int32_t begin = batch.cu_seqlens[i - 1], end = batch.cu_seqlens[i];
    for (int32_t t = begin; t < end; ++t) tokens_[static_cast<size_t>(t)].sequence_length = end - begin;
  }
}

void NeftuneNoise::fill(int64_t token, std::span<float> noise_D) const {
  if (token >= std::ssize(tokens_)) {
    std::ranges::fill(noise_D, 0.0f);
    return;
  }
  const Token& of = tokens_[static_cast<size_t>(token)];
  const auto D = static_cast<int64_t>(noise_D.size());
  const auto scale = static_cast<float>(alpha_ / std::sqrt(of.sequence_length * static_cast<double>(D)));
  const auto counters = static_cast<uint64_t>(divide_up(D, 4));  // each yields four values
  for (uint64_t i = 0; i < counters; ++i) {
    const std::array<uint32_t, 4> words = philox4x32(key_, of.position * counters + i, of.stream);
    const size_t count = std::min<size_t>(4, noise_D.size() - 4 * i);
    for (size_t j = 0; j < count; ++j) {
      noise_D[4 * i + j] = scale * (static_cast<float>(words[j] >> 8) * 0x1.0p-23f - 1.0f);
    }
  }
}

}  // namespace tessera
