#include "settings/run/masking_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "settings/run/seq2seq_settings.h"
#include "settings/run_spec.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

class MaskingSettingsTest : public ::testing::Test {
 protected:
  static ModelConfig config_of(const std::string& fields) {
    return parse_model_config(
        R"({"vocab_size": 100, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "num_attention_heads": 4, "max_position_embeddings": 48, "pad_token_id": 0, )" +
            fields + "}",
        "config.json");
  }
  static ModelConfig bert() {
    return config_of(R"("model_type": "bert", "hidden_dropout_prob": 0, "attention_probs_dropout_prob": 0)");
  }
  static ModelConfig llama() { return config_of(R"("model_type": "llama", "num_key_value_heads": 4)"); }

  DatasetOptions fit(const std::optional<ModelConfig>& config) {
    DatasetOptions options = dataset_options(data_, {"d.jsonl"}, "tokenizer");
    options.packing = packing_;
    fit_rows_to_model(data_, config, RowUse::kTraining, max_length_, &options);
    return options;
  }
  std::string refusal(const std::optional<ModelConfig>& config) {
    const Error error = error_of([&] { fit(config); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }

  DataArguments data_;
  std::optional<int64_t> max_length_;
  Packing packing_ = Packing::kNone;
};

TEST_F(MaskingSettingsTest, AnEncoderHasMaskedRowsOfAsManyTokensAsPositions) {
  const DatasetOptions options = fit(bert());
  MaskingRule expected;
  expected.max_length = 48;
  expected.num_token_types = 2;
  EXPECT_EQ(options.masking, expected) << "15 %, 80 % and 10 %, as in DataCollatorForLanguageModeling";
  EXPECT_EQ(options.max_length, 49) << "one more for the shift of labels";
  EXPECT_TRUE(options.sources[0].format.is_masked);
  EXPECT_EQ(DataSpec().row_limit(bert()), 48);
  EXPECT_FALSE(fit(llama()).masking);
  packing_ = Packing::kIsolated;
  EXPECT_EQ(fit(bert()).max_length, 48);
}

TEST_F(MaskingSettingsTest, TheSettingsOfRunMlmAreTaken) {
  data_.stage = TrainingStage::kMlm;
  data_.masking = {.mlm_probability = 0.3, .mask_replace_prob = 0.5, .random_replace_prob = 0.5};
  max_length_ = 20;
  const DatasetOptions options = fit(bert());
  EXPECT_EQ(options.masking->mlm_probability, 0.3);
  EXPECT_EQ(options.masking->mask_replace_prob, 0.5);
  EXPECT_EQ(options.masking->random_replace_prob, 0.5);
  EXPECT_EQ(options.masking->max_length, 20);
  data_.masking.random_replace_prob = 0.6;
  EXPECT_THAT(refusal(bert()), HasSubstr("expected a sum of at most 1"));
}

TEST_F(MaskingSettingsTest, RowsAreNotLongerThanTheTableOfPositions) {
  max_length_ = 49;
  EXPECT_THAT(refusal(bert()), HasSubstr("max_length 49: the model has a table of 48 positions"));
  max_length_ = kMaxRowLength;
  EXPECT_THAT(refusal(bert()), HasSubstr("max_length none"));
}

TEST_F(MaskingSettingsTest, StagesAreThoseOfTheModel) {
  data_.stage = TrainingStage::kSft;
  EXPECT_THAT(refusal(bert()), HasSubstr("stage sft: the model is an encoder"));
  EXPECT_FALSE(fit(llama()).masking);
  data_.stage = TrainingStage::kMlm;
  EXPECT_THAT(refusal(llama()), HasSubstr("stage mlm: masked tokens are predicted by encoders"));
  EXPECT_THAT(refusal(std::nullopt), HasSubstr("stage mlm: it is for encoders: give the model's folder"));
}

TEST_F(MaskingSettingsTest, SettingsOfOtherModelsAreRefused) {
  const DataArguments none;
  const auto refused = [&](const ModelConfig& config, const char* words) {
    EXPECT_THAT(refusal(config), HasSubstr(words));
    data_ = none;
  };
  data_.masking.mlm_probability = 0.2;
  refused(llama(), "mlm_probability: masked tokens are predicted by encoders");
  data_.masking.mask_replace_prob = 0.2;
  refused(llama(), "mask_replace_prob: ");
  data_.masking.random_replace_prob = 0.2;
  refused(llama(), "random_replace_prob: ");
  data_.assistant_only_loss = true;
  refused(bert(), "assistant_only_loss: the model is an encoder");
  data_.train_on_prompt = true;
  refused(bert(), "train_on_prompt: the model is an encoder");
  data_.completion_only_loss = true;
  refused(bert(), "completion_only_loss: the model is an encoder");
  data_.chat_template = "chatml";
  refused(bert(), "chat_template: the model is an encoder");
  data_.shape = RowShape::kMessages;
  refused(bert(), "dataset_format: messages is for decoders");
  data_.column_mapping = {"messages=m"};
  refused(bert(), "column_mapping: messages is for decoders");
  data_.source_target.summary_column = "a";
  refused(bert(), "summary_column: the model is an encoder alone");
}

}  // namespace
}  // namespace tessera
