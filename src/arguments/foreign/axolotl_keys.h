// What becomes of every setting that Axolotl's configuration files know.
#pragma once

#include <span>
#include <string_view>

namespace tessera {

enum class AxolotlUse {
  kSame,        // our flag `detail`, or the one with the same name if that is ""
  kTranslated,  // read by translate_axolotl(): `detail` says what it becomes
  kNoEffect,    // dropped with a warning; `detail` says why
  kRefused,     // an error unless its value is harmless; `detail` says why
};

struct AxolotlKeys {
  AxolotlUse use;
  const char* names;  // separated by spaces
  const char* detail;
  const char* harmless = "";  // kRefused: accepted values as JSON, separated by spaces, besides null
};

// AxolotlInputConfig of Axolotl 0.19 with the arguments of its plugins for kernels.
std::span<const AxolotlKeys> axolotl_keys();
// The same for an entry of datasets, test_datasets (SFTDataset).
std::span<const AxolotlKeys> axolotl_dataset_keys();

// Null if Axolotl has no such key.
const AxolotlKeys* find_axolotl_key(std::span<const AxolotlKeys> keys, std::string_view name);

}  // namespace tessera
