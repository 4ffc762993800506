// Settings of Hugging Face's programs that are objects or lists of words, of which some parts mean what
// happens here anyway, others have no effect, and the rest is refused.
#pragma once

#include "base/flags.h"

namespace tessera {

// accelerator_config, fsdp, fsdp_config, model_init_kwargs, dataset_kwargs, env.
void declare_judged_flags(FlagTable* table);

}  // namespace tessera
