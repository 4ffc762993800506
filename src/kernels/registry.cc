#include "kernels/registry.h"

#include "kernels/cross_entropy/cross_entropy_impl.h"
#include "kernels/gemm/gemm_impl.h"

namespace tessera {

// One line per kernel: the report() of its table.
std::vector<KernelReport> kernel_reports() {
  return {
      gemm_table().report(),
      cross_entropy_table().report(),
  };
}

}  // namespace tessera
