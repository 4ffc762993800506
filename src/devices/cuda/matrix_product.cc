#include "devices/cuda/matrix_product.h"

#include <algorithm>
#include <bit>

#include "base/error.h"
#include "devices/cuda/cublas_library.h"
#include "devices/cuda/scratch.h"

namespace tessera::cuda {
namespace {

void check_cublas(cublasStatus_t status, const std::string& what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ExitCode::kInternal, "cuBLASLt: {}: {}", what, cublas_library().GetStatusString(status));
}

cudaDataType_t cuda_type(DType dtype) {
  TESSERA_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "product of {}", dtype_name(dtype));
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

template <typename Value>
void set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute, const Value& value) {
  check_cublas(cublas_library().MatmulDescSetAttribute(description, attribute, &value, sizeof(value)),
               "attribute of a product");
}

template <typename Value>
void set(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute,
         const Value& value) {
  check_cublas(cublas_library().MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
               "preference of a product");
}

// The largest power of two up to 16 that divides all of them.
int common_alignment(std::initializer_list<const void*> addresses) {
  constexpr uintptr_t kMost = 16;
  uintptr_t bits = kMost;
  for (const void* address : addresses) bits |= reinterpret_cast<uintptr_t>(address);
  return static_cast<int>(uintptr_t{1} << std::countr_zero(bits));
}

}  // namespace

// cuBLASLt's matrices are column-major: it is asked for c^T = op(b)^T op(a)^T, whose operands are the
// row-major b and a as they lie in memory.
struct MatrixProducts::Plan {
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};

  ~Plan() {
    const CublasLibrary& library = cublas_library();
    for (cublasLtMatrixLayout_t layout : {a, b, c}) {
      if (layout != nullptr) library.MatrixLayoutDestroy(layout);
    }
    if (description != nullptr) library.MatmulDescDestroy(description);
  }
};

MatrixProducts::MatrixProducts() {
  check_cublas(cublas_library().Create(reinterpret_cast<cublasLtHandle_t*>(&handle_)), "creating a handle");
}

MatrixProducts::~MatrixProducts() = default;  // the handle lasts as long as the program

MatrixProducts::Plan& MatrixProducts::plan_for(const Shape& shape) {
  std::unique_ptr<Plan>& known = plans_[shape];
  if (known) return *known;
  const CublasLibrary& library = cublas_library();
  auto plan = std::make_unique<Plan>();
  check_cublas(library.MatmulDescCreate(&plan->description, CUBLAS_COMPUTE_32F, CUDA_R_32F), "description");
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->description, CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (shape.has_bias) {
    set(plan->description, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan->description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, cuda_type(shape.output));
  }
  const auto make_layout = [&](cublasLtMatrixLayout_t* layout, DType dtype, int64_t rows, int64_t columns) {
    check_cublas(library.MatrixLayoutCreate(layout, cuda_type(dtype), static_cast<uint64_t>(columns),
                                            static_cast<uint64_t>(rows), columns),
                 "layout of a matrix");
  };
  shape.transpose_a ? make_layout(&plan->a, shape.inputs, shape.k, shape.m)
                    : make_layout(&plan->a, shape.inputs, shape.m, shape.k);
  shape.transpose_b ? make_layout(&plan->b, shape.inputs, shape.n, shape.k)
                    : make_layout(&plan->b, shape.inputs, shape.k, shape.n);
  make_layout(&plan->c, shape.output, shape.m, shape.n);

  cublasLtMatmulPreference_t preference = nullptr;
  check_cublas(library.MatmulPreferenceCreate(&preference), "preference");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kProductWorkspaceBytes));
  // Excludes algorithms that round partial sums to the type of the result.
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    set(preference, attribute, static_cast<uint32_t>(shape.alignment));
  }
  cublasLtMatmulHeuristicResult_t found = {};
  int num_found = 0;
  const cublasStatus_t status =
      library.MatmulAlgoGetHeuristic(static_cast<cublasLtHandle_t>(handle_), plan->description, plan->b,
                                     plan->a, plan->c, plan->c, preference, 1, &found, &num_found);
  library.MatmulPreferenceDestroy(preference);
  check_cublas(
      num_found == 0 && status == CUBLAS_STATUS_SUCCESS ? CUBLAS_STATUS_NOT_SUPPORTED : status,
      fmt::format("no algorithm for [{}, {}] of {} products, {} to {}, alignment {}", shape.m, shape.n,
                  shape.k, dtype_name(shape.inputs), dtype_name(shape.output), shape.alignment));
  plan->algorithm = found.algo;
  known = std::move(plan);
  return *known;
}

void MatrixProducts::multiply(ConstTensorView a, bool transpose_a, ConstTensorView b, bool transpose_b,
                              ConstTensorView bias, TensorView c, Update update,
                              std::span<std::byte> workspace, CudaStream stream) {
  const Shape shape = {.m = c.dim(0),
                       .n = c.dim(1),
                       .k = a.dim(transpose_a ? 0 : 1),
                       .transpose_a = transpose_a,
                       .transpose_b = transpose_b,
                       .has_bias = !bias.empty(),
                       .adds = update == Update::kAdd,
                       .inputs = a.dtype(),
                       .output = c.dtype(),
                       .alignment = common_alignment({a.address(), b.address(), c.address()})};
  TESSERA_CHECK(a.dim(transpose_a ? 1 : 0) == shape.m && b.dim(transpose_b ? 1 : 0) == shape.k &&
                    b.dim(transpose_b ? 0 : 1) == shape.n && a.dtype() == b.dtype(),
                "{} {} times {} {} to {}", dtype_name(a.dtype()), a.shape().to_string(),
                dtype_name(b.dtype()), b.shape().to_string(), c.shape().to_string());
  TESSERA_CHECK(std::ssize(workspace) >= kProductWorkspaceBytes, "a workspace of {} bytes", workspace.size());
  if (shape.m == 0) return;
  Plan& plan = plan_for(shape);
  if (shape.has_bias) {
    set(plan.description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(bias.address()));
  }
  const float alpha = 1, beta = shape.adds ? 1 : 0;
  check_cublas(cublas_library().Matmul(static_cast<cublasLtHandle_t>(handle_), plan.description, &alpha,
                                       b.address(), plan.b, a.address(), plan.a, &beta, c.address(), plan.c,
                                       c.address(), plan.c, &plan.algorithm, workspace.data(),
                                       static_cast<size_t>(kProductWorkspaceBytes), stream),
               "a product");
}

std::string MatrixProducts::version() const {
  const size_t version = cublas_library().GetVersion();
  return fmt::format("{}.{}", version / 10000, version / 100 % 100);
}

}  // namespace tessera::cuda
