// The settings by which files become rows: flags that all commands that read datasets share.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/choice.h"
#include "base/flags.h"
#include "data/dataset.h"

namespace tessera {

// Of rows for models with an encoder and a decoder (seq2seq_settings.h).
struct SourceTargetArguments {
  std::string summary_column;
  std::string source_lang;
  std::string target_lang;
  std::string source_prefix;
  std::optional<int64_t> max_source_length;
  std::optional<int64_t> max_target_length;
  std::optional<int64_t> val_max_target_length;  // unset = as max_target_length
};

// What a model learns: pt and sft are the next token, mlm masked ones, auto what it is made for.
enum class TrainingStage { kAuto, kPt, kSft, kMlm };
constexpr auto choice_words(TrainingStage) {
  using enum TrainingStage;
  return std::to_array<Word<TrainingStage>>({{"auto", kAuto}, {"pt", kPt}, {"sft", kSft}, {"mlm", kMlm}});
}

// Of rows whose tokens are masked (masking_settings.h); unset: as MaskingRule.
struct MaskingArguments {
  std::optional<double> mlm_probability;
  std::optional<double> mask_replace_prob;
  std::optional<double> random_replace_prob;
};

struct DataArguments {
  std::string text_column = "text";
  std::optional<RowShape> shape;            // unset: recognised by their columns
  std::vector<std::string> column_mapping;  // FIELD=COLUMN
  std::string dataset_formats;              // JSON, by source
  bool text_per_line = false;
  bool add_special_tokens = true;
  bool skip_invalid_utf8 = false;
  ExcessLength excess_length_strategy = ExcessLength::kTruncate;
  bool skip_bad_rows = false;
  bool assistant_only_loss = false;
  std::optional<bool> completion_only_loss;
  bool train_on_prompt = false;
  std::string chat_template;
  std::string chat_template_date = ChatTemplateOptions().date;
  bool parse_special_tokens = false;
  SourceTargetArguments source_target;
  TrainingStage stage = TrainingStage::kAuto;
  MaskingArguments masking;

  // Set by no flag: the files of data sets on the Hugging Face Hub, by the names that the sources give them.
  std::map<std::string, std::vector<std::string>> hub_files;
};

// Declares a flag for every setting in `table`, bound to `data`, which must outlive it.
void declare_data_flags(FlagTable* table, DataArguments* data);

// The flag max_length: none is kMaxRowLength, which truncates nothing.
Flag& declare_max_length(FlagTable* table, std::optional<int64_t>* max_length);

// Tokens of a row of text if no max_length is given: 1024, or as many as the model has positions.
int64_t default_row_limit(int64_t max_position_embeddings);

// PATH, optionally followed by a slice of its rows and a weight: PATH[:1000]:WEIGHT; a path that exists
// has neither. Error(kBadConfig) for a weight that is not positive.
DataSource parse_data_source(const std::string& entry);

// The options of a dataset with these sources; length, packing and cache folder are the caller's.
// Error(kBadConfig) for settings that contradict each other.
DatasetOptions dataset_options(const DataArguments& data, const std::vector<std::string>& sources,
                               const std::filesystem::path& tokenizer_folder);

// Whether any of the sources holds text, which a tokenizer must turn into token ids: all except .safetensors.
bool needs_tokenizer(const std::vector<std::string>& sources);

}  // namespace tessera
