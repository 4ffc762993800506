// Settings of LoRA adapters, named as in PEFT and LLaMA-Factory, and the adapters that they ask for.
#pragma once

#include <optional>

#include "formats/huggingface/lora_config.h"
#include "settings/run_settings.h"

namespace tessera {

void declare_lora_flags(FlagTable* table, RunSpec* args);
// Error(kBadConfig) for settings of adapters in a run that trains none, or beside an adapter that has its
// own.
void check_lora_arguments(const FlagTable& table, const RunSpec& args);
// nullopt = all weights are trained. Reads the configuration of adapter_name_or_path. Errors of
// read_lora_config(); kBadConfig for values that contradict each other.
std::optional<LoraConfig> lora_config_of(const RunSpec& args);

}  // namespace tessera
