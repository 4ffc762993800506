#include "settings/run/seq2seq_settings.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "settings/run/masking_settings.h"

namespace tessera {
namespace {

// The defaults of run_summarization.py and run_translation.py.
constexpr int64_t kDefaultSourceLength = 1024;
constexpr int64_t kDefaultTargetLength = 128;

void refuse_if(bool is_given, const char* setting, const std::string& why) {
  if (is_given) fail(ExitCode::kBadConfig, "{}: {}", setting, why);
}

void refuse_sources(const DataArguments& data, const std::optional<ModelConfig>& config,
                    const DatasetOptions& options) {
  const SourceTargetArguments& given = data.source_target;
  const std::string why =
      config && config->encoder ? "the model is an encoder alone, without a decoder that writes a target: it "
                                  "predicts masked tokens of "
                                  "texts"
      : config
          ? "the model has no encoder that reads a source: it takes rows with a prompt and its completion "
            "(--column_mapping prompt=COLUMN completion=COLUMN)"
          : "it is for models with an encoder and a decoder: give the model's folder with --model";
  refuse_if(!given.summary_column.empty(), "summary_column", why);
  refuse_if(!given.source_lang.empty(), "source_lang", why);
  refuse_if(!given.target_lang.empty(), "target_lang", why);
  refuse_if(!given.source_prefix.empty(), "source_prefix", why);
  refuse_if(given.max_source_length.has_value(), "max_source_length", why + "; --max_length limits these");
  refuse_if(given.max_target_length.has_value(), "max_target_length", why + "; --max_length limits these");
  refuse_if(given.val_max_target_length.has_value(), "val_max_target_length",
            why + "; --max_length limits these");
  for (const DataSource& source : options.sources) {
    for (const auto& [field, column] : source.format.columns)
      refuse_if(field == "source" || field == "target", "column_mapping", field + ": " + why);
  }
}

void refuse_max_length(std::optional<int64_t> max_length) {
  refuse_if(max_length.value_or(kMaxRowLength) != kMaxRowLength, "max_length",
            "the model has an encoder and a decoder: max_source_length and max_target_length limit its rows");
}

void refuse_on_encoder_decoder(const DataArguments& data, std::optional<int64_t> max_length,
                               const DatasetOptions& options) {
  refuse_if(options.packing != Packing::kNone, "packing",
            "a row of a model with an encoder and a decoder is one source and its target, and no padding is "
            "computed for it: leave packing out");
  refuse_max_length(max_length);
  const std::string answers =
      "the loss of a model with an encoder and a decoder is taken on the target, and only there: leave it "
      "out";
  refuse_if(data.assistant_only_loss, "assistant_only_loss", answers);
  refuse_if(data.train_on_prompt, "train_on_prompt", answers);
  refuse_if(!data.completion_only_loss.value_or(true), "completion_only_loss", answers);
  refuse_if(!data.chat_template.empty(), "chat_template",
            "conversations are for models without an encoder: this one has rows of a source and its target");
  const bool is_known =
      !data.shape || *data.shape == RowShape::kTokens || *data.shape == RowShape::kPromptCompletion;
  refuse_if(!is_known, "dataset_format",
            fmt::format("{} is for models without an encoder: expected tokens, prompt_completion or auto",
                        data.shape ? row_shape_name(*data.shape) : ""));
}

SourceTargetColumns named_source_target(const DataArguments& data) {
  const SourceTargetArguments& given = data.source_target;
  // `text` is the setting's default, and is looked for first in any case.
  SourceTargetColumns columns = {data.text_column == "text" ? "" : data.text_column, given.summary_column,
                                 given.source_lang, given.target_lang};
  if (given.source_lang.empty() != given.target_lang.empty()) {
    fail(ExitCode::kBadConfig, "{} needs {}: a translation has two languages",
         given.source_lang.empty() ? "target_lang" : "source_lang",
         given.source_lang.empty() ? "source_lang" : "target_lang");
  }
  if (columns.has_languages() && (!columns.source.empty() || !columns.target.empty())) {
    fail(ExitCode::kBadConfig,
         "source_lang contradicts {}: translations are in the column 'translation', by language",
         columns.source.empty() ? "summary_column" : "text_column");
  }
  if (data.shape == RowShape::kPromptCompletion) {
    if (columns.source.empty()) columns.source = "prompt";
    if (columns.target.empty()) columns.target = "completion";
  }
  return columns;
}

// Applies column_mapping to a source.
void apply_mapping(SourceTargetColumns columns, RowFormat* format) {
  constexpr std::array kOfTokens = {"input_ids", "labels", "attention_mask"};
  if (format->pairs || format->turns || format->prompt || !format->tags.role.empty()) {
    fail(ExitCode::kBadConfig,
         "dataset_formats: the formats of conversations and prompts are for models without an encoder: name "
         "source and target with --text_column and --summary_column");
  }
  std::vector<std::pair<std::string, std::string>> of_tokens;
  for (auto& [field, column] : format->columns) {
    if (std::ranges::find(kOfTokens, field) != kOfTokens.end()) {
      of_tokens.emplace_back(field, column);
      continue;
    }
    const bool is_source = field == "source" || field == "prompt";
    if (!is_source && field != "target" && field != "completion") {
      fail(ExitCode::kBadConfig,
           "column_mapping: '{}' is for models without an encoder: expected source or target", field);
    }
    std::string& name = is_source ? columns.source : columns.target;
    const bool is_default = name.empty() || name == "prompt" || name == "completion";
    if (!is_default && name != column) {
      fail(ExitCode::kBadConfig, "column_mapping {}={} contradicts {} {}: give one of them", field, column,
           is_source ? "text_column" : "summary_column", name);
    }
    name = column;
  }
  format->columns = std::move(of_tokens);
  format->text_column = "text";
  if (format->shape == RowShape::kPromptCompletion) format->shape = RowShape::kSourceTarget;
  format->source_target = std::move(columns);
}

}  // namespace

int64_t source_target_limit(const SourceTargetArguments& given, std::optional<int64_t> max_length) {
  refuse_max_length(max_length);
  return given.max_source_length.value_or(kDefaultSourceLength) +
         given.max_target_length.value_or(kDefaultTargetLength);
}

void fit_rows_to_model(const DataArguments& data, const std::optional<ModelConfig>& config, RowUse use,
                       std::optional<int64_t> max_length, DatasetOptions* options) {
  if (!config || !config->encoder) refuse_masking(data, config.has_value());
  if (!config || !config->encoder_decoder) refuse_sources(data, config, *options);
  if (config && config->encoder) return fit_rows_to_encoder(data, *config, max_length, options);
  if (!config || !config->encoder_decoder) return;
  refuse_on_encoder_decoder(data, max_length, *options);
  const SourceTargetArguments& given = data.source_target;
  const SourceTargetColumns columns = named_source_target(data);
  for (DataSource& source : options->sources) apply_mapping(columns, &source.format);
  SourceTarget rows;
  rows.decoder_start_token_id = config->encoder_decoder->decoder_start_token_id;
  rows.pad_token_id = static_cast<int32_t>(config->pad_token_id.value_or(rows.decoder_start_token_id));
  rows.source_prefix = given.source_prefix;
  rows.max_source_length = given.max_source_length.value_or(kDefaultSourceLength);
  rows.max_target_length = given.max_target_length.value_or(kDefaultTargetLength);
  rows.cuts_token_ids = given.max_source_length || given.max_target_length;
  if (use == RowUse::kEvaluation && given.val_max_target_length) {
    rows.max_target_length = *given.val_max_target_length;
    rows.cuts_token_ids = true;
  }
  use_sources_and_targets(rows, columns, options);
}

}  // namespace tessera
