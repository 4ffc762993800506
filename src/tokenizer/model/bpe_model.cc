#include "tokenizer/model/bpe_model.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/pipeline/byte_level.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

constexpr std::string_view kMetaspace = "\xE2\x96\x81";  // U+2581

// Every merge spans the boundary between its two parts; with U+2581 to the right of it and something else to
// the left, the merge spans the start of a run.
bool crosses_metaspace(std::string_view left, std::string_view right) {
  return right.starts_with(kMetaspace) && !left.ends_with(kMetaspace);
}

// The bytes that the tokens in the byte-level alphabet stand for.
TokenTable byte_tokens(const ModelTables& tables, int64_t num_ids) {
  std::string text;
  std::vector<std::pair<int32_t, size_t>> ends;
  for (const ModelTables::Token& token : tables.tokens) {
    const std::optional<std::string> bytes = byte_level_decode(tables.token(token));
    if (!bytes) continue;
    text += *bytes;
    ends.emplace_back(token.id, text.size());
  }
  std::vector<std::pair<int32_t, std::string_view>> tokens;
  tokens.reserve(ends.size());
  size_t begin = 0;
  for (const auto& [id, end] : ends) {
    tokens.emplace_back(id, std::string_view(text).substr(begin, end - begin));
    begin = end;
  }
  return {tokens, num_ids};
}

}  // namespace

BpeModel::BpeModel(const ModelTables& tables, int64_t num_ids, BpeOptions options, const std::string& where)
    : TokenModel(TokenTable(tables, num_ids)),
      options_(std::move(options)),
      merges_(static_cast<int64_t>(tables.merges.size())) {
  if (options_.raw_bytes) raw_tokens_ = byte_tokens(tables, num_ids);
  for (int byte = 0; byte < 256; ++byte) {
    const auto index = static_cast<size_t>(byte);
    byte_ids_[index] = raw_tokens_.find(std::string(1, static_cast<char>(byte))).value_or(-1);
    fallback_ids_[index] = tokens_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
  }
  if (options_.unk_token) {
    unk_id_ = tokens_.find(*options_.unk_token);
    if (!unk_id_) {
      fail(ExitCode::kBadData, "{}.unk_token: \"{}\" is not in the vocabulary", where,
           printable(*options_.unk_token));
    }
  }
  cut_before_metaspace_ = may_cut_before_metaspace();
  for (size_t i = 0; i < tables.merges.size(); ++i) {
    const std::string_view left = tables.left(tables.merges[i]);
    const std::string_view right = tables.right(tables.merges[i]);
    const auto id_of = [&](std::string_view token) {
      const std::optional<int32_t> id = tokens_.find(token);
      if (!id) {
        fail(ExitCode::kBadData, "{}.merges[{}]: the token \"{}\" is not in the vocabulary", where, i,
             printable(token));
      }
      return *id;
    };
    const int32_t left_id = id_of(left);
    const int32_t right_id = id_of(right);
    if (!right.starts_with(options_.continuing_subword_prefix)) {
      fail(ExitCode::kBadData,
           "{}.merges[{}]: \"{}\" does not begin with the continuing_subword_prefix \"{}\"", where, i,
           printable(right), printable(options_.continuing_subword_prefix));
    }
    const std::string result =
        std::string(left) + std::string(right.substr(options_.continuing_subword_prefix.size()));
    merges_.insert(left_id, right_id, {static_cast<uint32_t>(i), id_of(result)});
    if (crosses_metaspace(left, right)) cut_before_metaspace_ = false;
  }
}

// Whether every character produces symbols that merge only by their own text, so that boundaries between
// characters remain boundaries between symbols. Not so if a character is dropped or becomes an unknown token
// that ends in U+2581.
bool BpeModel::may_cut_before_metaspace() const {
  const bool whole_words = options_.ignore_merges || !options_.continuing_subword_prefix.empty() ||
                           !options_.end_of_word_suffix.empty();
  const bool all_fall_back = options_.byte_fallback && std::all_of(fallback_ids_.begin(), fallback_ids_.end(),
                                                                   [](int32_t id) { return id >= 0; });
  const bool visible_unknown = unk_id_ && !options_.unk_token->ends_with(kMetaspace);
  return !whole_words && tokens_.find(kMetaspace).has_value() && (all_fall_back || visible_unknown);
}

bool BpeModel::has_all_bytes(const ModelTables& tables) {
  std::array<bool, 256> seen{};
  for (const ModelTables::Token& token : tables.tokens) {
    if (token.size_bytes > 2) continue;
    const std::optional<std::string> bytes = byte_level_decode(tables.token(token));
    if (bytes && bytes->size() == 1) seen[static_cast<unsigned char>((*bytes)[0])] = true;
  }
  return std::all_of(seen.begin(), seen.end(), [](bool b) { return b; });
}

void BpeModel::encode_word_uncached(std::string_view word, ModelScratch* scratch,
                                    std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (options_.ignore_merges) {
    if (const auto id = (options_.raw_bytes ? raw_tokens_ : tokens_).find(word)) {
      ids->push_back(*id);
      return;
    }
  }
  std::vector<int32_t>& symbols = scratch->symbols;
  symbols.clear();
  append_symbols(word, &symbols);
  scratch->merger.run(merges_, &symbols);
  ids->insert(ids->end(), symbols.begin(), symbols.end());
  if (symbols.capacity() > size_t{1} << 20) symbols = {};  // a giant word leaves no giant buffer allocated
}

// The initial symbols of a word: bytes, or characters with the prefix or suffix for their position in the
// word.
void BpeModel::append_symbols(std::string_view word, std::vector<int32_t>* symbols) const {
  if (options_.raw_bytes) {
    symbols->reserve(word.size());
    for (const char c : word) symbols->push_back(byte_ids_[static_cast<unsigned char>(c)]);
    return;
  }
  std::optional<int32_t> pending_unk;
  std::string affixed;
  for (size_t at = 0; at < word.size();) {
    const auto size = static_cast<size_t>(utf8_size(word[at]));
    std::string_view symbol = word.substr(at, size);
    const bool prefix = at > 0 && !options_.continuing_subword_prefix.empty();
    const bool suffix = at + size == word.size() && !options_.end_of_word_suffix.empty();
    if (prefix || suffix) {
      affixed = (prefix ? options_.continuing_subword_prefix : "") + std::string(symbol) +
                (suffix ? options_.end_of_word_suffix : "");
      symbol = affixed;
    }
    if (const auto id = tokens_.find(symbol)) {
      if (pending_unk) symbols->push_back(*std::exchange(pending_unk, std::nullopt));
      symbols->push_back(*id);
    } else {
      append_unknown(symbol, &pending_unk, symbols);
    }
    at += size;
  }
  if (pending_unk) symbols->push_back(*pending_unk);
}

// Handles a character that is not in the vocabulary: its bytes, the unknown token, or nothing. An unknown
// token is held back until something else follows, so that several can fuse; as in Hugging Face, fallback
// bytes do not flush it.
void BpeModel::append_unknown(std::string_view symbol, std::optional<int32_t>* pending,
                              std::vector<int32_t>* symbols) const {
  const auto fallback_id = [this](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (options_.byte_fallback &&
      std::all_of(symbol.begin(), symbol.end(), [&](char c) { return fallback_id(c) >= 0; })) {
    for (const char c : symbol) symbols->push_back(fallback_id(c));
    return;
  }
  if (!unk_id_) return;
  if (pending->has_value() && !options_.fuse_unk) symbols->push_back(**pending);
  *pending = unk_id_;
}

std::optional<int64_t> BpeModel::num_bytes(int32_t id) const {
  const bool has_affixes =
      !options_.continuing_subword_prefix.empty() || !options_.end_of_word_suffix.empty();
  if (has_affixes || unk_id_ == id) return std::nullopt;
  const bool is_byte = options_.byte_fallback &&
                       std::find(fallback_ids_.begin(), fallback_ids_.end(), id) != fallback_ids_.end();
  if (is_byte) return 1;
  const std::optional<std::string_view> text = (options_.raw_bytes ? raw_tokens_ : tokens_).at(id);
  return text ? std::optional(std::ssize(*text)) : std::nullopt;
}

void BpeModel::encode_text(std::string_view text, ModelScratch* scratch, std::vector<int32_t>* ids) const {
  if (!cut_before_metaspace_) return encode_word_uncached(text, scratch, ids);
  size_t begin = 0;
  while (begin < text.size()) {
    // Up to the next U+2581 that follows something else.
    size_t end = begin;
    while (text.substr(end).starts_with(kMetaspace)) end += kMetaspace.size();
    end = std::min(text.find(kMetaspace, end), text.size());
    encode_word(text.substr(begin, end - begin), static_cast<int64_t>(text.size() - begin), scratch, ids);
    begin = end;
  }
}

}  // namespace tessera
