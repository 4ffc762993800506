#include "kernels/gemm/gemm.h"

#include <algorithm>
#include <array>

#include "base/memory.h"
#include "kernels/activation_type.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/narrow_products.h"
#include "kernels/gemm/onednn_products.h"

namespace tessera {
namespace {

bool is_matrix(ConstTensorView view, int64_t rows, int64_t columns, DType dtype) {
  return view.shape() == (Shape{rows, columns}) && view.dtype() == dtype;
}

std::string describe(ConstTensorView view) {
  return fmt::format("{} {}", dtype_name(view.dtype()), view.shape().to_string());
}

void check_scratch(const GemmKernels& kernels, GemmProduct product, int64_t rows, const LinearShape& weight,
                   DType dtype, std::span<std::byte> scratch, const ThreadPool& pool) {
  const int64_t needed = kernels.scratch_bytes(product, {rows, weight, dtype, pool.num_threads()});
  TESSERA_CHECK(static_cast<int64_t>(scratch.size()) >= needed, "scratch {} bytes, needed {}", scratch.size(),
                needed);
}

}  // namespace

const DispatchTable<GemmKernels>& gemm_table() {
  static const DispatchTable<GemmKernels> table(
      "gemm", {{"amx", Isa::kAmxBf16, kGemmAmx, limit_onednn},
               {"onednn", Isa::kAmxBf16, kGemmOneDnn, onednn_amx_refusal},
               {"onednn", Isa::kAvx512Bf16, kGemmOneDnn, limit_onednn},
               {"onednn_tiles", Isa::kAvx512, kGemmOneDnnTiles, limit_onednn},
               {"onednn_tiles", Isa::kAvx2, kGemmOneDnnTiles, limit_onednn},
               {"ref", Isa::kRef, kGemmRef}});
  return table;
}

const DispatchTable<NarrowKernels>& narrow_table() {
  constexpr NarrowKernels kReference = {
      [](ConstTensorView x_TK, ConstTensorView w_RK, TensorView y_TR, ThreadPool& pool) {
        kGemmRef.forward(x_TK, w_RK, {}, y_TR, {}, pool);
      },
      [](ConstTensorView dy_TR, ConstTensorView w_RK, TensorView dx_TK, Update update, ThreadPool& pool) {
        kGemmRef.backward_input(dy_TR, w_RK, dx_TK, update, {}, pool);
      },
      [](ConstTensorView dy_TR, ConstTensorView x_TK, TensorView dw_RK, Update update, ThreadPool& pool) {
        kGemmRef.backward_weight(dy_TR, x_TK, dw_RK, update, {}, pool);
      }};
  static const DispatchTable<NarrowKernels> table("narrow_gemm",
                                                  concat(narrow_hwy(), {{"ref", Isa::kRef, kReference}}));
  return table;
}

int64_t gemm_scratch_bytes(const GemmLimits& limits, bool training) {
  const GemmKernels& kernels = gemm_table().chosen();
  if (!training) return kernels.scratch_bytes(GemmProduct::kForward, limits);
  return std::max(max_scratch_bytes(kernels, limits),
                  sum_of_squares_scratch_bytes(limits.weight.N * limits.weight.K));
}

int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) {
  const GemmKernels& kernels = gemm_table().chosen();
  return kernels.packed_bytes == nullptr ? 0 : kernels.packed_bytes(N, K, dtype);
}

int64_t packed_weight_bytes_of_amx(int64_t N, int64_t K, DType dtype) {
  if (dtype != DType::kBF16) return 0;
  return round_up(N, kPackedRows) * round_up(K, kPackedRows) * dtype_bytes(dtype);
}

void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows, ThreadPool& pool) {
  const GemmKernels& kernels = gemm_table().chosen();
  TESSERA_CHECK(w_NK.shape().rank() == 2 && kernels.pack != nullptr, "w {}", describe(w_NK));
  TESSERA_CHECK(0 <= rows.begin && rows.begin <= rows.end && rows.end <= w_NK.dim(0) &&
                    rows.begin % kPackedRows == 0 && (rows.end % kPackedRows == 0 || rows.end == w_NK.dim(0)),
                "rows {} to {} of w {}", rows.begin, rows.end, describe(w_NK));
  kernels.pack(w_NK, to, rows, pool);
}

void gemm_forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
                  std::span<std::byte> scratch, ThreadPool& pool) {
  const DType dtype = x_TK.dtype();
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  TESSERA_CHECK(
      is_matrix(x_TK, T, K, dtype) && is_matrix(w_NK, N, K, dtype) &&
          (is_matrix(y_TN, T, N, dtype) || is_matrix(y_TN, T, N, DType::kF32)) &&
          (bias_N.empty() || (bias_N.num_elements() == N && bias_N.dtype() == dtype)) && N >= 1 && K >= 1,
      "x {}, w {}, bias {}, y {}", describe(x_TK), describe(w_NK), describe(bias_N), describe(y_TN));
  if (T == 0) return;
  const GemmKernels& kernels = gemm_table().chosen();
  check_scratch(kernels, GemmProduct::kForward, T, shape_of(weight, weight.packed.forward), dtype, scratch,
                pool);
  kernels.forward(x_TK, weight, bias_N, y_TN, scratch, pool);
}

void gemm_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                         std::span<std::byte> scratch, ThreadPool& pool) {
  const DType dtype = dy_TN.dtype();
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = w_NK.dim(1);
  TESSERA_CHECK(is_matrix(dy_TN, T, N, dtype) && is_matrix(w_NK, N, K, dtype) &&
                    (is_matrix(dx_TK, T, K, dtype) || is_matrix(dx_TK, T, K, DType::kF32)) && N >= 1 &&
                    K >= 1,
                "dy {}, w {}, dx {}", describe(dy_TN), describe(w_NK), describe(dx_TK));
  if (T == 0) return;
  const GemmKernels& kernels = gemm_table().chosen();
  check_scratch(kernels, GemmProduct::kBackwardInput, T, shape_of(weight, weight.packed.backward_input),
                dtype, scratch, pool);
  kernels.backward_input(dy_TN, weight, dx_TK, update, scratch, pool);
}

void gemm_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                          std::span<std::byte> scratch, ThreadPool& pool) {
  const DType dtype = dy_TN.dtype();
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  TESSERA_CHECK(is_matrix(dy_TN, T, N, dtype) && is_matrix(x_TK, T, K, dtype) &&
                    is_matrix(dw_NK, N, K, DType::kF32) && N >= 1 && K >= 1,
                "dy {}, x {}, dw {}", describe(dy_TN), describe(x_TK), describe(dw_NK));
  const GemmKernels& kernels = gemm_table().chosen();
  const bool in_passing = kernels.sums_squares && dtype == DType::kBF16 && T > 0;
  if (T > 0) {
    check_scratch(kernels, GemmProduct::kBackwardWeight, T, {N, K}, dtype, scratch, pool);
    kernels.backward_weight(dy_TN, x_TK, dw_NK, in_passing ? update : update.mode, scratch, pool);
  } else if (update.mode == Update::kOverwrite) {
    std::fill_n(dw_NK.as<float>(), N * K, 0.0f);
  }
  if (update.squares == nullptr || in_passing) return;
  *update.squares += sum_of_squares({dw_NK.as<float>(), static_cast<size_t>(N * K)}, scratch, pool);
}

void gemm_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update, ThreadPool& pool) {
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1);
  TESSERA_CHECK(dy_TN.shape().rank() == 2 && db_N.num_elements() == N, "dy {}, db {}", describe(dy_TN),
                describe(db_N));
  constexpr int64_t kColumns = 256;  // 1 KiB of sums: stays in L1, and every column is summed in row order
  with_activation_type(dy_TN.dtype(), [&]<typename A>(A) {
    const A* dy = dy_TN.as<A>();
    float* db = db_N.as<float>();
    pool.parallel_blocks(N, kColumns, [&](int64_t begin, int64_t end) {
      std::array<float, kColumns> sums = {};
      for (int64_t t = 0; t < T; ++t) {
        for (int64_t n = begin; n < end; ++n) sums[static_cast<size_t>(n - begin)] += to_float(dy[t * N + n]);
      }
      for (int64_t n = begin; n < end; ++n) {
        const float sum = sums[static_cast<size_t>(n - begin)];
        db[n] = update == Update::kAdd ? db[n] + sum : sum;
      }
    });
  });
}

std::string_view gemm_left_to_others() {
  const GemmKernels& kernels = gemm_table().chosen();
  return kernels.left_to_others == nullptr ? "" : kernels.left_to_others();
}

}  // namespace tessera
