// Entries of LLaMA-Factory's dataset_info.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "formats/json.h"

namespace tessera {

// Requirements of the settings outside the entry.
struct LlamaFactoryRows {
  bool is_pretraining = false;    // stage pt
  bool names_stage = false;       // stage is given
  bool last_answer_only = false;  // mask_history
  std::optional<std::string> default_system;
  std::optional<int64_t> max_samples;  // of every data set, the first ones
  int64_t num_held_out = 0;            // of the first ones, for evaluation alone

  // "[:100]", or "" for all rows.
  std::string slice(bool is_evaluation) const;
};

// The file, glob or Hub name of an entry, followed by its slice of rows. Error(kBadConfig): a key that
// no version knows, a source or a kind of rows that is not supported.
std::string llama_factory_source(const std::filesystem::path& dataset_dir, const JsonNode& entry,
                                 const LlamaFactoryRows& rows, bool is_evaluation);

// An entry of dataset_formats. `entry` may be null: a data set of the hub without a description. Warns of
// what LLaMA-Factory does not read. Error(kBadConfig): unknown keys, and what is not supported.
nlohmann::json llama_factory_format(const JsonNode& entry, const LlamaFactoryRows& rows);

}  // namespace tessera
