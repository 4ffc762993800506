// Names of a model's tensors in files: Hugging Face's, or those of a backbone saved on its own.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "formats/safetensors/safetensors.h"
#include "model/parameters.h"

namespace tessera {

inline constexpr const char* kLmHeadName = "lm_head.weight";

using WeightEntry = std::pair<const std::string, SafetensorsModel::Location>;

// The name in the model of a tensor of a file. "layers.0. ..." of LlamaModel and "model.model.layers.0. ..."
// are "model.layers.0. ...".
std::string model_name_of(std::string_view name_in_file);

// The tensor of the files for a parameter: under its name, or as model_name_of() says; for the embedding of a
// model that shares it with its LM head, the LM head; for a norm of BERT its names of old. nullptr = there is
// none.
const WeightEntry* find_weight(const SafetensorsModel& model, const ModelConfig& config,
                               const std::string& parameter);

// Files saved without conversion to the names of the Hub have the experts of a layer in one tensor, as
// Transformers 5 keeps them in memory; those of GPT-OSS always do.
//
// Where a parameter of an expert, or a router, is in such a file.
struct FusedPlace {
  std::string name;            // "model.layers.0.mlp.experts.gate_up_proj"
  std::vector<int64_t> shape;  // [experts, 2 F, D]
  int64_t first_element = 0;
};
// nullopt for other parameters.
std::optional<FusedPlace> fused_place(const ModelConfig& config, const Parameter& parameter);

// Whether a tensor of a file holds the values of the embedding once more: the LM head that shares it, and
// what T5's stacks call it.
bool repeats_embedding(const std::string& name_in_file, const ModelConfig& config);

// Whether transformers ignores the tensor, which old versions saved: rotary frequencies, which follow from
// config.json, a position bias of T5's cross attention, which has none, the heads of BERT's pretraining
// beside the one for masked tokens, and its bias once more; or the images' part of a model whose text part it
// is.
bool is_left_over(const std::string& name_in_file, const ModelConfig& config);

}  // namespace tessera
