#include "formats/file_kind.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "formats/safetensors/safetensors.h"
#include "safetensors_bytes.h"
#include "test_folder.h"

namespace tessera {
namespace {

TEST(FileKind, OfAFileInPlaceOfAModelFolderIsNamed) {
  const TestFolder folder;
  const auto refusal = [&](const std::string& content) {
    const std::filesystem::path path = folder.write("model", content);
    const Error error = error_of([&] { read_model_config(path); });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_STREQ(error_of([&] { check_is_model_folder(path); }).what(), error.what());
    return std::string(error.what()).substr(path.native().size());
  };
  const std::string expected = ": expected a Hugging Face model folder, found ";
  EXPECT_EQ(
      refusal("GGUF" + std::string(3'000'000, '\0')),
      expected +
          "a GGUF file; GGUF is not supported: give the Hugging Face folder that the GGUF file was made "
          "from (config.json, safetensors, tokenizer.json)");
  const std::string give_folder = "; give the folder that holds config.json, the weights and the tokenizer";
  EXPECT_EQ(refusal(safetensors_bytes("{}", "")), expected + "a safetensors file" + give_folder);
  EXPECT_EQ(refusal("any text"), expected + "a text file" + give_folder);
  EXPECT_EQ(refusal(""), expected + "an empty file" + give_folder);
  const std::string save =
      "; PyTorch's own format is not supported: save the model as safetensors and give its folder";
  EXPECT_EQ(refusal("PK\x03\x04 archive/data.pkl"), expected + "a PyTorch archive (.bin, .pt, .pth)" + save);
  EXPECT_EQ(refusal("\x80\x02}q"), expected + "a Python pickle" + save);
  folder.write("config.json", "{}");
  expect_error(ExitCode::kBadData, {"found a JSON file; give the folder that holds config.json"},
               [&] { check_is_model_folder(folder / "config.json"); });
  EXPECT_NO_THROW(check_is_model_folder(folder.path()));
  EXPECT_NO_THROW(check_is_model_folder(folder / "missing"));
}

TEST(FileKind, GgufFilesInAFolderWithoutConfigAreNamed) {
  const TestFolder folder;
  folder.write("llama.Q4_K_M.gguf", "GGUF");
  const std::vector<std::string> fragments = {
      "found none (llama.Q4_K_M.gguf is there, but GGUF is not supported: "};
  expect_error(ExitCode::kNoInput, fragments, [&] { read_model_config(folder.path()); });
  expect_error(ExitCode::kNoInput, {"no weights", "llama.Q4_K_M.gguf is there"},
               [&] { SafetensorsModel::open(folder.path()); });
}

}  // namespace
}  // namespace tessera
