#include "shard/layout/first_not_finite.h"

#include <algorithm>
#include <span>

#include "base/memory.h"
#include "tensor/device.h"

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
  const int64_t count = values.num_elements();
  if (values.is_on_host()) {
    if (values.dtype() == DType::kF32)
      return first_not_finite_of(std::span(values.as<float>(), static_cast<size_t>(count)));
    return first_not_finite_of(std::span(values.as<bf16>(), static_cast<size_t>(count)));
  }
  constexpr int64_t kPiece = int64_t{1} << 22;
  const PageBuffer piece(std::min(kPiece, count) * dtype_bytes(values.dtype()));
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t size = std::min(kPiece, count - begin);
    const TensorView here(piece.data(), values.dtype(), {size});
    copy(values.rows(begin, begin + size), here);
    if (const std::optional<int64_t> at = first_not_finite(here)) return begin + *at;
  }
  return std::nullopt;
}

}  // namespace tessera
