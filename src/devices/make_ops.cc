#include "devices/make_ops.h"

#include "base/error.h"
#include "ops/cpu_ops.h"
#ifdef TESSERA_HAS_CUDA
#include "devices/cuda/cuda_ops.h"
#endif

namespace tessera {

std::unique_ptr<Ops> make_ops(DeviceKind device, ThreadPool& pool, [[maybe_unused]] int local_rank) {
  if (device == DeviceKind::kCpu) return make_cpu_ops(pool);
#ifdef TESSERA_HAS_CUDA
  return make_cuda_ops(local_rank);
#else
  fail(ExitCode::kBadConfig,
       "device cuda: this program was built without it: configure with the preset cuda, or use device cpu");
#endif
}

}  // namespace tessera
