// The lists of datasets of Axolotl's configuration files.
#pragma once

#include "arguments/foreign/foreign_settings.h"

namespace tessera {

// `datasets:` and `test_datasets:`, lists of objects with path, type, ...: dataset, eval_dataset and their
// formats. Whether the answers alone are trained on.
bool translate_axolotl_datasets(ForeignSettings* settings);

}  // namespace tessera
