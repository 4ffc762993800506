#include "tokenizer/model/word_piece_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

int64_t num_chars(std::string_view text) {
  return std::ranges::count_if(text, [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

}  // namespace

WordPieceModel::WordPieceModel(const ModelTables& tables, int64_t num_ids, WordPieceOptions options,
                               std::string where)
    : TokenModel(TokenTable(tables, num_ids)),
      options_(std::move(options)),
      where_(std::move(where)),
      trie_(tables),
      unk_id_(tokens_.find(options_.unk_token)) {
  const std::string& prefix = options_.continuing_subword_prefix;
  const uint32_t node = trie_.descend(prefix);
  if (prefix.empty() || node != PrefixTrie::kNone) inside_ = node;
}

bool WordPieceModel::append_tokens(std::string_view word, std::vector<int32_t>* ids) const {
  for (size_t begin = 0; begin < word.size();) {
    if (begin > 0 && !inside_) return false;
    uint32_t node = begin > 0 ? *inside_ : PrefixTrie::kRoot;
    int32_t longest = -1;
    size_t longest_end = 0;
    for (size_t end = begin; end < word.size();) {
      node = trie_.child(node, word[end++]);
      if (node == PrefixTrie::kNone) break;
      if (trie_.id(node) < 0) continue;
      longest = trie_.id(node);
      longest_end = end;
    }
    if (longest < 0) return false;
    ids->push_back(longest);
    begin = longest_end;
  }
  return true;
}

void WordPieceModel::encode_word_uncached(std::string_view word, ModelScratch*,
                                          std::vector<int32_t>* ids) const {
  const size_t first = ids->size();
  if (num_chars(word) <= options_.max_input_chars_per_word && append_tokens(word, ids)) return;
  ids->resize(first);
  if (!unk_id_) {
    fail(ExitCode::kBadData, "{}: no tokens for \"{}\", and no unk_token \"{}\" in the vocabulary", where_,
         printable(word, 40), printable(options_.unk_token));
  }
  ids->push_back(*unk_id_);
}

std::optional<int64_t> WordPieceModel::num_bytes(int32_t id) const {
  const std::optional<std::string_view> text = tokens_.at(id);
  if (!text || id == unk_id_) return std::nullopt;
  const auto prefix = std::ssize(options_.continuing_subword_prefix);
  return std::ssize(*text) - (text->starts_with(options_.continuing_subword_prefix) ? prefix : 0);
}

}  // namespace tessera
