// The arithmetic peak that a run's speed is compared with.
#pragma once

#include <optional>

#include "platform/peak.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

// The fastest instruction set that products of `dtype` may use here, within TESSERA_ISA: the median of a few
// short slices on every thread of the pool, in turn with those that come near it; about 30 ms. Nothing when
// no vector instruction set is allowed.
std::optional<ComputePeak> measure_training_peak(ThreadPool& pool, DType dtype);

}  // namespace tessera
