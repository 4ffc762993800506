#include "kernels/lora/lora.h"

#include <array>
#include <cmath>

#include "base/error.h"
#include "base/rng.h"
#include "kernels/activation_type.h"

namespace tessera {
namespace {

constexpr int64_t kOutputs = 512;  // per task: some 10,000 elements of an adapter
constexpr int64_t kRows = 16;      // per task of dropout: 64 Ki elements of a usual width

void check_block(ConstTensorView b_NR, const LoraBlock& block, ConstTensorView e_RN) {
  TESSERA_CHECK(b_NR.shape().rank() == 2 && e_RN.shape().rank() == 2 &&
                    block.first_rank + b_NR.dim(1) <= e_RN.dim(0) &&
                    block.first_output + b_NR.dim(0) <= e_RN.dim(1),
                "B {} at ({}, {}) of {}", b_NR.shape().to_string(), block.first_rank, block.first_output,
                e_RN.shape().to_string());
}

}  // namespace

void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN, ThreadPool& pool) {
  check_block(b_NR, block, e_RN);
  const int64_t rank = b_NR.dim(1), N = e_RN.dim(1);
  with_activation_type(b_NR.dtype(), [&]<typename A>(A) {
    const A* b = b_NR.as<A>();
    A* e = e_RN.as<A>() + block.first_rank * N + block.first_output;
    pool.parallel_blocks(b_NR.dim(0), kOutputs, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < rank; ++i) {
        for (int64_t j = begin; j < end; ++j) {
          e[i * N + j] = from_float<A>(block.scale * to_float(b[j * rank + i]));
        }
      }
    });
  });
}

void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update,
               ThreadPool& pool) {
  check_block(db_NR, block, de_RN);
  const int64_t rank = db_NR.dim(1), N = de_RN.dim(1);
  const float* de = de_RN.as<float>() + block.first_rank * N + block.first_output;
  float* db = db_NR.as<float>();
  pool.parallel_blocks(db_NR.dim(0), kOutputs, [&](int64_t begin, int64_t end) {
    for (int64_t i = 0; i < rank; ++i) {
      for (int64_t j = begin; j < end; ++j) {
        float& to = db[j * rank + i];
        const float gradient = block.scale * de[i * N + j];
        to = update == Update::kAdd ? to + gradient : gradient;
      }
    }
  });
}

void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update, ThreadPool& pool) {
  TESSERA_CHECK(x_TD.shape() == y_TD.shape() && x_TD.dtype() == y_TD.dtype() &&
                    std::ssize(which.tokens) == x_TD.dim(0) && which.probability < 1,
                "{} {} to {} {}, {} tokens, probability {}", dtype_name(x_TD.dtype()),
                x_TD.shape().to_string(), dtype_name(y_TD.dtype()), y_TD.shape().to_string(),
                which.tokens.size(), which.probability);
  constexpr int64_t kPerCounter = 8;  // a counter's 128 bits
  const int64_t D = x_TD.dim(1);
  const auto threshold = static_cast<uint32_t>(std::lround(which.probability * 0x1p16f));
  const float scale = 1 / (1 - static_cast<float>(threshold) * 0x1p-16f);
  with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
    const A* x = x_TD.as<A>();
    A* y = y_TD.as<A>();
    pool.parallel_blocks(x_TD.dim(0), kRows, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const uint64_t token = which.tokens[static_cast<size_t>(t)];
        for (int64_t d = 0; d < D; d += kPerCounter) {
          const std::array<uint32_t, 4> words =
              philox4x32(which.site, static_cast<uint64_t>(d / kPerCounter), token);
          const int64_t count = std::min(kPerCounter, D - d);
          for (int64_t i = 0; i < count; ++i) {
            const uint32_t bits = words[static_cast<size_t>(i / 2)] >> (16 * (i % 2)) & 0xFFFF;
            const int64_t at = t * D + d + i;
            const float kept = bits < threshold ? 0 : scale * to_float(x[at]);
            y[at] = from_float<A>(update == Update::kAdd ? to_float(y[at]) + kept : kept);
          }
        }
      }
    });
  });
}

}  // namespace tessera
