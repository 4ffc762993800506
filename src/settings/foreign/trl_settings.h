// Settings of TRL's YAML files that stand for others.
#pragma once

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// datasets, a list of objects with the fields of TRL's DatasetConfig; env, whose variables are set if
// anything here reads them; model_init_kwargs and dataset_kwargs, some of whose keys become settings; the
// settings of LoRA beside use_peft false, which TRL ignores. Errors (kBadConfig) name the line.
void translate_trl(ForeignSettings* settings);

}  // namespace tessera
