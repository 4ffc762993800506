#include "kernels/quantized_weight/gradient_blocks.h"

#include <algorithm>

#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "platform/subnormals.h"

namespace tessera {
namespace {

int limit_of(GradientCode code) { return code == GradientCode::kInt8 ? 127 : 7; }

// Bytes of the codes of the first `count` values, which end with a block or are all.
int64_t code_bytes(GradientCode code, int64_t count) {
  return code == GradientCode::kInt8 ? count : divide_up(count, int64_t{2});
}

// The codes of a block of `count` values, two to a byte.
void pack_pairs(const int8_t* codes, int64_t count, uint8_t* bytes) {
  const int64_t num_low = divide_up(count, int64_t{2}), num_high = count - num_low;
  for (int64_t i = 0; i < num_high; ++i) {
    bytes[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[num_low + i] << 4));
  }
  if (num_low > num_high) bytes[num_high] = static_cast<uint8_t>(codes[num_high] & 15);
}

void unpack_pairs(const uint8_t* bytes, int64_t count, int8_t* codes) {
  const int64_t num_low = divide_up(count, int64_t{2});
  for (int64_t i = 0; i < num_low; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int8_t>(static_cast<uint8_t>(bytes[i] << 4)) >> 4);
  }
  for (int64_t i = num_low; i < count; ++i) {
    codes[i] = static_cast<int8_t>(static_cast<int8_t>(bytes[i - num_low]) >> 4);
  }
}

}  // namespace

void encode_gradient_blocks(GradientCode code, const float* x, const bf16* feedback, int64_t count,
                            std::byte* blocks, bf16* new_feedback) {
  const SubnormalsAreZero as_in_a_pool;
  const auto quantize = quantized_rows_table().chosen().quantize_with_feedback;
  auto* const scales = reinterpret_cast<float*>(blocks);
  auto* const codes = reinterpret_cast<uint8_t*>(scales + divide_up(count, kGradientBlock));
  for (int64_t begin = 0; begin < count; begin += kGradientBlock) {
    const int64_t size = std::min(kGradientBlock, count - begin);
    int8_t of_block[kGradientBlock];
    scales[begin / kGradientBlock] = quantize(x + begin, feedback + begin, size, limit_of(code), of_block,
                                              new_feedback == nullptr ? nullptr : new_feedback + begin);
    uint8_t* const to = codes + code_bytes(code, begin);
    if (code == GradientCode::kInt8) {
      std::copy_n(of_block, size, reinterpret_cast<int8_t*>(to));
    } else {
      pack_pairs(of_block, size, to);
    }
  }
}

void decode_gradient_blocks(GradientCode code, const std::byte* blocks, int64_t count, int64_t begin,
                            int64_t size, float* y) {
  const SubnormalsAreZero as_in_a_pool;
  const auto dequantize = quantized_rows_table().chosen().f32_rows.dequantize_int8;
  const auto* const scales = reinterpret_cast<const float*>(blocks);
  const auto* const codes = reinterpret_cast<const uint8_t*>(scales + divide_up(count, kGradientBlock));
  for (int64_t at = begin; at < begin + size; at += kGradientBlock) {
    const int64_t in_block = std::min(kGradientBlock, count - at);  // counts unrequested ones too
    const int64_t wanted = std::min(in_block, begin + size - at);
    const uint8_t* const from = codes + code_bytes(code, at);
    const float scale = scales[at / kGradientBlock];
    if (code == GradientCode::kInt8) {
      dequantize(reinterpret_cast<const int8_t*>(from), scale, wanted, y + at - begin);
      continue;
    }
    int8_t of_block[kGradientBlock];
    unpack_pairs(from, in_block, of_block);
    dequantize(of_block, scale, wanted, y + at - begin);
  }
}

}  // namespace tessera
