// The table of model families: the class that computes a config.json's model.
#pragma once

#include <memory>

#include "formats/huggingface/model_config.h"
#include "model/token_generator.h"
#include "model/trainable_model.h"

namespace tessera {

// dtype is BF16 or F32. `ops` must outlive the model.
std::unique_ptr<TrainableModel> make_model(const ModelConfig& config, DType dtype, Ops& ops);

// The layout of what make_model() would make.
ParameterLayout parameter_layout(const ModelConfig& config);

// Generation with a model of make_model(), for texts of at most `capacity` tokens, prompts included (or for
// as many of a source and of its target); and the bytes it takes. Error(kBadConfig) for other models.
std::unique_ptr<TokenGenerator> make_generator(TrainableModel& model, int64_t capacity);
int64_t generator_bytes(const TrainableModel& model, int64_t capacity);

}  // namespace tessera
