#include "settings/derived.h"

#include <gmock/gmock.h>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class QuantizationArguments : public ArgumentsTest {
 protected:
  QuantizationArguments() { give("finetuning_type", "lora"); }
  Quantization form() {
    resolve();
    return base_quantization_of(spec_.base);
  }
};

TEST_F(QuantizationArguments, QuantizationBitHasTheDefaultsOfLlamaFactory) {
  EXPECT_EQ(form(), Quantization::kNone);
  give("quantization_bit", "8");
  EXPECT_EQ(form(), Quantization::kInt8);
  give("quantization_bit", "4");
  EXPECT_EQ(form(), Quantization::kNf4Double);
  give("quantization_type", "nf4");
  give("double_quantization", "false");
  EXPECT_EQ(form(), Quantization::kNf4);
}

TEST_F(QuantizationArguments, LoadingInBitsHasTheDefaultsOfHuggingFace) {
  give("load_in_8bit", "true");
  EXPECT_EQ(form(), Quantization::kInt8);
  give("load_in_8bit", "false");
  give("load_in_4bit", "true");
  EXPECT_EQ(form(), Quantization::kNf4);
  give("bnb_4bit_use_double_quant", "true");
  EXPECT_EQ(form(), Quantization::kNf4Double);
}

TEST_F(QuantizationArguments, WhatContradictsItselfIsRefused) {
  give("quantization_bit", "2");
  EXPECT_EQ(contradiction(), "quantization_bit: expected 8 or 4, found 2");
  give("quantization_bit", "8");
  give("bnb_4bit_use_double_quant", "true");
  EXPECT_EQ(contradiction(), "bnb_4bit_use_double_quant: needs weights in 4 bits, found 8");
  give("load_in_4bit", "true");
  EXPECT_THAT(contradiction(), HasSubstr("load_in_4bit contradicts quantization_bit 8"));
  give("quantization_bit", "4");
  give("load_in_8bit", "true");
  EXPECT_THAT(contradiction(), HasSubstr("load_in_8bit contradicts quantization_bit 4"));
  give("load_in_8bit", "false");
  EXPECT_EQ(form(), Quantization::kNf4Double);
  give("finetuning_type", "full");
  EXPECT_THAT(contradiction(), HasSubstr("quantization_bit: needs finetuning_type lora, found full"));
}

TEST_F(QuantizationArguments, OnlyOneFormIsAskedFor) {
  give("load_in_8bit", "true");
  give("load_in_4bit", "true");
  EXPECT_THAT(contradiction(), HasSubstr("load_in_4bit contradicts load_in_8bit"));
}

}  // namespace
}  // namespace tessera
