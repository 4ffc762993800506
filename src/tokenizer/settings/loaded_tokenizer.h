// A tokenizer.json as changed by the files beside it, loaded as AutoTokenizer of Transformers 5.24 does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/settings/tokenizer_file.h"

namespace tessera {

struct LoadedTokenizer {
  TokenizerFile file;                    // with the pipeline of its class
  std::vector<AddedToken> added_tokens;  // of all files, with their ids
  // bos_token, eos_token, ... and the model's own (image_token) with their texts, as templates see them.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  bool split_special_tokens = false;
  bool cuts_left = false;    // truncation_side
  uint64_t fingerprint = 0;  // of everything that can change ids

  // Whether a token is pad_token and nothing else. Hugging Face adds one that tokenizer.json lacks, above all
  // ids of the model; as nothing is padded, the model need not have more.
  bool is_padding_only(std::string_view token) const;
};

// Loads a tokenizer.json without files beside it.
LoadedTokenizer load_tokenizer_text(std::string_view json, const std::string& origin);

// Loads a tokenizer.json with tokenizer_config.json, special_tokens_map.json, added_tokens.json and
// config.json beside it. Warns about settings without effect and about a class that builds another tokenizer
// from the file. `model_type` is that of the model the files will be stored with; "": the one in config.json.
LoadedTokenizer load_tokenizer_file(const std::filesystem::path& file, const std::string& model_type = "");

}  // namespace tessera
