#include "checkpoint/piece_codec.h"

#include <algorithm>

#include "base/error.h"
#include "base/float_types.h"
#include "base/memory.h"
#include "checkpoint/model_folder.h"

namespace tessera {
namespace {

// Masters go through a stack buffer of 16 KiB, which stays in L1.
constexpr int64_t kBlockElements = 4096;

// Branch-free, so that it vectorizes.
template <typename T>
bool any_not_finite(const std::byte* values, int64_t count) {
  bool any = false;
  for (int64_t i = 0; i < count; ++i) any |= !is_finite(reinterpret_cast<const T*>(values)[i]);
  return any;
}

bool holds_non_finite(DType dtype, const std::byte* values, int64_t count) {
  switch (dtype) {
    case DType::kF32:
      return any_not_finite<float>(values, count);
    case DType::kBF16:
      return any_not_finite<bf16>(values, count);
    default:
      return any_not_finite<f16>(values, count);
  }
}

void encode_block(DType model_dtype, std::span<const float> masters, std::byte* model, std::byte* master) {
  round_to_saved(masters, model_dtype, model);
  if (model_dtype == DType::kBF16) {
    std::transform(masters.begin(), masters.end(), reinterpret_cast<int16_t*>(master), master_remainder);
  } else if (model_dtype == DType::kF16) {
    std::copy(masters.begin(), masters.end(), reinterpret_cast<float*>(master));
  }
}

}  // namespace

EncodedSizes encoded_sizes(int64_t count, DType model_dtype) {
  EncodedSizes sizes;
  for (int part = 0; part < kNumParts; ++part) {
    const auto dtype = part_dtype(static_cast<StoredPart>(part), model_dtype);
    const auto at = static_cast<size_t>(part);
    sizes.offset_bytes[at] = sizes.total_bytes;
    sizes.size_bytes[at] = dtype ? count * dtype_bytes(*dtype) : 0;
    sizes.total_bytes += round_up(sizes.size_bytes[at], kCacheLineBytes);
  }
  return sizes;
}

void encode_piece(const StatePiece& piece, int64_t first, int64_t count, DType model_dtype,
                  const StateSource& source, std::byte* buffer) {
  const EncodedSizes sizes = encoded_sizes(piece.count, model_dtype);
  const auto part_at = [&](StoredPart part, int64_t element) {
    const auto at = static_cast<size_t>(part);
    return buffer + sizes.offset_bytes[at] +
           element * dtype_bytes(part_dtype(part, model_dtype).value_or(DType::kU8));
  };
  const int64_t flat = piece.flat_begin() + first;
  for (const auto& [kind, part] : {std::pair(StateKind::kExpAvg, StoredPart::kExpAvg),
                                   std::pair(StateKind::kExpAvgSq, StoredPart::kExpAvgSq)}) {
    source(kind, flat, {reinterpret_cast<float*>(part_at(part, first)), static_cast<size_t>(count)});
  }
  std::array<float, kBlockElements> block;
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const int64_t now = std::min(kBlockElements, count - done);
    const std::span<float> masters(block.data(), static_cast<size_t>(now));
    source(StateKind::kMaster, flat + done, masters);
    std::byte* model = part_at(StoredPart::kModel, first + done);
    encode_block(model_dtype, masters, model, part_at(StoredPart::kMaster, first + done));
    if (holds_non_finite(model_dtype, model, now)) {
      check_saved_weights(*piece.parameter, piece.begin + first + done, masters, model_dtype, model);
    }
  }
}

void decode_masters(const bf16* weights, const int16_t* remainders, std::span<float> masters) {
  for (size_t i = 0; i < masters.size(); ++i) masters[i] = join_master(weights[i], remainders[i]);
}

}  // namespace tessera
