#include "checkpoint/piece_codec.h"

#include <algorithm>

#include "base/error.h"
#include "base/float_types.h"
#include "base/memory.h"
#include "weights/model_folder.h"

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
    bytes += round_up(parts.bytes(part, kParameterPieceElements), kCacheLineBytes);
  }
  return bytes;
}

EncodedSizes encoded_sizes(const ParameterPiece& piece, const StoredParts& parts) {
  EncodedSizes sizes;
  for (size_t part = 0; part < parts.count(); ++part) {
    sizes.offset_bytes[part] = sizes.total_bytes;
    sizes.size_bytes[part] =
        parts.bytes(part, parts.num_stored(part, *piece.parameter, piece.begin, piece.count));
    sizes.total_bytes += round_up(sizes.size_bytes[part], kCacheLineBytes);
  }
  return sizes;
}

namespace {

// A piece, and where it is encoded.
struct Encoding {
  const ParameterPiece& piece;
  const StoredParts& parts;
  const EncodedSizes sizes;
  std::byte* buffer;

  int64_t num_values(size_t part) const {
    return parts.num_stored(part, *piece.parameter, piece.begin, piece.count);
  }
  std::byte* at(size_t part, int64_t element) const {
    return buffer + sizes.offset_bytes[part] + parts.bytes(part, element);
  }
};

// Copies the values of the part from `stored` if it has them in the form in which they are saved.
bool copy_stored(const Encoding& to, size_t part, const StoredSource& stored, InFile in_file) {
  const std::optional<DType> dtype = to.parts.dtype(part);
  if (!stored || !dtype) return false;
  return stored(part, *dtype, to.piece.flat_begin(), to.num_values(part),
                [&](int64_t done, std::span<const std::byte> bytes, const FileBytes* place) {
                  std::ranges::copy(bytes, to.at(part, done));
                  if (place != nullptr) in_file(part, to.parts.bytes(part, done), *place);
                });
}

void encode_tensor(const Encoding& to, size_t part, const StateSource& source) {
  const StateKind kind = StoredParts::kind(part);
  const DType dtype = *to.parts.dtype(part);
  const int64_t flat = to.piece.flat_begin(), count = to.num_values(part);
  if (dtype == DType::kF32) {
    source(kind, flat, {reinterpret_cast<float*>(to.at(part, 0)), static_cast<size_t>(count)});
    return;
  }
  std::array<float, kBlockElements> block;
  for (int64_t done = 0; done < count; done += kBlockElements) {
    const auto values = std::span(block).first(static_cast<size_t>(std::min(kBlockElements, count - done)));
    source(kind, flat + done, values);
    std::byte* at = to.at(part, done);
    if (is_block_code(dtype)) {
      encode_values(dtype, values, at);
      continue;
    }
    std::ranges::transform(values, reinterpret_cast<bf16*>(at), to_bf16);
  }
}

void encode_masters(const Encoding& to, const StateSource& source) {
  std::array<float, kBlockElements> block;
  for (int64_t done = 0; done < to.piece.count; done += kBlockElements) {
    const int64_t now = std::min(kBlockElements, to.piece.count - done);
    const std::span<float> masters(block.data(), static_cast<size_t>(now));
    source(StateKind::kMaster, to.piece.flat_begin() + done, masters);
    encode_block(to.parts.model_dtype(), masters, to.at(StoredParts::kModel, done),
                 to.at(StoredParts::kMaster, done));
  }
}

void check_finite(const Encoding& of, const StateSource& source) {
  const DType dtype = of.parts.model_dtype();
  const std::byte* model = of.at(StoredParts::kModel, 0);
  if (!holds_non_finite(dtype, model, of.piece.count)) return;
  std::vector<float> masters(static_cast<size_t>(of.piece.count));
  source(StateKind::kMaster, of.piece.flat_begin(), masters);
  check_saved_weights(*of.piece.parameter, of.piece.begin, masters, dtype, model);
}

}  // namespace

void encode_piece(const ParameterPiece& piece, const StoredParts& parts, const PieceSources& sources,
                  std::byte* buffer, InFile in_file) {
  const Encoding to = {piece, parts, encoded_sizes(piece, parts), buffer};
  for (size_t part = StoredParts::kFirstTensor; part < parts.count(); ++part) {
    if (to.num_values(part) == 0 || copy_stored(to, part, sources.stored, in_file)) continue;
    encode_tensor(to, part, sources.values);
  }
  const bool has_master = parts.dtype(StoredParts::kMaster).has_value();
  if ((has_master && !copy_stored(to, StoredParts::kMaster, sources.stored, in_file)) ||
      !copy_stored(to, StoredParts::kModel, sources.stored, in_file)) {
    encode_masters(to, sources.values);
  }
  check_finite(to, sources.values);
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
