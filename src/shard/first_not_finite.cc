#include "shard/first_not_finite.h"

#include <algorithm>
#include <span>
#include <vector>

namespace tessera {
namespace {

template <typename T>
std::optional<int64_t> first_not_finite_of(std::span<const T> values) {
  const auto found =
      std::find_if(values.begin(), values.end(), [](const T& value) { return !is_finite(value); });
  if (found == values.end()) return std::nullopt;
  return found - values.begin();
}

}  // namespace

std::optional<int64_t> first_not_finite(ConstTensorView values) {
  const auto count = static_cast<size_t>(values.num_elements());
  if (values.dtype() == DType::kF32) return first_not_finite_of(std::span(values.as<float>(), count));
  return first_not_finite_of(std::span(values.as<bf16>(), count));
}

std::string first_not_finite(const ParameterLayout& layout, ConstTensorView values) {
  constexpr int64_t kPiece = int64_t{1} << 22;
  std::vector<float> piece;
  for (const Parameter& parameter : layout.parameters()) {
    const int64_t end = parameter.offset + parameter.num_elements;
    for (int64_t begin = parameter.offset; begin < end; begin += kPiece) {
      ConstTensorView part = values.rows(begin, std::min(begin + kPiece, end));
      if (!part.is_on_host()) {
        piece.resize(static_cast<size_t>(part.num_elements()));
        const TensorView here(piece.data(), DType::kF32, part.shape());
        copy(part, here);
        part = here;
      }
      if (first_not_finite(part)) return parameter.name;
    }
  }
  return "";
}

}  // namespace tessera
