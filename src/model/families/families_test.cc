#include "model/families/families.h"

#include <gtest/gtest.h>

#include "expect_error.h"
#include "formats/huggingface/model_families.h"
#include "support/isolated_device.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

TEST(Families, EveryFamilyOfConfigJsonHasAModel) {
  ThreadPool pool(1);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  for (const FamilyInfo& info : model_families()) {
    ModelConfig config = tiny_config();
    config.family = info.model_type;
    if (info.kind == FamilyKind::kEncoderDecoder)
      config.encoder_decoder = EncoderDecoder{.num_encoder_layers = 1};
    if (info.kind == FamilyKind::kEncoder) config.encoder = EncoderOnly();
    const std::unique_ptr<TrainableModel> model = make_model(config, DType::kF32, *ops);
    EXPECT_EQ(model->config().family, info.model_type) << info.model_type;
    EXPECT_EQ(model->layout().num_parameters(), parameter_layout(config).num_parameters()) << info.model_type;
  }
}

TEST(Families, OptionsThatCardsLackAreRefusedThereByName) {
  ThreadPool pool(1);
  OwnedIsolatedOps card(pool);
  ModelConfig config = tiny_config();
  EXPECT_NO_THROW(make_model(config, DType::kF32, card));
  config.family = "granite";
  config.residual_scale = 0.5;
  expect_error(ExitCode::kBadConfig, {"isolated", "GraniteForCausalLM is computed on processors alone"},
               [&] { make_model(config, DType::kF32, card); });
}

TEST(Families, AFamilyWithoutAModelIsABug) {
  ModelConfig config = tiny_config();
  config.family = "none";
  EXPECT_THROW(parameter_layout(config), Error);
}

}  // namespace
}  // namespace tessera
