#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/model_config.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

TEST(ReferenceFolders, ConfigsAreRead) {
  for (const char* name : {"llama-gqa", "llama-odd", "llama-tied-rope3"}) {
    const fs::path folder = fs::path(TESSERA_SHARED_DIR) / "reference" / name;
    if (!fs::exists(folder)) GTEST_SKIP() << folder << " is absent";
    const ModelConfig config = read_model_config(folder);
    EXPECT_EQ(config.rope_theta, 500000);
    EXPECT_EQ(config.num_attention_heads * config.head_dim, config.hidden_size);
    const ModelConfig again = parse_model_config(write_model_config(config, "float32"), "again");
    EXPECT_EQ(again.rope_scaling.factor, config.rope_scaling.factor);
  }
}

TEST(ModelPresets, AreReadBackAsWritten) {
  for (const std::string& name : preset_names()) {
    ModelConfig config = preset_config(name);
    if (config.vocab_size == 0) config.vocab_size = 8192;
    EXPECT_EQ(parse_model_config(write_model_config(config, "bfloat16"), name).head_dim, config.head_dim);
  }
}

}  // namespace
}  // namespace tessera
