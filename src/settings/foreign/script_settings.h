// The names by which TRL's scripts and Transformers' examples give data, model and adapters: dataset_name
// with a configuration and splits, model_revision, use_peft. They become the flags of `tessera train`.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

struct RunSettings;

struct ScriptArguments {
  std::string dataset_name;    // a folder, a file or a name on the Hub
  std::string dataset_config;  // "" = the default one
  std::string dataset_train_split = "train";
  std::string dataset_test_split;  // "" = test, or validation beside dataset_config_name
  std::string model_revision = "main";
  bool use_peft = false;
  std::string eos_token;  // "" = the tokenizer's
};

// The data that load_dataset(name, config)[split] reads, as sources of a dataset: the files of the split in a
// folder, a file, or a name on the Hub. kNoInput.
std::vector<std::string> split_sources(const std::string& name, const std::string& config,
                                       const std::string& split);

void declare_script_flags(FlagTable* table, RunSettings* spec);

// Call once command line and configuration file have been read: sets dataset, eval_dataset, model,
// finetuning_type and the defaults of TRL that differ from Trainer's. Error(kBadConfig) for settings that
// contradict each other; kNoInput for a split that a folder lacks.
void apply_script_arguments(FlagTable* table, RunSettings* spec);

}  // namespace tessera
