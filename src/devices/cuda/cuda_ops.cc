#include "devices/cuda/cuda_ops.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/cuda/adamw.h"
#include "devices/cuda/attention/attention.h"
#include "devices/cuda/cross_entropy.h"
#include "devices/cuda/cuda_check.h"
#include "devices/cuda/cuda_device.h"
#include "devices/cuda/elementwise.h"
#include "devices/cuda/lora.h"
#include "devices/cuda/matrix_product.h"
#include "devices/cuda/norm.h"
#include "devices/cuda/rotary.h"
#include "devices/cuda/rows.h"
#include "devices/cuda/swiglu.h"
#include "devices/cuda/uploaded_array.h"
#include "devices/cuda/workspace.h"
#include "kernels/activation_type.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using cuda::check_cuda;
using cuda::MatrixProducts;
using cuda::UploadedArray;

// Where a view's elements are for the card.
template <typename T>
T* at(TensorView view) {
  return reinterpret_cast<T*>(view.address());
}
template <typename T>
const T* at(ConstTensorView view) {
  return reinterpret_cast<const T*>(view.address());
}
// The weight of a norm. Models with other norms are refused on cards (LlamaModel).
template <typename T>
const T* weight_at(const NormWeight& weight) {
  TESSERA_CHECK(weight.offset == 0, "a norm with an offset of {} on a card", weight.offset);
  return at<T>(weight.view);
}
template <typename T>
const T* weight_at(const NormWeight& weight, int64_t width) {
  TESSERA_CHECK(weight.view.num_elements() == width, "a head norm over {}", weight.view.num_elements());
  return weight_at<T>(weight);
}

// The workspace begins with the workspace of the products, which rows are also copied through; scratch memory
// follows.
class CudaOps final : public Ops {
 public:
  explicit CudaOps(CudaDevice& device) : device_(device), number_(device.allocate(sizeof(double))) {}

  Device& device() const override { return device_; }

  std::string description() const override {
    const CudaCard card = device_.card();
    return fmt::format("cuda: {} (compute capability {}.{}), cuBLASLt {}", card.name,
                       card.compute_capability / 10, card.compute_capability % 10, products_.version());
  }

  int64_t workspace_bytes(const OpsLimits& limits) const override { return cuda::workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace) override { workspace_ = workspace; }

  int64_t packed_weight_bytes(int64_t /*N*/, int64_t /*K*/, DType /*dtype*/) const override { return 0; }
  void pack_linear_weight(ConstTensorView, const PackedForms&, RowRange) override {
    TESSERA_CHECK(false, "there are no packed forms");
  }

  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    check_not_quantized(weight);
    // A bias in bf16 is added before the sum is rounded, or to the float32 sum.
    const bool is_fused = bias_N.empty() || bias_N.dtype() == y_TN.dtype();
    products_.multiply(x_TK, false, weight.w_NK, true, is_fused ? bias_N : ConstTensorView(), y_TN,
                       Update::kOverwrite, workspace_, stream());
    if (is_fused || y_TN.dim(0) == 0) return;
    cuda::add_bias(at<float>(y_TN), at<bf16>(bias_N), y_TN.dim(0), y_TN.dim(1), stream());
  }
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override {
    check_not_quantized(weight);
    products_.multiply(dy_TN, false, weight.w_NK, false, {}, dx_TK, update, workspace_, stream());
  }
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    if (dy_TN.dim(0) > 0) {
      products_.multiply(dy_TN, true, x_TK, false, {}, dw_NK, update.mode, workspace_, stream());
    } else if (update.mode == Update::kOverwrite) {
      zero(dw_NK);
    }
    if (update.squares != nullptr) *update.squares += sum_of_squares(dw_NK);
  }
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override {
    with_activation_type(dy_TN.dtype(), [&]<typename A>(A) {
      cuda::bias_gradient(at<A>(dy_TN), dy_TN.dim(0), dy_TN.dim(1), at<float>(db_N), update,
                          scratch(cuda::bias_gradient_scratch_bytes(dy_TN.dim(0), dy_TN.dim(1))), stream());
    });
  }

  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override {
    const int32_t* const on_card = ids_.put(ids);
    with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
      cuda::copy_rows(at<A>(table_VD), on_card, std::ssize(ids), x_TD.dim(1), at<A>(x_TD), stream());
    });
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override {
    const cuda::TokensById by_id = cuda::tokens_by_id(ids, padding_id);
    const int32_t* const unique = unique_ids_.put(std::span(by_id.unique));
    const int32_t* const starts = starts_.put(std::span(by_id.starts));
    const int32_t* const order = order_.put(std::span(by_id.order));
    with_activation_type(dx_TD.dtype(), [&]<typename A>(A) {
      cuda::embedding_backward(at<A>(dx_TD), unique, starts, order, std::ssize(by_id.unique), dx_TD.dim(1),
                               at<float>(dtable_VD), stream());
    });
  }

  void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN) override {
    const int64_t N = e_RN.dim(1), begin = block.first_rank * N + block.first_output;
    with_activation_type(b_NR.dtype(), [&]<typename A>(A) {
      cuda::lora_place(at<A>(b_NR), b_NR.dim(0), b_NR.dim(1), block.scale, at<A>(e_RN) + begin, N, stream());
    });
  }
  void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update) override {
    const int64_t N = de_RN.dim(1), begin = block.first_rank * N + block.first_output;
    cuda::lora_take(at<float>(de_RN) + begin, N, db_NR.dim(0), db_NR.dim(1), block.scale, at<float>(db_NR),
                    update == Update::kAdd, stream());
  }
  void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update) override {
    const uint64_t* const tokens = tokens_.put(which.tokens);
    with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
      cuda::dropout(at<A>(x_TD), tokens, which.site, which.threshold(), which.scale(), update == Update::kAdd,
                    x_TD.dim(0), x_TD.dim(1), at<A>(y_TD), stream());
    });
  }

  void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override {
    with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
      cuda::rmsnorm(at<A>(x_RD), weight_at<A>(w_D), eps, at<A>(y_RD), at<float>(rstd_R), x_RD.dim(0),
                    x_RD.dim(1), stream());
    });
  }
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override {
    const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
    void* const partial = scratch(dw_D.empty() ? 0 : cuda::rmsnorm_backward_scratch_bytes(R, D));
    with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
      cuda::rmsnorm_backward(at<A>(dy_RD), at<A>(x_RD), weight_at<A>(w_D), at<float>(rstd_R), at<A>(dx_RD),
                             dx_update, at<float>(dw_D), dw_update, R, D, partial, stream());
    });
  }
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                   TensorView norm_TD, TensorView rstd_T) override {
    with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
      cuda::add_rmsnorm(at<A>(x_TD), at<A>(y_TD), weight_at<A>(w_D), eps, at<A>(norm_TD), at<float>(rstd_T),
                        x_TD.dim(0), x_TD.dim(1), stream());
    });
  }
  void add(TensorView x, ConstTensorView y) override {
    with_activation_type(x.dtype(),
                         [&]<typename A>(A) { cuda::add(at<A>(x), at<A>(y), x.num_elements(), stream()); });
  }
  void round_to(ConstTensorView from, TensorView to) override {
    with_activation_type(to.dtype(), [&]<typename A>(A) {
      cuda::round_to(at<float>(from), at<A>(to), to.num_elements(), stream());
    });
  }

  void gather_rows(std::span<const int32_t> rows, TensorView x_TD) override { move_rows(rows, rows, x_TD); }
  void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) override {
    std::vector<int32_t> source(static_cast<size_t>(x_TD.dim(0)), -1);
    for (size_t i = 0; i < rows.size(); ++i) source[static_cast<size_t>(rows[i])] = static_cast<int32_t>(i);
    std::vector<int32_t> moved(rows.size());
    for (size_t i = 0; i < moved.size(); ++i) moved[i] = static_cast<int32_t>(i);
    move_rows(moved, source, x_TD);
  }
  void zero(TensorView x) override {
    check_cuda(cudaMemsetAsync(x.address(), 0, static_cast<size_t>(x.size_bytes()), stream()));
  }
  double sum_of_squares(ConstTensorView x) override {
    void* const partial = scratch(cuda::sum_of_squares_scratch_bytes());
    cuda::sum_of_squares(at<float>(x), x.num_elements(), number(), partial, stream());
    return read_number();
  }

  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd) override {
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      cuda::head_rmsnorm(at<A>(qkv_TQ), shape, head_begin, head_end, weight_at<A>(w_E, shape.head_dim), eps,
                         at<A>(y_TQ), at<float>(rstd), qkv_TQ.dim(0), stream());
    });
  }
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, const NormWeight& w_E,
                             ConstTensorView rstd, TensorView dw_E, Update dw_update) override {
    const int64_t T = qkv_TQ.dim(0);
    void* const partial = scratch(dw_E.empty() ? 0 : cuda::head_rmsnorm_backward_scratch_bytes(T, shape));
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      cuda::head_rmsnorm_backward(at<A>(dqkv_TQ), at<A>(qkv_TQ), shape, head_begin, head_end,
                                  weight_at<A>(w_E, shape.head_dim), at<float>(rstd), at<float>(dw_E),
                                  dw_update, T, partial, stream());
    });
  }

  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    TESSERA_CHECK(2 * table.cos.dim(1) == shape.head_dim && table.query_scale.empty() && !table.interleaved,
                  "a rotary embedding with options on a card");
    const int32_t* const on_card = positions_.put(positions);
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      cuda::rope(at<A>(qkv_TQ), shape, on_card, at<float>(table.cos), at<float>(table.sin), inverse,
                 qkv_TQ.dim(0), stream());
    });
  }

  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    check_head(shape);
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      const cuda::AttentionBatch batch = put_blocks<A>(shape, cu_seqlens);
      cuda::attention(at<A>(qkv_TQ), shape, batch, at<A>(o_THE), at<float>(lse_HT), stream());
    });
  }
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override {
    void* const delta = scratch(cuda::attention_backward_scratch_bytes(shape, cu_seqlens.back()));
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      const cuda::AttentionBatch batch = put_blocks<A>(shape, cu_seqlens);
      cuda::attention_backward(at<A>(do_THE), at<A>(qkv_TQ), at<A>(o_THE), at<float>(lse_HT), shape, batch,
                               at<A>(dqkv_TQ), delta, stream());
    });
  }
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H,
                        TensorView o_THE) override {
    check_head(shape);
    TESSERA_CHECK(sinks_H.empty(), "sinks of {} heads on a card", sinks_H.num_elements());
    with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
      cuda::attention_cached(at<A>(qkv_TQ), shape, at<A>(k_cache), at<A>(v_cache), cache_length,
                             qkv_TQ.dim(0), at<A>(o_THE), stream());
    });
  }

  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override {
    with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
      cuda::swiglu(at<A>(gate_up_TF2), at<A>(h_TF), h_TF.dim(0), h_TF.dim(1), stream());
    });
  }
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override {
    with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
      cuda::swiglu_backward(at<A>(dh_TF), at<A>(gate_up_TF2), at<A>(dgate_up_TF2), at<A>(h_TF), h_TF.dim(0),
                            h_TF.dim(1), stream());
    });
  }

  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    const cuda::LossRows rows = loss_rows(targets, logits_RV.dim(1), label_smoothing);
    double* const losses = row_losses(rows);
    with_activation_type(dlogits_RV.empty() ? DType::kF32 : dlogits_RV.dtype(), [&]<typename A>(A) {
      cuda::cross_entropy(at<float>(logits_RV), rows, grad_scale, at<A>(dlogits_RV), losses, stream());
    });
    return add_losses(losses, targets);
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               TensorView rows) override {
    cuda::cross_entropy_add_chunk(at<float>(logits_RC), first_column, logits_RC.dim(1),
                                  loss_rows(targets, /*vocab_size=*/0, label_smoothing), rows.address(),
                                  stream());
  }
  LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets, int64_t vocab_size,
                              float label_smoothing) override {
    const cuda::LossRows of_loss = loss_rows(targets, vocab_size, label_smoothing);
    double* const losses = row_losses(of_loss);
    cuda::cross_entropy_losses(rows.address(), of_loss, losses, stream());
    return add_losses(losses, targets);
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, ConstTensorView rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override {
    with_activation_type(dlogits_RC.dtype(), [&]<typename A>(A) {
      cuda::cross_entropy_chunk_gradient(at<float>(logits_RC), first_column, logits_RC.dim(1),
                                         loss_rows(targets, vocab_size, label_smoothing), rows.address(),
                                         grad_scale, at<A>(dlogits_RC), stream());
    });
  }

  void adamw(TensorView weights, TensorView remainders, ConstTensorView gradient, TensorView exp_avg,
             TensorView exp_avg_sq, int64_t first_element, const AdamWScalars& scalars) override {
    const int64_t count = weights.num_elements();
    const auto* const g = at<float>(gradient);
    if (exp_avg.dtype() != DType::kF32) {
      TESSERA_CHECK(weights.dtype() == DType::kBF16 && exp_avg.dtype() == DType::kBF16,
                    "{} weights with {} moments on a card", dtype_name(weights.dtype()),
                    dtype_name(exp_avg.dtype()));
      const cuda::HalfMoments moments = {at<bf16>(exp_avg), at<bf16>(exp_avg_sq), first_element};
      cuda::adamw_bf16_half(at<bf16>(weights), at<int16_t>(remainders), g, moments, count, scalars, stream());
    } else if (weights.dtype() == DType::kBF16) {
      cuda::adamw_bf16(at<bf16>(weights), at<int16_t>(remainders), g, at<float>(exp_avg),
                       at<float>(exp_avg_sq), count, scalars, stream());
    } else {
      cuda::adamw_f32(at<float>(weights), g, at<float>(exp_avg), at<float>(exp_avg_sq), count, scalars,
                      stream());
    }
  }

 private:
  CudaStream stream() const {
    device_.make_current();
    return device_.stream();
  }

  static void check_not_quantized(const LinearWeight& weight) {
    TESSERA_CHECK(!weight.is_quantized(), "a quantised weight on a card");
  }
  static void check_head(const AttentionShape& shape) {
    if (shape.head_dim <= cuda::kMaxHeadDim) return;
    fail(ExitCode::kBadConfig, "device cuda: expected attention heads of at most {}, found {}",
         cuda::kMaxHeadDim, shape.head_dim);
  }

  // Temporary memory past the products' workspace, valid until the next call.
  void* scratch(int64_t size_bytes) const {
    TESSERA_CHECK(cuda::kProductWorkspaceBytes + size_bytes <= std::ssize(workspace_),
                  "{} bytes in a workspace of {}", size_bytes, workspace_.size());
    return workspace_.data() + cuda::kProductWorkspaceBytes;
  }

  double* number() const { return reinterpret_cast<double*>(number_.address()); }
  double read_number() {
    double value = 0;
    device_.copy_to_host(number_.address(), std::as_writable_bytes(std::span(&value, 1)));
    return value;
  }

  // x_i = x_source[i], or zero for -1, for all i of `source`; `moved` are the numbers that occur there.
  void move_rows(std::span<const int32_t> moved, std::span<const int32_t> source, TensorView x_TD) {
    if (source.empty()) return;
    const int64_t D = x_TD.dim(1), count = std::ssize(moved);
    std::vector<int32_t> to(source.begin(), source.end());  // numbers of rows in the copy
    int32_t next = 0;
    for (int32_t& row : to) row = row < 0 ? row : next++;
    const int32_t* const from = rows_.put(moved);
    const int32_t* const back = moved_rows_.put(std::span<const int32_t>(to));
    with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
      constexpr int64_t kUnit = 16 / sizeof(A);
      auto* const copy = reinterpret_cast<A*>(workspace_.data());
      const int64_t fitting = cuda::kProductWorkspaceBytes / std::max<int64_t>(count, 1) / int64_t{sizeof(A)};
      const int64_t width = std::min(D, std::max(fitting / kUnit * kUnit, int64_t{1}));
      for (int64_t begin = 0; begin < D; begin += width) {
        const int64_t columns = std::min(width, D - begin);
        cuda::copy_columns<A>(at<A>(x_TD) + begin, D, from, count, columns, copy, columns, stream());
        cuda::copy_columns<A>(copy, columns, back, std::ssize(to), columns, at<A>(x_TD) + begin, D, stream());
      }
    });
  }

  template <typename A>
  cuda::AttentionBatch put_blocks(const AttentionShape& shape, std::span<const int32_t> cu_seqlens) {
    const int rows = cuda::attention_rows<A>(shape);
    if (rows != block_rows_ || !std::ranges::equal(cu_seqlens, cu_seqlens_)) {
      block_rows_ = rows;
      cu_seqlens_.assign(cu_seqlens.begin(), cu_seqlens.end());
      blocks_ = cuda::attention_blocks(cu_seqlens, rows);
    }
    return {block_array_.put(std::span<const cuda::AttentionBlock>(blocks_)), std::ssize(blocks_),
            cu_seqlens.back()};
  }

  cuda::LossRows loss_rows(std::span<const int32_t> targets, int64_t vocab_size, float label_smoothing) {
    return {targets_.put(targets), std::ssize(targets), vocab_size, kIgnoredLabel, label_smoothing};
  }
  double* row_losses(const cuda::LossRows& rows) const {
    return static_cast<double*>(scratch(rows.R * static_cast<int64_t>(sizeof(double))));
  }
  LossSums add_losses(const double* losses, std::span<const int32_t> targets) {
    cuda::sum_in_order(losses, std::ssize(targets), number(), stream());
    return {read_number(), std::ssize(targets) - std::ranges::count(targets, kIgnoredLabel)};
  }

  CudaDevice& device_;
  MatrixProducts products_;
  std::span<std::byte> workspace_;
  DeviceBuffer number_;  // a number returned to the host
  std::vector<int32_t> cu_seqlens_;
  int block_rows_ = 0;
  std::vector<cuda::AttentionBlock> blocks_;  // of cu_seqlens_, block_rows_ each
  UploadedArray block_array_{device_}, ids_{device_}, unique_ids_{device_}, starts_{device_}, order_{device_};
  UploadedArray positions_{device_}, targets_{device_}, tokens_{device_}, rows_{device_},
      moved_rows_{device_};
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(int local_rank) {
  return std::make_unique<CudaOps>(cuda_device(local_rank));
}

}  // namespace tessera
