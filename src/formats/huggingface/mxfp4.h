// Matrices in MXFP4, as the released GPT-OSS has those of its experts: 4-bit floating-point numbers (E2M1),
// 32 of which share a power of two (E8M0). Open Compute Project, "OCP Microscaling Formats (MX)
// Specification", 1.0, 2023. Values are those of convert_moe_packed_tensors() of Transformers, exact in
// float32.
#pragma once

#include <cstdint>
#include <span>

namespace tessera {

inline constexpr int64_t kMxfp4Block = 32;

// The codes of a matrix [N, K]: of block b of row n 16 bytes, each with two elements, the first in the lower
// half; and its scale, the exponent + 127 (255: NaN or infinite elements).
struct Mxfp4Matrix {
  std::span<const uint8_t> blocks;  // [N, K / 32, 16]
  std::span<const uint8_t> scales;  // [N, K / 32]
  int64_t N;
  int64_t K;
};

// Elements [begin, begin + values.size()) of the transposed matrix [K, N].
void decode_mxfp4_transposed(const Mxfp4Matrix& matrix, int64_t begin, std::span<float> values);

}  // namespace tessera
