// The mixture of data sets in a YAML file of TRL.
#pragma once

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// Replaces `datasets`, a list of objects with the fields of TRL's DatasetConfig, by dataset. Leaves the lists
// of Axolotl, whose entries have a type or whose file has a base_model. Errors (kBadConfig) name the line.
void translate_trl_datasets(ForeignSettings* settings);

}  // namespace tessera
