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

int64_t max_encoded_bytes(const StoredParts& parts) {
  int64_t bytes = 0;
  for (size_t part = 0; part < parts.count(); ++part) {
    bytes += round_up(parts.bytes(part, kStatePieceElements), kCacheLineBytes);
  }
  return bytes;
}

EncodedSizes encoded_sizes(const StatePiece& piece, const StoredParts& parts) {
  EncodedSizes sizes;
  for (size_t part = 0; part < parts.count(); ++part) {
    sizes.offset_bytes[part] = sizes.total_bytes;
    sizes.size_bytes[part] =
        parts.bytes(part, parts.num_stored(part, *piece.parameter, piece.begin, piece.count));
    sizes.total_bytes += round_up(sizes.size_bytes[part], kCacheLineBytes);
  }
  return sizes;
}

void encode_piece(const StatePiece& piece, int64_t first, int64_t count, const StoredParts& parts,
                  const StateSource& source, std::byte* buffer) {
  const DType model_dtype = parts.model_dtype();
  const EncodedSizes sizes = encoded_sizes(piece, parts);
  const auto part_at = [&](size_t part, int64_t element) {
    return buffer + sizes.offset_bytes[part] + parts.bytes(part, element);
  };
  const int64_t flat = piece.flat_begin() + first;
  std::array<float, kBlockElements> block;
  for (size_t part = StoredParts::kFirstTensor; part < parts.count(); ++part) {
    const StateKind kind = state_kind(part - StoredParts::kFirstTensor);
    const DType dtype = *parts.dtype(part);
    const int64_t num_values = parts.num_stored(part, *piece.parameter, piece.begin + first, count);
    if (num_values == 0) continue;
    if (dtype == DType::kF32) {
      source(kind, flat, {reinterpret_cast<float*>(part_at(part, first)), static_cast<size_t>(num_values)});
      continue;
    }
    for (int64_t done = 0; done < num_values; done += kBlockElements) {
      const auto values =
          std::span(block).first(static_cast<size_t>(std::min(kBlockElements, num_values - done)));
      source(kind, flat + done, values);
      if (is_block_code(dtype)) {
        encode_values(dtype, values, part_at(part, first + done));
        continue;
      }
      std::ranges::transform(values, reinterpret_cast<bf16*>(part_at(part, first + done)), to_bf16);
    }
  }
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const int64_t now = std::min(kBlockElements, count - done);
    const std::span<float> masters(block.data(), static_cast<size_t>(now));
    source(StateKind::kMaster, flat + done, masters);
    std::byte* model = part_at(StoredParts::kModel, first + done);
    encode_block(model_dtype, masters, model, part_at(StoredParts::kMaster, first + done));
    if (holds_non_finite(model_dtype, model, now)) {
      check_saved_weights(*piece.parameter, piece.begin + first + done, masters, model_dtype, model);
    }
  }
}

void decode_masters(const bf16* weights, const int16_t* remainders, std::span<float> masters) {
  for (size_t i = 0; i < masters.size(); ++i) masters[i] = join_master(weights[i], remainders[i]);
}

std::span<const float> decode_values(const std::byte* stored, int64_t skipped, size_t count, DType dtype,
                                     std::vector<float>* buffer) {
  if (dtype == DType::kF32) return {reinterpret_cast<const float*>(stored), count};
  buffer->resize(count);
  if (is_block_code(dtype)) {
    read_codes(dtype, stored, skipped, *buffer);
    return *buffer;
  }
  TESSERA_CHECK(dtype == DType::kBF16, "{}", dtype_name(dtype));
  const std::span values(reinterpret_cast<const bf16*>(stored), count);
  std::ranges::transform(values, buffer->begin(), [](bf16 value) { return to_float(value); });
  return *buffer;
}

}  // namespace tessera
