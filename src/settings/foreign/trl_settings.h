// Settings of TRL's YAML files that stand for others.
#pragma once

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// env, whose variables are set if anything here reads them; model_init_kwargs and dataset_kwargs, of which
// some keys become settings; the settings of LoRA beside use_peft false, which TRL reads over.
void translate_trl_settings(ForeignSettings* settings);

}  // namespace tessera
