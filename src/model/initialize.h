#pragma once

#include <cstdint>
#include <span>

#include "formats/huggingface/model_config.h"
#include "model/parameters.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Hugging Face's initialisation: normal(0, initializer_range) for linear layers and embeddings, ones for
// norms, zeros for biases; the matrices of T5 by their widths, those of ModernBERT cut off at
// initializer_cutoff_factor deviations. Adapters as in PEFT: A uniform in [-1, 1) /
// sqrt(in), which is kaiming_uniform_ with a = sqrt(5), and B zero. An element's value depends only on seed,
// tensor name and position.
void initialize_parameter(const Parameter& parameter, const ModelConfig& config, uint64_t seed, int64_t begin,
                          TensorView destination);

// Initializes the flat elements [begin, begin + values.size()) of a model; zeros in the gaps between
// parameters and, as Hugging Face does, in the embedding of the padding token, except in T5 and ModernBERT.
void initialize_elements(const ParameterLayout& layout, const ModelConfig& config, uint64_t seed,
                         int64_t begin, std::span<float> values);

}  // namespace tessera
