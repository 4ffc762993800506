// PyTorch's FSDP by the names of Transformers, accelerate and Axolotl: --fsdp and --fsdp_config become
// zero_stage and other flags. The lines fsdp.WORD and fsdp_config.KEY of compat/transformers.tsv say what
// becomes of each.
#pragma once

#include "base/flags.h"
#include "settings/fsdp/fsdp_words.h"

namespace tessera {

struct ModelConfig;
struct RunSettings;

// Reading a flag checks each word, key and value. Error(kUsage) for one that is not known or is refused.
void declare_fsdp_flags(FlagTable* table, RunSettings* spec);

// Call once command line and configuration file have been read: sets zero_stage, gather_schedule,
// gradient_checkpointing, offload_param_device and the type of gradients between nodes, and warns of what has
// no effect. Error(kBadConfig) for settings that contradict each other, by the rules of Transformers 5.24 and
// accelerate 1.15.
void apply_fsdp(FlagTable* table, RunSettings* spec);

// Error(kBadConfig) if the model has no module of a class in transformer_layer_cls_to_wrap.
void check_wrapped_classes(const FsdpArguments& fsdp, const ModelConfig& config);

}  // namespace tessera
