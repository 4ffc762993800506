#include "settings/run/seq2seq_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class Seq2SeqSettingsTest : public ::testing::Test {
 protected:
  static ModelConfig t5() {
    return parse_model_config(
        R"({"model_type": "t5", "vocab_size": 100, "d_model": 32, "d_ff": 64, "num_layers": 2, "num_heads": 4,
            "d_kv": 8, "decoder_start_token_id": 3, "pad_token_id": 5, "is_encoder_decoder": true,
            "dropout_rate": 0})",
        "config.json");
  }
  static ModelConfig llama() {
    return parse_model_config(
        R"({"model_type": "llama", "vocab_size": 100, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4})",
        "config.json");
  }
  DatasetOptions fit(const ModelConfig& config, RowUse use = RowUse::kTraining) {
    DatasetOptions options = dataset_options(data_, {"d.jsonl"}, "tokenizer");
    options.packing = packing_;
    fit_rows_to_model(data_, config, use, max_length_, &options);
    return options;
  }
  std::string refusal(const ModelConfig& config) {
    const Error error = error_of([&] { fit(config); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }
  template <typename T>
  std::string refusal_with(const ModelConfig& config, T* setting, T value) {
    const T before = std::exchange(*setting, value);
    std::string text = refusal(config);
    *setting = before;
    return text;
  }

  DataArguments data_;
  std::optional<int64_t> max_length_;
  Packing packing_ = Packing::kNone;
};

TEST_F(Seq2SeqSettingsTest, TheModelDecidesOnTheRows) {
  const DatasetOptions options = fit(t5());
  const SourceTarget expected = {.decoder_start_token_id = 3, .pad_token_id = 5};
  EXPECT_EQ(options.source_target, expected) << "1024 and 128 tokens, as in Transformers' examples";
  EXPECT_EQ(options.sources[0].format.source_target, SourceTargetColumns());
  EXPECT_EQ(source_target_limit({}, {}), 1024 + 128);
  EXPECT_FALSE(fit(llama()).source_target);
  EXPECT_FALSE(fit(llama()).sources[0].format.source_target);
}

TEST_F(Seq2SeqSettingsTest, TheSettingsOfTransformersExamplesAreTaken) {
  data_.text_column = "body";
  SourceTargetArguments& given = data_.source_target;
  given.summary_column = "title";
  given.source_prefix = "summarize: ";
  given.max_source_length = 40;
  given.max_target_length = 20;
  given.val_max_target_length = 30;
  const DatasetOptions train = fit(t5());
  EXPECT_EQ(train.source_target->source_prefix, "summarize: ");
  EXPECT_EQ(train.source_target->max_source_length, 40);
  EXPECT_EQ(train.source_target->max_target_length, 20);
  EXPECT_TRUE(train.source_target->cuts_token_ids);
  EXPECT_EQ(train.sources[0].format.source_target,
            (SourceTargetColumns{.source = "body", .target = "title"}));
  EXPECT_EQ(train.sources[0].format.text_column, "text") << "there are no rows of a text alone";
  EXPECT_EQ(fit(t5(), RowUse::kEvaluation).source_target->max_target_length, 30);
  data_.source_target.val_max_target_length.reset();
  EXPECT_EQ(fit(t5(), RowUse::kEvaluation).source_target->max_target_length, 20);
}

TEST_F(Seq2SeqSettingsTest, ColumnsMayBeMappedAndTheFormatNamed) {
  data_.column_mapping = {"prompt=q", "target=a", "labels=l"};
  const DatasetOptions options = fit(t5());
  EXPECT_EQ(options.sources[0].format.source_target, (SourceTargetColumns{.source = "q", .target = "a"}));
  EXPECT_THAT(options.sources[0].format.columns, ElementsAre(Pair("labels", "l")));
  data_.column_mapping = {"messages=m"};
  EXPECT_THAT(refusal(t5()), HasSubstr("column_mapping: 'messages' is for models without an encoder"));
  data_.column_mapping = {"source=a"};
  EXPECT_THAT(refusal(llama()), HasSubstr("column_mapping: source: the model has no encoder"));
  data_.text_column = "b";
  EXPECT_THAT(refusal(t5()), HasSubstr("column_mapping source=a contradicts text_column b"));
  data_ = {};
  data_.shape = RowShape::kPromptCompletion;
  EXPECT_EQ(fit(t5()).sources[0].format.source_target,
            (SourceTargetColumns{.source = "prompt", .target = "completion"}));
  EXPECT_EQ(fit(t5()).sources[0].format.shape, RowShape::kSourceTarget);
}

TEST_F(Seq2SeqSettingsTest, ADecoderRefusesTheSettingsOfSources) {
  SourceTargetArguments& given = data_.source_target;
  const std::optional<int64_t> length = 8;
  EXPECT_THAT(refusal_with<std::string>(llama(), &given.summary_column, "a"),
              HasSubstr("summary_column: the model has no encoder"));
  EXPECT_THAT(refusal_with<std::string>(llama(), &given.source_lang, "a"), HasSubstr("source_lang: "));
  EXPECT_THAT(refusal_with<std::string>(llama(), &given.target_lang, "a"), HasSubstr("target_lang: "));
  EXPECT_THAT(refusal_with<std::string>(llama(), &given.source_prefix, "a"), HasSubstr("source_prefix: "));
  EXPECT_THAT(refusal_with(llama(), &given.max_source_length, length), HasSubstr("max_source_length: "));
  EXPECT_THAT(refusal_with(llama(), &given.max_target_length, length), HasSubstr("max_target_length: "));
  EXPECT_THAT(refusal_with(llama(), &given.val_max_target_length, length),
              HasSubstr("val_max_target_length: the model has no encoder"));
  given.source_prefix = "a";
  DatasetOptions options = dataset_options(data_, {"d.jsonl"}, "tokenizer");
  expect_error(ExitCode::kBadConfig, {"source_prefix: it is for models with an encoder", "--model"},
               [&] { fit_rows_to_model(data_, std::nullopt, RowUse::kTraining, {}, &options); });
}

TEST_F(Seq2SeqSettingsTest, AnEncoderDecoderRefusesTheSettingsOfDecoders) {
  packing_ = Packing::kByRows;
  EXPECT_THAT(refusal(t5()),
              HasSubstr("packing: a row of a model with an encoder and a decoder is one source"));
  packing_ = Packing::kNone;
  max_length_ = 100;
  EXPECT_THAT(refusal(t5()), HasSubstr("max_length: the model has an encoder and a decoder"));
  max_length_ = kMaxRowLength;
  EXPECT_TRUE(fit(t5()).source_target) << "none limits nothing";
  EXPECT_THAT(refusal_with(t5(), &data_.assistant_only_loss, true), HasSubstr("assistant_only_loss: "));
  EXPECT_THAT(refusal_with(t5(), &data_.train_on_prompt, true), HasSubstr("train_on_prompt: "));
  EXPECT_THAT(refusal_with(t5(), &data_.completion_only_loss, std::optional(false)),
              HasSubstr("completion_only_loss: "));
  EXPECT_THAT(refusal_with<std::string>(t5(), &data_.chat_template, "chatml"), HasSubstr("chat_template: "));
  EXPECT_THAT(refusal_with(t5(), &data_.shape, std::optional(RowShape::kMessages)),
              HasSubstr("dataset_format: messages is for models without an encoder"));
  EXPECT_THAT(refusal_with<std::string>(t5(), &data_.dataset_formats,
                                        R"({"d.jsonl": {"tags": {"role": "speaker"}}})"),
              HasSubstr("dataset_formats: "));
  EXPECT_THAT(refusal_with<std::string>(t5(), &data_.source_target.source_lang, "en"),
              HasSubstr("source_lang needs target_lang"));
  data_.source_target.source_lang = "en";
  data_.source_target.target_lang = "de";
  EXPECT_THAT(refusal_with<std::string>(t5(), &data_.text_column, "a"),
              HasSubstr("source_lang contradicts text_column"));
  EXPECT_TRUE(fit(t5()).sources[0].format.source_target->has_languages());
}

}  // namespace
}  // namespace tessera
