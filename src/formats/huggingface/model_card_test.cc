#include "formats/huggingface/model_card.h"

#include <gtest/gtest.h>

#include "io/file.h"
#include "test_folder.h"

namespace tessera {
namespace {

// By gguf-py's Metadata.id_to_title().
TEST(GgufName, IsATitle) {
  EXPECT_EQ(title_of("tiny-llama-v1.1-7b-chat"), "Tiny Llama v1.1 7b Chat");
  EXPECT_EQ(title_of("Qwen2.5-0.5B-instruct"), "Qwen2.5 0.5B Instruct");
  EXPECT_EQ(title_of("qwen2.5--coder_base"), "Qwen2.5 Coder_Base");
  EXPECT_EQ(title_of("vicuna-v1.-x"), "Vicuna V1. X");
}

TEST(GgufName, IsThatOfTheCardOfTheConfigurationOrOfTheFolder) {
  const TestFolder folder;
  const std::filesystem::path model = folder.path() / "my-model";
  std::filesystem::create_directory(model);
  EXPECT_EQ(gguf_name_of(model), "My Model");
  EXPECT_EQ(gguf_name_of(model / ""), "My Model");
  write_text_file(model / "config.json", R"({"_name_or_path": "org/small-chat"})");
  EXPECT_EQ(gguf_name_of(model), "Small Chat");
  write_text_file(model / "config.json", R"({"_name_or_path": "/home/me/small-chat"})");
  EXPECT_EQ(gguf_name_of(model), "My Model");
  write_text_file(model / "README.md", "---\nlicense: mit\nmodel_name: \"The name\"\n---\n");
  EXPECT_EQ(gguf_name_of(model), "The name");
  EXPECT_EQ(license_of(model), "mit");
}

}  // namespace
}  // namespace tessera
