#include "devices/planned_cpu.h"

#include "kernels/gemm/gemm.h"
#include "ops/cpu_ops.h"
#include "ops/forwarding_ops.h"

namespace tessera {
namespace {

class PlannedCpuOps final : public ForwardingOps {
 public:
  PlannedCpuOps(ThreadPool& pool, bool has_amx)
      : ForwardingOps(*this), cpu_(make_cpu_ops(pool)), has_amx_(has_amx) {
    forward_to(*cpu_);
  }
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return has_amx_ ? packed_weight_bytes_of_amx(N, K, dtype) : 0;
  }

 private:
  std::unique_ptr<Ops> cpu_;
  bool has_amx_;
};

}  // namespace

OpsFactory planned_cpu_ops(bool has_amx) {
  return [has_amx](ThreadPool& pool) { return std::make_unique<PlannedCpuOps>(pool, has_amx); };
}

}  // namespace tessera
