#include "kernels/quantized_weight/nf4_blocks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// The nearest of kNf4Values to each w / scale; of two equally near ones the lower. 64 at once, so that
// compilers use vectors.
std::array<int32_t, kNf4Block> nf4_codes(const std::array<float, kNf4Block>& w, float scale) {
  const float inverse = scale > 0 ? 1 / scale : 0;
  std::array<int32_t, kNf4Block> codes = {};
  for (size_t i = 0; i + 1 < std::size(kNf4Values); ++i) {
    const float threshold = (kNf4Values[i] + kNf4Values[i + 1]) / 2;
    for (size_t k = 0; k < codes.size(); ++k) codes[k] += w[k] * inverse > threshold ? 1 : 0;
  }
  return codes;
}

std::array<float, 256> make_dynamic_map() {
  constexpr int kExponents = 7;
  std::array<float, 256> map = {0.0f, 1.0f};
  size_t size = 2;
  for (int exponent = 0; exponent < kExponents; ++exponent) {
    // The means of neighbours among 2^exponent + 1 numbers from 0.1 to 1, rounded as torch.linspace does.
    const int last = 1 << exponent;
    const float step = (1.0f - 0.1f) / static_cast<float>(last);
    const auto boundary = [&](int i) {
      return 2 * i < last + 1 - (last + 1) % 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                                               : std::fma(-step, static_cast<float>(last - i), 1.0f);
    };
    const auto power = static_cast<float>(std::pow(10.0, exponent + 1 - kExponents));
    for (int i = 0; i < last; ++i) {
      const float value = power * ((boundary(i) + boundary(i + 1)) / 2);
      map[size++] = value;
      map[size++] = -value;
    }
  }
  std::ranges::sort(map);
  return map;
}

// bitsandbytes looks the nearest value up for 65536 places between -1 and 1.
constexpr int kNumPlaces = 65536;

std::vector<uint8_t> make_nearest_codes() {
  const std::array<float, 256>& map = dynamic_map();
  std::vector<uint8_t> nearest(kNumPlaces);
  size_t code = 0;
  for (int place = 0; place < kNumPlaces; ++place) {
    const float value = -1.0f + (2.0f * static_cast<float>(place)) / (kNumPlaces - 1);
    while (code + 1 < map.size() && 0.5f * (map[code] + map[code + 1]) < value) ++code;
    nearest[static_cast<size_t>(place)] = static_cast<uint8_t>(code);
  }
  return nearest;
}

uint8_t nearest_code(float value) {
  static const std::vector<uint8_t> nearest = make_nearest_codes();
  const float place = (std::clamp(value, -1.0f, 1.0f) + 1.0f) * 0.5f * (kNumPlaces - 1) + 0.5f;
  return nearest[static_cast<size_t>(place)];
}

}  // namespace

const std::array<float, 256>& dynamic_map() {
  static const std::array<float, 256> map = make_dynamic_map();
  return map;
}

Nf4Quantizer::Nf4Quantizer(const QuantizedMatrix<std::byte>& to, int64_t first_row)
    : to_(to), part_(to.part_of(first_row)) {
  TESSERA_CHECK(to.is_4_bit() && part_.first_row == first_row, "row {} of {} x {}", first_row, to.N, to.K);
  if (to_.kind == Quantization::kNf4Double) scales_.resize(static_cast<size_t>(to_.num_blocks(part_)));
}

void Nf4Quantizer::add(std::span<const float> values, ThreadPool& pool) {
  std::vector<float> joined;
  if (!unfinished_.empty()) {
    joined = std::move(unfinished_);
    joined.insert(joined.end(), values.begin(), values.end());
    values = joined;
  }
  const int64_t left = part_.rows * to_.K - num_done_;
  TESSERA_CHECK(std::ssize(values) <= left, "{} elements, {} left", values.size(), left);
  const bool is_last = std::ssize(values) == left;
  const int64_t num_blocks =
      is_last ? divide_up(std::ssize(values), kNf4Block) : std::ssize(values) / kNf4Block;
  const int64_t first = num_done_ / kNf4Block;
  const auto quantize = [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const auto at = static_cast<size_t>(block * kNf4Block);
      quantize_block(values.subspan(at, std::min<size_t>(kNf4Block, values.size() - at)), first + block);
    }
  };
  // If K is odd, a byte may hold codes of two blocks.
  constexpr int64_t kBlocksPerTask = 64;
  if (to_.K % 2 == 0) {
    pool.parallel_blocks(num_blocks, kBlocksPerTask, quantize);
  } else {
    quantize(0, num_blocks);
  }
  const int64_t num_used = std::min(num_blocks * kNf4Block, std::ssize(values));
  num_done_ += num_used;
  unfinished_.assign(values.begin() + num_used, values.end());
  if (is_last && to_.kind == Quantization::kNf4Double) code_scales();
}

void Nf4Quantizer::quantize_block(std::span<const float> from, int64_t block) {
  std::array<float, kNf4Block> values = {};
  std::ranges::copy(from, values.begin());
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  const std::array<int32_t, kNf4Block> codes = nf4_codes(values, largest);
  int64_t row = part_.first_row + block * kNf4Block / to_.K, k = block * kNf4Block % to_.K;
  for (size_t i = 0; i < from.size(); ++i) {
    auto* const byte = reinterpret_cast<uint8_t*>(to_.codes(row)) + k / 2;
    *byte = static_cast<uint8_t>(k % 2 == 0 ? codes[i] << 4 : *byte | codes[i]);
    if (++k < to_.K) continue;
    k = 0;
    ++row;
  }
  if (to_.kind == Quantization::kNf4Double) {
    scales_[static_cast<size_t>(block)] = largest;
  } else {
    reinterpret_cast<float*>(to_.scales())[part_.first_block + block] = largest;
  }
}

void Nf4Quantizer::code_scales() {
  double sum = 0;
  for (const float scale : scales_) sum += scale;
  const auto mean = static_cast<float>(sum / static_cast<double>(scales_.size()));
  float* step = reinterpret_cast<float*>(to_.steps()) + part_.first_step;
  *step++ = mean;
  auto* code = reinterpret_cast<uint8_t*>(to_.scales()) + part_.first_block;
  for (std::span<float> left = scales_; !left.empty();) {
    const std::span<float> group = left.first(std::min<size_t>(kNf4ScaleBlock, left.size()));
    left = left.subspan(group.size());
    float largest = 0;
    for (const float scale : group) largest = std::max(largest, std::abs(scale - mean));
    *step++ = largest;
    const float inverse = largest > 0 ? 1 / largest : 0;
    for (const float scale : group)
      *code++ = largest > 0 ? nearest_code((scale - mean) * inverse) : uint8_t{0};
  }
  scales_ = {};
}

int64_t nf4_scales(const ConstQuantizedMatrix& matrix, int64_t row, int64_t column, int64_t count,
                   float* scales) {
  const auto part = matrix.part_of(row);
  const int64_t at = (row - part.first_row) * matrix.K + column;
  const int64_t first = at / kNf4Block, num_blocks = divide_up(at + count, kNf4Block) - first;
  if (matrix.kind == Quantization::kNf4) {
    const auto* from = reinterpret_cast<const float*>(matrix.scales()) + part.first_block + first;
    std::copy_n(from, num_blocks, scales);
    return at % kNf4Block;
  }
  const std::array<float, 256>& map = dynamic_map();
  const auto* codes = reinterpret_cast<const uint8_t*>(matrix.scales()) + part.first_block;
  const auto* steps = reinterpret_cast<const float*>(matrix.steps()) + part.first_step;
  for (int64_t block = first; block < first + num_blocks; ++block) {
    scales[block - first] = map[codes[block]] * steps[1 + block / kNf4ScaleBlock] + steps[0];
  }
  return at % kNf4Block;
}

}  // namespace tessera
