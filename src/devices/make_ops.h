// The operations of the device that a run names.
#pragma once

#include <functional>
#include <memory>

#include "ops/ops.h"
#include "platform/thread_pool.h"
#include "tensor/device_kind.h"

namespace tessera {

// Makes the operations of a device; `pool` must outlive them.
using OpsFactory = std::function<std::unique_ptr<Ops>(ThreadPool& pool)>;

// The ranks of a machine may share one card or have several. Error(kBadConfig) saying what hinders a device:
// a program without it, a machine without it.
std::unique_ptr<Ops> make_ops(DeviceKind device, ThreadPool& pool, int local_rank = 0);
// Makes them once the pool is known, on the first card.
inline OpsFactory ops_factory(DeviceKind device) {
  return [device](ThreadPool& pool) { return make_ops(device, pool); };
}

}  // namespace tessera
