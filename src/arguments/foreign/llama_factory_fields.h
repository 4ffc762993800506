// Arguments of LLaMA-Factory that have no counterpart here.
#pragma once

#include "base/flags.h"

namespace tessera {

// Every field of DataArguments, ModelArguments, FinetuningArguments, GeneratingArguments and
// TrainingArguments of LLaMA-Factory 0.9.5 (hparams/*.py) that is no flag and that
// translate_llama_factory_datasets() does not take: refused or without effect, with the reason. They are not
// listed in help.
void declare_llama_factory_fields(FlagTable* table);

}  // namespace tessera
