// The special and added tokens that the files beside a tokenizer.json name.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "tokenizer/pipeline/added_tokens.h"
#include "tokenizer/settings/added_vocabulary.h"
#include "tokenizer/settings/tokenizer_class.h"

namespace tessera {

struct NamedToken {
  std::string name;  // bos_token; "": an extra one
  AddedToken token;
  bool is_text = false;  // without flags of its own
};

struct SpecialTokens {
  // Tokens by the id that a file gives them, used only to order them; from added_tokens_decoder, or else from
  // added_tokens.json and tokenizer.json.
  std::map<int64_t, AddedToken> by_id;
  std::vector<NamedToken> named;   // bos_token, eos_token, ..., then the model's own
  std::vector<std::string> unset;  // names that a file sets to null
  std::vector<NamedToken> extra;
};

// A token as text or as an object with flags; `special` overrides the object's.
AddedToken read_added_token(const JsonNode& node, std::optional<bool> special);

// Reads tokenizer_config.json (`config_origin`), special_tokens_map.json and added_tokens.json. `own` are the
// tokens of tokenizer.json, whose document is `root`.
SpecialTokens read_special_tokens(const std::filesystem::path& folder, const std::string& config_origin,
                                  const JsonNode& root, const std::vector<AddedToken>& own);

// Whether two tokens are the same apart from their ids.
bool same_flags(const AddedToken& a, const AddedToken& b);

// The named tokens, plus the class's default ones.
std::vector<NamedToken> with_defaults(const SpecialTokens& special, TokenizerClass kind);

// Adds the tokens that TokenizersBackend adds when it is made.
void add_special_tokens(const SpecialTokens& special, const std::vector<NamedToken>& named,
                        AddedVocabulary* vocabulary);
// Adds the tokens that Qwen2Tokenizer adds: every special token, without flags.
void add_all_as_special(const SpecialTokens& special, const std::vector<NamedToken>& named,
                        AddedVocabulary* vocabulary);

}  // namespace tessera
