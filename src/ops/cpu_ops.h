// Ops on the processor: every call goes to the kernel that kernels/dispatch.h chose for this machine.
#pragma once

#include <functional>
#include <memory>

#include "ops/ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// Makes the operations of a device; `pool` must outlive them.
using OpsFactory = std::function<std::unique_ptr<Ops>(ThreadPool& pool)>;

std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool);

}  // namespace tessera
