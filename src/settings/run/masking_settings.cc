#include "settings/run/masking_settings.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/error.h"
#include "data/masked_rows.h"

namespace tessera {
namespace {

void refuse_setting_if(bool is_given, const char* setting, const std::string& why) {
  if (is_given) fail(ExitCode::kBadConfig, "{}: {}", setting, why);
}

void refuse_on_encoder(const DataArguments& data, const DatasetOptions& options) {
  if (data.stage == TrainingStage::kPt || data.stage == TrainingStage::kSft) {
    fail(ExitCode::kBadConfig,
         "stage {}: the model is an encoder, which predicts masked tokens: write mlm, or leave it out",
         word_of(data.stage));
  }
  const std::string no_answers =
      "the model is an encoder, which predicts masked tokens and no answers: leave it out";
  refuse_setting_if(data.assistant_only_loss, "assistant_only_loss", no_answers);
  refuse_setting_if(data.train_on_prompt, "train_on_prompt", no_answers);
  refuse_setting_if(data.completion_only_loss.value_or(false), "completion_only_loss", no_answers);
  refuse_setting_if(!data.chat_template.empty(), "chat_template",
                    "the model is an encoder, which has rows of texts or token ids: leave it out");
  const bool is_known = !data.shape || *data.shape == RowShape::kTokens || *data.shape == RowShape::kText;
  refuse_setting_if(!is_known, "dataset_format",
                    fmt::format("{} is for decoders: an encoder has rows of text or tokens",
                                data.shape ? row_shape_name(*data.shape) : ""));
  for (const DataSource& source : options.sources) {
    const RowFormat& format = source.format;
    refuse_setting_if(format.pairs || format.turns || format.prompt || !format.tags.role.empty(),
                      "dataset_formats", "the formats of conversations and prompts are for decoders");
    for (const auto& [field, column] : format.columns) {
      constexpr std::array kFields = {"text", "input_ids", "labels", "attention_mask", "token_type_ids"};
      refuse_setting_if(
          std::ranges::find(kFields, field) == kFields.end(), "column_mapping",
          field +
              " is for decoders: an encoder has text, or input_ids, labels, attention_mask, token_type_ids");
    }
  }
}

}  // namespace

void fit_rows_to_encoder(const DataArguments& data, const ModelConfig& config,
                         std::optional<int64_t> max_length, DatasetOptions* options) {
  refuse_on_encoder(data, *options);
  const int64_t num_positions = config.max_position_embeddings;
  if (config.encoder->has_positions && max_length.value_or(0) > num_positions) {
    fail(ExitCode::kBadConfig,
         "max_length {}: the model has a table of {} positions (max_position_embeddings), and no more tokens "
         "in a "
         "row",
         *max_length == kMaxRowLength ? "none" : std::to_string(*max_length), num_positions);
  }
  const MaskingArguments& given = data.masking;
  MaskingRule rule;
  rule.num_token_types = static_cast<int32_t>(std::max<int64_t>(1, config.encoder->type_vocab_size));
  rule.mlm_probability = given.mlm_probability.value_or(rule.mlm_probability);
  rule.mask_replace_prob = given.mask_replace_prob.value_or(rule.mask_replace_prob);
  rule.random_replace_prob = given.random_replace_prob.value_or(rule.random_replace_prob);
  if (rule.mask_replace_prob + rule.random_replace_prob > 1 + 1e-9) {
    fail(ExitCode::kBadConfig,
         "mask_replace_prob {} and random_replace_prob {} are shares of the same tokens: expected a sum of "
         "at most "
         "1",
         rule.mask_replace_prob, rule.random_replace_prob);
  }
  use_masked_rows(std::move(rule), max_length.value_or(num_positions), options);
}

void refuse_masking(const DataArguments& data, bool has_model) {
  const std::string why =
      has_model
          ? "masked tokens are predicted by encoders (BERT, XLM-RoBERTa, ModernBERT), and this model is none"
          : "it is for encoders: give the model's folder with --model";
  refuse_setting_if(data.stage == TrainingStage::kMlm, "stage mlm", why);
  refuse_setting_if(data.masking.mlm_probability.has_value(), "mlm_probability", why);
  refuse_setting_if(data.masking.mask_replace_prob.has_value(), "mask_replace_prob", why);
  refuse_setting_if(data.masking.random_replace_prob.has_value(), "random_replace_prob", why);
}

}  // namespace tessera
