// Configuration files of Axolotl (AxolotlInputConfig of 0.19): every setting is translated, dropped with a
// warning that says why it has no effect, or refused.
#pragma once

#include <string>
#include <vector>

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// A file with data sets as objects that have a type, or with base_model beside another of Axolotl's names.
bool is_axolotl_file(const std::vector<ConfigSetting>& settings);

// Replaces the settings by ours, and adds Axolotl's defaults where they differ from ours. Error(kBadConfig)
// as translate_foreign_datasets().
void translate_axolotl(ForeignSettings* settings);

}  // namespace tessera
