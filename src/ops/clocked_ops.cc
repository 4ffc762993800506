#include "ops/clocked_ops.h"

#include <string_view>

namespace tessera {

void ClockedOps::around(const OpCall& call, FunctionRef<void()> run) {
  const std::string_view name = call.name;
  const bool is_product = name.starts_with("linear") || name == "pack_linear_weight";
  double& sum = is_product                      ? times_.products_s
                : name.starts_with("attention") ? times_.attention_s
                                                : times_.elementwise_s;
  clock_->begin();
  run();
  clock_->end(&sum);
}

}  // namespace tessera
