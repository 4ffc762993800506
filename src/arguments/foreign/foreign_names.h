// What other programs (Hugging Face's scripts, TRL, LLaMA-Factory, Axolotl, torchtune, Megatron-LM,
// nanoGPT, llama.cpp) call the settings of `tessera train`, and their settings that have no counterpart here.
#pragma once

#include <span>

#include "arguments/arguments.h"
#include "base/name_hint.h"

namespace tessera {

// For suggestions only: none of these names is accepted. Names that are accepted with their default value are
// in unsupported_flags.h.
std::span<const ForeignNames> training_names();

// Names of TRL, LLaMA-Factory and Axolotl that are accepted as other spellings of flags in `table`, and those
// that set a flag of another form.
void declare_other_spellings(FlagTable* table, TrainingArguments* args);

}  // namespace tessera
