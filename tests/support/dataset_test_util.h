// Test support for datasets: a tokenizer whose ids are bytes, and datasets in a temporary folder.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/dataset.h"
#include "formats/safetensors/safetensors.h"
#include "io/file.h"
#include "safetensors_bytes.h"
#include "test_folder.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

inline constexpr int32_t kTestBos = 256;
inline constexpr int32_t kTestEos = 257;
inline constexpr int64_t kTestVocabSize = 258;
inline constexpr int32_t kTestMask = 258;  // of a tokenizer with has_mask

struct TestTokenizerOptions {
  bool has_eos = true;
  bool reversed = false;    // byte b has id 255 - b
  bool ends_texts = false;  // the post-processor appends </s>, as T5's does, and prepends nothing
  bool has_mask = false;    // it prepends <s> and appends </s>, as XLM-RoBERTa's; <mask> is kTestMask
};

// A byte-level BPE without merges: byte b has id b. Its post-processor prepends <s>.
inline Tokenizer make_byte_tokenizer(const std::filesystem::path& folder,
                                     const TestTokenizerOptions& options = {}) {
  using nlohmann::json;
  // GPT-2's characters for bytes: printable ones stand for themselves, the others map to U+0100 and up.
  json vocab = json::object();
  int32_t next_other = 0x100;
  for (int32_t byte = 0; byte < 256; ++byte) {
    const bool is_printable =
        (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    const int32_t code = is_printable ? byte : next_other++;
    const std::string character = code < 0x80 ? std::string(1, static_cast<char>(code))
                                              : std::string{static_cast<char>(0xC0 | code >> 6),
                                                            static_cast<char>(0x80 | (code & 0x3F))};
    vocab[character] = options.reversed ? 255 - byte : byte;
  }
  const auto added = [](int32_t id, const char* content) {
    return json{{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
                {"rstrip", false}, {"normalized", false}, {"special", true}};
  };
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}};
  const json bos_piece = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  const json text_piece = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  const json pair_piece = {{"Sequence", {{"id", "B"}, {"type_id", 1}}}};
  const json eos_piece = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  const json single = options.has_mask     ? json{bos_piece, text_piece, eos_piece}
                      : options.ends_texts ? json{text_piece, eos_piece}
                                           : json{bos_piece, text_piece};
  json added_tokens = {added(kTestBos, "<s>"), added(kTestEos, "</s>")};
  if (options.has_mask) added_tokens.push_back(added(kTestMask, "<mask>"));
  const json tokenizer = {
      {"version", "1.0"},
      {"truncation", nullptr},
      {"padding", nullptr},
      {"added_tokens", added_tokens},
      {"normalizer", nullptr},
      {"pre_tokenizer", byte_level},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single", single},
        {"pair", {bos_piece, text_piece, pair_piece}},
        {"special_tokens",
         {{"<s>", {{"id", "<s>"}, {"ids", {kTestBos}}, {"tokens", {"<s>"}}}},
          {"</s>", {{"id", "</s>"}, {"ids", {kTestEos}}, {"tokens", {"</s>"}}}}}}}},
      {"decoder", byte_level},
      {"model",
       {{"type", "BPE"},
        {"dropout", nullptr},
        {"unk_token", nullptr},
        {"continuing_subword_prefix", nullptr},
        {"end_of_word_suffix", nullptr},
        {"fuse_unk", false},
        {"byte_fallback", false},
        {"ignore_merges", false},
        {"vocab", vocab},
        {"merges", json::array()}}},
  };
  create_folder(folder);
  write_text_file(folder / "tokenizer.json", tokenizer.dump());
  json config = {{"bos_token", "<s>"}};
  if (options.has_eos) config["eos_token"] = "</s>";
  if (options.has_mask) config["mask_token"] = "<mask>";
  write_text_file(folder / "tokenizer_config.json", config.dump());
  return Tokenizer::open(folder);
}

// Writes a safetensors file of 64-bit integers.
struct TestTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<int64_t> values;
};

inline std::filesystem::path write_integers(const std::filesystem::path& path,
                                            const std::vector<TestTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const TestTensor& tensor : tensors) {
    const size_t size_bytes = tensor.values.size() * sizeof(int64_t);
    header += fmt::format(R"({}"{}":{{"dtype":"I64","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", tensor.name, fmt::join(tensor.shape, ","),
                          data.size(), data.size() + size_bytes);
    data.append(reinterpret_cast<const char*>(tensor.values.data()), size_bytes);
  }
  write_text_file(path, safetensors_bytes(header + "}", data));
  return path;
}

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() : tokenizer_(make_byte_tokenizer(folder_ / "tokenizer")) {}

  // Options for files in the test folder, without special tokens so that ids are bytes.
  DatasetOptions options_for(const std::vector<std::string>& names) const {
    DatasetOptions options;
    for (const std::string& name : names) options.sources.push_back((folder_ / name).string());
    options.add_special_tokens = false;
    options.cache_folder = folder_ / "cache";
    return options;
  }

  Dataset open(const DatasetOptions& options) {
    return Dataset::open(options, &tokenizer_, kTestVocabSize, pool_);
  }

  static std::vector<std::vector<int32_t>> ids_of(const Dataset& dataset) {
    std::vector<std::vector<int32_t>> rows;
    Dataset::Row row;
    for (int64_t i = 0; i < dataset.num_rows(); ++i) {
      dataset.read_row(i, &row);
      rows.push_back(row.input_ids);
    }
    return rows;
  }

  // Rows as text: ids are bytes.
  static std::vector<std::string> texts_of(const Dataset& dataset) {
    std::vector<std::string> texts;
    for (const std::vector<int32_t>& ids : ids_of(dataset)) {
      std::string text;
      for (const int32_t id : ids) {
        text += id == kTestBos ? "<s>" : id == kTestEos ? "</s>" : std::string(1, static_cast<char>(id));
      }
      texts.push_back(text);
    }
    return texts;
  }

  TestFolder folder_;
  ThreadPool pool_{2};
  Tokenizer tokenizer_;
};

}  // namespace tessera
