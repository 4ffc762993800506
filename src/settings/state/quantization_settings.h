// Settings of the form in which the weights beside LoRA adapters are kept, named as in Hugging Face's
// BitsAndBytesConfig and in LLaMA-Factory.
#pragma once

#include "settings/run_settings.h"
#include "tensor/quantization.h"

namespace tessera {

void declare_quantization_flags(FlagTable* table, RunSpec* args);
// Error(kBadConfig) for settings that contradict each other, or without adapters.
void check_quantization_arguments(const FlagTable& table, const RunSpec& args);
Quantization base_quantization_of(const RunSpec& args);

}  // namespace tessera
