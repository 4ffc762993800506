// Datasets as the configuration files of LLaMA-Factory and their dataset_info.json describe them.
#pragma once

#include "arguments/foreign/foreign_settings.h"

namespace tessera {

// `template`, and `dataset: a, b` with `dataset_dir` or `template` beside it: names in dataset_info.json of
// dataset_dir ("data"), their files or hub names, columns and tags; `interleave_probs` as weights.
void translate_llama_factory_datasets(ForeignSettings* settings);

}  // namespace tessera
