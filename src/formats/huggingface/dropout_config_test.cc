#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "formats/json.h"
#include "support/model_config_test_util.h"

namespace tessera {
namespace {

using testing::HasSubstr;

DropoutRates rates_of(const Json& json) { return parse_model_config(json.dump(), "config.json").dropout; }

void expect_refused(const Json& json, const char* text) {
  EXPECT_THAT(std::string(error_of([&] { rates_of(json); }).what()), HasSubstr(text));
}

TEST(DropoutConfig, EveryDecoderDropsWeightsOfAttention) {
  for (const FamilyInfo& family : model_families()) {
    if (family.kind != FamilyKind::kDecoder) continue;
    EXPECT_FALSE(rates_of(base_config(family.model_type)).any()) << family.model_type;
    EXPECT_EQ(rates_of(base_config(family.model_type, {{"attention_dropout", 0.1}})),
              DropoutRates{.attention = 0.1})
        << family.model_type;
    for (const double rate : {-0.1, 1.0}) {
      expect_refused(base_config(family.model_type, {{"attention_dropout", rate}}),
                     "'attention_dropout': expected a number from 0 to below 1");
    }
  }
}

TEST(DropoutConfig, Phi3DropsWhatItsBlocksAdd) {
  const DropoutRates expected = {.attention_output = 0.2, .mlp_output = 0.2};
  EXPECT_EQ(rates_of(base_config("phi3", {{"resid_pdrop", 0.2}})), expected);
  expect_refused(base_config("phi3", {{"embd_pdrop", 0.2}}), "'embd_pdrop': 0.2 is not supported");
  expect_refused(base_config("llama", {{"resid_pdrop", 0.2}}), "'resid_pdrop': 0.2 is not supported");
}

TEST(DropoutConfig, EncodersAndT5HaveTheirOwnFields) {
  EXPECT_EQ(rates_of({{"model_type", "t5"}}), (DropoutRates{0.1, 0.1, 0.1, 0.1, 0.1, 0.1}));
  EXPECT_FALSE(rates_of({{"model_type", "t5"}, {"dropout_rate", 0}}).any());
  const DropoutRates bert = {.embedding = 0.1, .attention = 0.3, .attention_output = 0.1, .mlp_output = 0.1};
  EXPECT_EQ(rates_of({{"model_type", "bert"}, {"attention_probs_dropout_prob", 0.3}}), bert);
  const DropoutRates modernbert = {
      .embedding = 0.1, .attention = 0.2, .attention_output = 0.2, .mlp_hidden = 0.3};
  EXPECT_FALSE(rates_of({{"model_type", "modernbert"}}).any());
  EXPECT_EQ(rates_of({{"model_type", "modernbert"},
                      {"embedding_dropout", 0.1},
                      {"attention_dropout", 0.2},
                      {"mlp_dropout", 0.3}}),
            modernbert);
}

}  // namespace
}  // namespace tessera
