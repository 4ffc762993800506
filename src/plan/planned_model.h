// A model used only for its sizes, on a rank with any number of threads, or on another device.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "context/context_ops.h"
#include "devices/make_ops.h"
#include "model/families/families.h"
#include "ops/cpu_ops.h"
#include "platform/thread_pool.h"

namespace tessera {

struct PlannedModel {
  // `context_size` ranks share rows.
  PlannedModel(const ModelConfig& config, DType dtype, int64_t num_threads,
               const OpsFactory& make = make_cpu_ops, int64_t context_size = 1)
      : pool(num_threads, CpuLimits()),
        ops(make(pool)),
        context_ops(*ops, context_size),
        model(make_model(config, dtype, context_size > 1 ? context_ops : *ops)) {}

  ThreadPool pool;
  std::unique_ptr<Ops> ops;
  ContextOps context_ops;
  std::unique_ptr<TrainableModel> model;
};

}  // namespace tessera
