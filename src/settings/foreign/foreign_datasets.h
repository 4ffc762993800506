// Datasets as the configuration files of LLaMA-Factory and Axolotl describe them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tessera {

// One setting of a configuration file; its value is JSON regardless of the file's syntax.
struct ConfigSetting {
  std::string name;
  nlohmann::json value;
  int64_t line;              // from 1
  std::string ordered = {};  // of an object: its JSON text with the keys in the order of the file
};

// Replaces what only those programs understand by the flags dataset, eval_dataset, dataset_formats,
// chat_template, assistant_only_loss:
//   LLaMA-Factory  `dataset: a, b` with `dataset_dir` or `template` beside it: names in dataset_info.json of
//                  dataset_dir ("data"), their files or hub names, columns and tags; `interleave_probs` as
//                  weights
//   both           `val_size`, `val_set_size`: a share of the rows
//   Axolotl        `datasets:` and `test_datasets:`, lists of objects with path, type, ...
// Other settings stay as they are. Errors (kBadConfig) name `origin`, the line and the requested feature that
// is missing here; kNoInput and kBadData of dataset_info.json.
void translate_foreign_datasets(const std::string& origin, std::vector<ConfigSetting>* settings);

}  // namespace tessera
