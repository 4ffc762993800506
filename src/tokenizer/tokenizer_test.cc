#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "formats/file.h"

namespace tessera {
namespace {

class PublishedTokenizer : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(folder())) GTEST_SKIP() << "no published vectors at " << folder();
  }
  std::filesystem::path folder() const {
    return std::filesystem::path(TESSERA_SHARED_DIR) / "data/tokenizers" / GetParam();
  }
};

TEST_P(PublishedTokenizer, GivesThePublishedIdsAndTheTextBack) {
  const Tokenizer tokenizer = Tokenizer::open(folder());
  const Tokenizer reference =
      Tokenizer::parse(read_text_file(folder() / "tokenizer.json"), "reference", {.reference = true});
  const auto vectors = nlohmann::json::parse(read_text_file(folder() / "vectors.json"));
  ASSERT_GT(vectors.size(), 40u);
  for (const auto& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    const auto ids = vector["ids"].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.encode(text, /*add_special_tokens=*/false), ids) << '"' << text << '"';
    EXPECT_EQ(reference.encode(text, /*add_special_tokens=*/false), ids) << '"' << text << '"';
    EXPECT_EQ(tokenizer.decode(ids), text);
  }
}

INSTANTIATE_TEST_SUITE_P(All, PublishedTokenizer, ::testing::Values("gpt2", "llama2", "llama3"),
                         [](const auto& instance) { return std::string(instance.param); });

}  // namespace
}  // namespace tessera
