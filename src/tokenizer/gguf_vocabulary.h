// A tokenizer as llama.cpp's convert_hf_to_gguf.py describes it in GGUF.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/gguf/gguf.h"
#include "formats/huggingface/model_config.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

// The fields tokenizer.ggml.* and tokenizer.chat_template* of a model folder: a byte-level BPE as "gpt2"
// with its merges and the name of its pre-tokenizer, a SentencePiece-style one as "llama" with scores. Ids
// up to config.vocab_size without a token become unused ones; special tokens that the tokenizer's files do
// not name come from `config`. llama.cpp has places for three tokens that end an answer: those of
// `end_ids` (generation_config.json's eos_token_id) other than eos become eot and eom. Error(kBadConfig),
// naming the file, for a tokenizer that llama.cpp would apply differently; warns about differences in rare
// cases.
std::vector<GgufField> gguf_vocabulary(const std::filesystem::path& folder, const ModelConfig& config,
                                       const std::vector<int64_t>& end_ids = {});

// The name (tokenizer.ggml.pre) of the pre-tokenizer of a byte-level BPE: recognized as the converter does,
// by the ids of a fixed text, or else by its pattern. `tokenizer_json` is the path of its file.
std::string gguf_pre_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& tokenizer_json);

}  // namespace tessera
