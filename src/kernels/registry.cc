#include "kernels/registry.h"

#include "kernels/adamw/adamw_impl.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"
#include "kernels/elementwise/elementwise_impl.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/narrow_products.h"
#include "kernels/lion/lion_impl.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "kernels/rank_sum/rank_sum_impl.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"
#include "kernels/rope/rope_impl.h"
#include "kernels/swiglu/swiglu_impl.h"

namespace tessera {

// One entry per kernel: the report() of its table.
std::vector<KernelReport> kernel_reports() {
  return {
      gemm_table().report(),          narrow_table().report(),      rmsnorm_table().report(),
      rope_table().report(),          attention_table().report(),   swiglu_table().report(),
      cross_entropy_table().report(), elementwise_table().report(), adamw_table().report(),
      lion_table().report(),          rank_sum_table().report(),    quantized_rows_table().report(),
      int8_product_table().report(),
  };
}

}  // namespace tessera
