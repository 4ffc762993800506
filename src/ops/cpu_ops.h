// Ops on the processor: every call goes to the kernel that kernels/dispatch.h chose for this machine.
#pragma once

#include <memory>

#include "ops/ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// `pool` must outlive them.
std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool);

}  // namespace tessera
