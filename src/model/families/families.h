// The table of model families: the class that computes a config.json's model.
#pragma once

#include <memory>

#include "formats/huggingface/model_config.h"
#include "model/trainable_model.h"

namespace tessera {

// dtype is BF16 or F32. `ops` must outlive the model.
std::unique_ptr<TrainableModel> make_model(const ModelConfig& config, DType dtype, Ops& ops);

// The layout of what make_model() would make.
ParameterLayout parameter_layout(const ModelConfig& config);

}  // namespace tessera
