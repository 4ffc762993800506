// A model of which only sizes are asked, on a rank with any number of threads, or on another device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "model/families.h"
#include "ops/cpu_ops.h"
#include "ops/make_ops.h"
#include "platform/thread_pool.h"

namespace tessera {

struct PlannedModel {
  PlannedModel(const ModelConfig& config, DType dtype, int64_t num_threads,
               const OpsFactory& make = make_cpu_ops)
      : pool(num_threads, CpuLimits()), ops(make(pool)), model(make_model(config, dtype, *ops)) {}

  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<TrainableModel> model;
};

}  // namespace tessera
