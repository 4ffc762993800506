#include "kernels/lora/lora.h"

#include "base/error.h"
#include "kernels/activation_type.h"

namespace tessera {
namespace {

constexpr int64_t kOutputs = 512;  // per task: some 10,000 elements of an adapter

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

}  // namespace tessera
