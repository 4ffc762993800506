// The operations of the device that a run names.
#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "ops/ops.h"
#include "platform/thread_pool.h"

namespace tessera {

// Makes the operations of a device; `pool` must outlive them.
using OpsFactory = std::function<std::unique_ptr<Ops>(ThreadPool& pool)>;

// "cpu" or "cuda", of which the ranks of a machine may share one card or have several. Error(kBadConfig)
// saying what hinders a device: a program without it, a machine without it.
std::unique_ptr<Ops> make_ops(std::string_view device, ThreadPool& pool, int local_rank = 0);

}  // namespace tessera
