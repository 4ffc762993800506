// Converts the float32 state of a piece to the bytes of the files and back.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "checkpoint/checkpoint_files.h"

namespace tessera {

// Layout of an encoded piece: its parts back to back in one buffer, each aligned to a cache line.
struct EncodedSizes {
  std::array<int64_t, StoredParts::kMaxCount> offset_bytes = {};
  std::array<int64_t, StoredParts::kMaxCount> size_bytes = {};  // 0 = no such part
  int64_t total_bytes = 0;
};
EncodedSizes encoded_sizes(const ParameterPiece& piece, const StoredParts& parts);
// The most that a piece takes.
int64_t max_encoded_bytes(const StoredParts& parts);

// Where the values of a piece come from: `stored` (if set) as far as it has them.
struct PieceSources {
  const StateSource& values;
  const StoredSource& stored;
};
// Called with bytes of a part that a file of the run has as well, those of the piece from `first_bytes` on;
// they do not change during the call.
using InFile = FunctionRef<void(size_t part, int64_t first_bytes, const FileBytes& bytes)>;

// Reads the piece and encodes it into `buffer`, which is aligned to a cache line. Error(kNumerics) if a
// weight is not finite in the model's type.
void encode_piece(const ParameterPiece& piece, const StoredParts& parts, const PieceSources& sources,
                  std::byte* buffer, InFile in_file);

// Reconstructs master weights from BF16 model values and the remainders. (With F16 the state holds whole
// masters.)
void decode_masters(const bf16* weights, const int16_t* remainders, std::span<float> masters);
// The float32 values of `count` elements of a part; `buffer` holds them unless they are stored as such.
// `stored` begins with the first of them or, if the part is in codes, with their block, whose first `skipped`
// values are left out.
std::span<const float> decode_values(const std::byte* stored, int64_t skipped, size_t count, DType dtype,
                                     std::vector<float>* buffer);

}  // namespace tessera
