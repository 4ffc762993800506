// AdamW with decoupled weight decay over a flat range of parameters. Loshchilov and Hutter, 2019; formulas as
// in torch.optim.AdamW.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

// Elements [begin, begin + count) of the weights. Elements in no range (alignment gaps) are left alone. The
// owner of a mere shard keeps its gradients and state separately from the weights, at their own offsets.
struct ParameterRange {
  int64_t begin;
  int64_t count;
  bool weight_decay;
  int64_t gradient_begin = begin;
  int64_t state_begin = begin;
};

// State: float32 m and v; with BF16 weights also the 16-bit remainder that turns a weight into the exact
// float32 master weight (kernels/adamw/adamw.h).
class AdamW {
 public:
  // Bytes of state for flat arrays of num_elements. Does not allocate.
  static int64_t state_bytes(int64_t num_elements, DType dtype);

  // `ranges` are ascending in the weights and do not overlap. `weights` (BF16 or F32) and `gradients` (F32)
  // are flat arrays and must outlive this. The state has as many elements as the weights unless
  // num_state_elements is given. BF16 weights start as exact masters: remainders are 0.
  AdamW(std::vector<ParameterRange> ranges, TensorView weights, ConstTensorView gradients,
        const AdamWOptions& options, ThreadPool& pool, std::optional<int64_t> num_state_elements = {});

  int64_t num_ranges() const { return std::ssize(ranges_); }

  // Square root of the sum of squares of the gradients of all ranges; independent of the number of threads.
  double gradient_norm() const;
  // Applies to all later steps.
  void set_betas(double beta1, double beta2);
  // One update with gradients * gradient_scale. `step` counts from 1 (bias correction).
  void step(int64_t step, double learning_rate, double gradient_scale);
  // Updates ranges [first, last) only: a step may be taken in pieces.
  void step_ranges(int64_t first, int64_t last, int64_t step, double learning_rate, double gradient_scale);

  // Float32 master weights of elements [begin, begin + destination.size()) of the weights, whose state begins
  // at state_begin.
  void read_master(int64_t begin, std::span<float> destination) const {
    read_master(begin, begin, destination);
  }
  void read_master(int64_t begin, int64_t state_begin, std::span<float> destination) const;
  // The same on the calling thread, which need not be one of the pool's.
  void read_master_alone(int64_t begin, int64_t state_begin, std::span<float> destination) const;
  // Sets weight and remainder of these elements from float32.
  void write_master(int64_t begin, std::span<const float> source) { write_master(begin, begin, source); }
  void write_master(int64_t begin, int64_t state_begin, std::span<const float> source);
  // The moments of all elements of the state.
  std::span<float> exp_avg() { return moments_.as<float>().first(moments_size()); }
  std::span<const float> exp_avg() const { return moments_.as<float>().first(moments_size()); }
  std::span<float> exp_avg_sq() { return moments_.as<float>().subspan(moments_size(), moments_size()); }
  std::span<const float> exp_avg_sq() const {
    return moments_.as<float>().subspan(moments_size(), moments_size());
  }

 private:
  // Calls body(first element of the range, float32 gradients from there on) for each block of a range: a
  // single block if gradients are F32, otherwise as many elements as are widened at a time.
  template <typename Body>
  void for_each_block(const ParameterRange& range, const Body& body) const;
  void check_elements(int64_t begin, int64_t state_begin, int64_t count) const;
  int64_t num_state_elements() const { return moments_.size_bytes() / (2 * dtype_bytes(DType::kF32)); }
  size_t moments_size() const { return static_cast<size_t>(num_state_elements()); }

  std::vector<ParameterRange> ranges_;
  TensorView weights_;
  ConstTensorView gradients_;
  AdamWOptions options_;
  ThreadPool* pool_;
  PageBuffer moments_;     // m then v, F32
  PageBuffer remainders_;  // I16, BF16 weights only
  PageBuffer norm_scratch_;
  PageBuffer widened_;  // BF16 gradients only: a block of them in F32
};

}  // namespace tessera
