// The two halves of kNf4 and kNf4Double (quantized_form.h): quantizing, and the scales of a stretch of a row.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/quantized_weight/quantized_form.h"
#include "platform/thread_pool.h"

namespace tessera {

// The values d of codes of scales, ascending: bitsandbytes' create_dynamic_map().
const std::array<float, 256>& dynamic_map();

// Quantizes one of the matrices of `to`, whose elements arrive in order in pieces of any length.
class Nf4Quantizer {
 public:
  Nf4Quantizer(const QuantizedMatrix<std::byte>& to, int64_t first_row);

  void add(std::span<const float> values, ThreadPool& pool);

 private:
  void quantize_block(std::span<const float> values, int64_t block);
  void code_scales();

  QuantizedMatrix<std::byte> to_;
  QuantizedMatrix<std::byte>::Part part_;
  int64_t num_done_ = 0;           // elements of whole blocks
  std::vector<float> unfinished_;  // the elements of a block that ends in the next piece
  std::vector<float> scales_;      // kNf4Double: of all blocks, until the last has arrived
};

// The scales of the blocks of elements [column, column + count) of a row to `scales` [count / 64 + 2];
// returns how many elements of the first block come before them.
int64_t nf4_scales(const ConstQuantizedMatrix& matrix, int64_t row, int64_t column, int64_t count,
                   float* scales);

}  // namespace tessera
