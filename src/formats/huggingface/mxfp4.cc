#include "formats/huggingface/mxfp4.h"

#include <array>
#include <cmath>

#include "base/error.h"

namespace tessera {
namespace {

constexpr std::array<float, 16> kFp4Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                              -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

// 2^(scale - 127); infinite for 255.
const std::array<float, 256>& powers_of_scales() {
  static const std::array<float, 256> powers = [] {
    std::array<float, 256> all = {};
    for (size_t scale = 0; scale < all.size(); ++scale)
      all[scale] = std::ldexp(1.0f, static_cast<int>(scale) - 127);
    return all;
  }();
  return powers;
}

}  // namespace

void decode_mxfp4_transposed(const Mxfp4Matrix& matrix, int64_t begin, std::span<float> values) {
  const auto [blocks, scales, N, K] = matrix;
  TESSERA_CHECK(K % kMxfp4Block == 0 && std::ssize(blocks) == N * K / 2 &&
                    std::ssize(scales) == N * K / kMxfp4Block && begin >= 0 &&
                    begin + std::ssize(values) <= N * K,
                "elements from {} on of [{}, {}]: {} values, {} bytes of codes, {} of scales", begin, N, K,
                values.size(), blocks.size(), scales.size());
  const std::array<float, 256>& powers = powers_of_scales();
  int64_t k = begin / N, n = begin % N;
  for (float& value : values) {
    const uint8_t pair = blocks[static_cast<size_t>((n * K + k) / 2)];
    const size_t code = k % 2 == 0 ? pair & 15u : pair >> 4u;
    value = kFp4Values[code] * powers[scales[static_cast<size_t>((n * K + k) / kMxfp4Block)]];
    if (++n == N) {
      n = 0;
      ++k;
    }
  }
}

}  // namespace tessera
