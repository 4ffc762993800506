// The internals of Tokenizer; private to this module.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tokenizer/model/token_model.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/pipeline/decoder.h"
#include "tokenizer/pipeline/normalizer.h"
#include "tokenizer/pipeline/post_processor.h"
#include "tokenizer/pipeline/pre_tokenizer.h"
#include "tokenizer/settings/loaded_tokenizer.h"
#include "tokenizer/tokenizer.h"

namespace tessera {

struct Tokenizer::Impl {
  std::string origin;
  int64_t num_ids = 0;
  int64_t num_model_ids = 0;
  uint64_t fingerprint = 0;

  std::unique_ptr<Normalizer> normalizer;
  AddedTokens added;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::optional<KnownSplit> known_split;  // if set, `scanner` does the pre-tokenizer's work
  std::optional<FastScanner> scanner;
  std::unique_ptr<const TokenModel> model;
  bool use_caches = true;
  PostProcessor post_processor;
  std::vector<Decoder> decoders;

  bool cuts_left = false;
  std::vector<std::pair<std::string, std::string>> special_tokens;  // bos_token, ... and their texts

  // Scratch memory that threads borrow for a call; one per thread of the highest concurrency so far.
  std::mutex scratch_mutex;
  std::vector<std::unique_ptr<ModelScratch>> scratch;

  static std::unique_ptr<Impl> build(LoadedTokenizer loaded, const std::string& origin,
                                     TokenizerOptions options);

  std::optional<int32_t> find(std::string_view token) const;
  // The id of bos_token, ...
  std::optional<int32_t> id_of_special(std::string_view name) const;
  // nullopt for a gap; Error for an id out of range.
  std::optional<std::string_view> text_of(int32_t id) const;
  // Passes the token to a decoder, unless it is a special token to skip.
  void push(int32_t id, bool skip_special_tokens, DecodeStream* stream) const;

  // Fills *cuts with one entry per mark.
  void encode_text(std::string_view text, const TextMarks& marks, ModelScratch* scratch,
                   std::vector<int32_t>* ids, std::vector<TokenCut>* cuts) const;
  void encode_segment(std::string_view text, bool at_start, std::span<const int64_t> barriers,
                      ModelScratch* scratch, std::vector<int32_t>* ids) const;
  // The place `cut` of a segment among its ids.
  TokenCut find_cut(std::string_view text, int64_t cut, bool at_start, std::span<const int64_t> barriers,
                    std::span<const int32_t> ids, ModelScratch* scratch) const;
  std::vector<int64_t> token_ends(std::span<const int32_t> ids) const;
  int64_t num_model_bytes(std::string_view text, bool at_start) const;
  void encode_piece(std::string_view text, bool at_start, ModelScratch* scratch,
                    std::vector<int32_t>* ids) const;
};

}  // namespace tessera
