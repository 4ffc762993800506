#include "kernels/quantized_weight/int8_blocks.h"

#include <algorithm>

#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "platform/subnormals.h"

namespace tessera {

void encode_int8_blocks(const bf16* x, int64_t count, std::byte* blocks) {
  const SubnormalsAreZero as_in_a_pool;
  const auto quantize = quantized_rows_table().chosen().bf16_rows.quantize;
  auto* const scales = reinterpret_cast<float*>(blocks);
  auto* const codes = reinterpret_cast<int8_t*>(scales + divide_up(count, kInt8Block));
  for (int64_t begin = 0; begin < count; begin += kInt8Block) {
    scales[begin / kInt8Block] =
        quantize(x + begin, nullptr, std::min(kInt8Block, count - begin), codes + begin);
  }
}

void decode_int8_blocks(const std::byte* blocks, int64_t count, bf16* y) {
  const SubnormalsAreZero as_in_a_pool;
  const auto dequantize = quantized_rows_table().chosen().bf16_rows.dequantize_int8;
  const auto* const scales = reinterpret_cast<const float*>(blocks);
  const auto* const codes = reinterpret_cast<const int8_t*>(scales + divide_up(count, kInt8Block));
  for (int64_t begin = 0; begin < count; begin += kInt8Block) {
    dequantize(codes + begin, scales[begin / kInt8Block], std::min(kInt8Block, count - begin), y + begin);
  }
}

}  // namespace tessera
