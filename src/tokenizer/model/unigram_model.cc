#include "tokenizer/model/unigram_model.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

constexpr double kUnknownPenalty = 10;
constexpr uint32_t kUnreached = std::numeric_limits<uint32_t>::max();

}  // namespace

UnigramModel::UnigramModel(const ModelTables& tables, int64_t num_ids, UnigramOptions options,
                           std::string where)
    : TokenModel(TokenTable(tables, num_ids)),
      options_(options),
      where_(std::move(where)),
      trie_(tables),
      scores_(static_cast<size_t>(num_ids)) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < tables.tokens.size(); ++i) {
    scores_[static_cast<size_t>(tables.tokens[i].id)] = tables.scores[i];
    lowest = std::min(lowest, tables.scores[i]);
  }
  unk_score_ = lowest - kUnknownPenalty;
  for (int byte = 0; byte < 256; ++byte)
    fallback_ids_[static_cast<size_t>(byte)] = tokens_.find(fmt::format("<0x{:02X}>", byte)).value_or(-1);
}

void UnigramModel::fail_unknown(std::string_view text) const {
  fail(ExitCode::kBadData, "{}: no token for \"{}\", and no unk_id for what the vocabulary lacks", where_,
       printable(text, 40));
}

// path[i] becomes the last step of the best path to byte i, for every i at which a character starts.
void UnigramModel::find_path(std::string_view word, std::vector<PathStep>* path) const {
  path->assign(word.size() + 1, {0, kUnreached, -1});
  const auto is_better = [path](size_t end, double score) {
    const PathStep& step = (*path)[end];
    return step.begin == kUnreached || score > step.score;
  };
  for (size_t at = 0; at < word.size();) {
    const double score = (*path)[at].score;
    const size_t char_end = at + static_cast<size_t>(utf8_size(word[at]));
    bool has_char = false;
    uint32_t node = PrefixTrie::kRoot;
    for (size_t end = at; end < word.size();) {
      node = trie_.child(node, word[end++]);
      if (node == PrefixTrie::kNone) break;
      const int32_t id = trie_.id(node);
      if (id < 0) continue;
      const double joint = scores_[static_cast<size_t>(id)] + score;
      if (is_better(end, joint)) (*path)[end] = {joint, static_cast<uint32_t>(at), id};
      has_char = has_char || end == char_end;
    }
    if (const double joint = unk_score_ + score; !has_char && is_better(char_end, joint)) {
      if (!options_.unk_id) fail_unknown(word.substr(at, char_end - at));
      (*path)[char_end] = {joint, static_cast<uint32_t>(at), *options_.unk_id};
    }
    at = char_end;
  }
}

void UnigramModel::append_unknown(std::string_view text, std::vector<int32_t>* reversed) const {
  if (const auto id = tokens_.find(text)) {
    reversed->push_back(*id);
    return;
  }
  const auto fallback_id = [this](char c) { return fallback_ids_[static_cast<unsigned char>(c)]; };
  if (options_.byte_fallback && std::ranges::all_of(text, [&](char c) { return fallback_id(c) >= 0; })) {
    std::for_each(text.rbegin(), text.rend(), [&](char c) { reversed->push_back(fallback_id(c)); });
    return;
  }
  reversed->push_back(*options_.unk_id);
}

void UnigramModel::encode_word_uncached(std::string_view word, ModelScratch* scratch,
                                        std::vector<int32_t>* ids) const {
  if (word.empty()) return;
  if (word.size() >= kUnreached)
    fail(ExitCode::kBadData, "a word of {} bytes is too long to encode; split the text", word.size());
  std::vector<PathStep>& path = scratch->path;
  find_path(word, &path);
  const auto first = static_cast<std::ptrdiff_t>(ids->size());
  for (size_t end = word.size(); end > 0;) {
    size_t begin = path[end].begin;
    if (path[end].id != options_.unk_id) {
      ids->push_back(path[end].id);
    } else {
      while (begin > 0 && path[begin].id == options_.unk_id) begin = path[begin].begin;
      append_unknown(word.substr(begin, end - begin), ids);
    }
    end = begin;
  }
  std::reverse(ids->begin() + first, ids->end());
  if (path.capacity() > size_t{1} << 20) path = {};  // a giant word leaves no giant buffer allocated
}

std::optional<int64_t> UnigramModel::num_bytes(int32_t id) const {
  if (options_.unk_id == id) return std::nullopt;
  if (options_.byte_fallback && std::ranges::find(fallback_ids_, id) != fallback_ids_.end()) return 1;
  const std::optional<std::string_view> text = tokens_.at(id);
  return text ? std::optional(std::ssize(*text)) : std::nullopt;
}

}  // namespace tessera
