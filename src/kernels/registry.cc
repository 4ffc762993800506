#include "kernels/registry.h"

#include <utility>

#include "kernels/activation/activation_impl.h"
#include "kernels/attention/attention_impl.h"
#include "kernels/clamped_swiglu/clamped_swiglu_impl.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"
#include "kernels/dropout/dropout_impl.h"
#include "kernels/elementwise/elementwise_impl.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/narrow_products.h"
#include "kernels/layernorm/layernorm_impl.h"
#include "kernels/moe/moe_impl.h"
#include "kernels/optimizer/element_update_impl.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "kernels/rank_sum/rank_sum_impl.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"
#include "kernels/rope/rope_impl.h"
#include "kernels/swiglu/swiglu_impl.h"

namespace tessera {

// One entry per kernel: the report() of its table.
std::vector<KernelReport> kernel_reports() {
  std::vector<KernelReport> reports = {
      gemm_table().report(),          narrow_table().report(),    rmsnorm_table().report(),
      rope_table().report(),          attention_table().report(), swiglu_table().report(),
      activation_table().report(),    layernorm_table().report(), cross_entropy_table().report(),
      elementwise_table().report(),   moe_table().report(),       dropout_table().report(),
      clamped_swiglu_table().report()};
#define TESSERA_REPORT(Rule, name) reports.push_back(update_table<Rule>().report());
  TESSERA_UPDATE_RULES(TESSERA_REPORT)
  for (KernelReport& report : std::vector{rank_sum_table().report(), quantized_rows_table().report(),
                                          int8_product_table().report()}) {
    reports.push_back(std::move(report));
  }
  return reports;
}

}  // namespace tessera
