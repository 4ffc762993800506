// Datasets as the configuration files of LLaMA-Factory and their dataset_info.json describe them.
#pragma once

#include "settings/foreign/foreign_settings.h"

namespace tessera {

// A file is LLaMA-Factory's if it has `template` or `dataset_dir`, or another setting that only LLaMA-Factory
// has together with names of data sets that data/dataset_info.json describes. In that case `dataset: a, b`
// are names in dataset_info.json of dataset_dir ("data"): their files or hub names, columns, tags and targets
// become dataset_formats, and omitted settings have LLaMA-Factory's default (LoRA, targets, packing).
void translate_llama_factory_datasets(ForeignSettings* settings);

}  // namespace tessera
