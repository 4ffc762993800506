#include "tokenizer/pipeline/added_tokens.h"

#include <algorithm>
#include <utility>

#include "tokenizer/regex/unicode.h"

namespace tessera {
namespace {

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_word_char(decode_utf8(text.data() + last_char_begin(text)).code_point);
}

bool starts_with_word(std::string_view text) {
  return !text.empty() && is_word_char(decode_utf8(text.data()).code_point);
}

}  // namespace

const StringMatcher::Node* StringMatcher::child(const Node& node, char c) const {
  for (const auto& [label, index] : node.children) {
    if (label == c) return &nodes_[index];
  }
  return nullptr;
}

void StringMatcher::add(std::string_view pattern, size_t value) {
  if (pattern.empty()) return;
  starts_[static_cast<unsigned char>(pattern[0])] = true;
  size_t at = 0;
  for (const char c : pattern) {
    auto& children = nodes_[at].children;
    const auto found =
        std::find_if(children.begin(), children.end(), [c](const auto& e) { return e.first == c; });
    if (found != children.end()) {
      at = found->second;
      continue;
    }
    const size_t made = nodes_.size();
    children.emplace_back(c, made);
    nodes_.emplace_back();
    at = made;
  }
  if (nodes_[at].value == kNoValue) nodes_[at].value = value;
}

bool StringMatcher::find(std::string_view text, int64_t begin, Match* match) const {
  for (auto start = static_cast<size_t>(begin); start < text.size(); ++start) {
    if (!starts_[static_cast<unsigned char>(text[start])]) continue;
    const Node* node = nodes_.data();
    bool found = false;
    for (size_t at = start; at < text.size(); ++at) {
      node = child(*node, text[at]);
      if (node == nullptr) break;
      if (node->value == kNoValue) continue;
      *match = {static_cast<int64_t>(start), static_cast<int64_t>(at + 1), node->value};
      found = true;
    }
    if (found) return true;
  }
  return false;
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens, const Normalizer* normalizer, bool splits_special)
    : tokens_(std::move(tokens)), decoded_(tokens_.size()), splits_special_(splits_special) {
  // If two normalize to the same text, special tokens win, then the order of the file.
  for (const bool special : {true, false}) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const AddedToken& token = tokens_[i];
      if (token.special != special) continue;
      NormalizedText content{token.content};
      if (token.normalized && normalizer != nullptr) normalizer->apply(&content);
      (token.normalized ? normalized_ : plain_).add(content.text, i);
      decoded_[i] = std::move(content.text);
      by_id_.emplace(token.id, i);
      by_content_.emplace(token.content, i);
    }
  }
}

std::vector<Segment> AddedTokens::find(std::string_view text, bool normalized,
                                       std::span<const int64_t> barriers) const {
  const StringMatcher& matcher = normalized ? normalized_ : plain_;
  std::vector<Segment> segments;
  const auto size = static_cast<int64_t>(text.size());
  const auto part = [text](int64_t begin, int64_t end) {
    return text.substr(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  int64_t done = 0;  // end of the last segment
  const auto crosses_barrier = [barriers](int64_t begin, int64_t end) {
    const auto after = std::upper_bound(barriers.begin(), barriers.end(), begin);
    return after != barriers.end() && *after < end;
  };
  StringMatcher::Match match;
  for (int64_t at = 0; matcher.find(text, at, &match); at = match.end) {
    const AddedToken& token = tokens_[match.value];
    if (token.special && splits_special_) continue;
    if (token.special && crosses_barrier(match.begin, match.end)) {
      match.end = match.begin + 1;
      continue;
    }
    if (token.single_word &&
        (ends_with_word(part(0, match.begin)) || starts_with_word(part(match.end, size)))) {
      continue;
    }
    int64_t begin = match.begin;
    int64_t end = match.end;
    if (token.lstrip) begin = std::max(begin - trailing_whitespace(part(0, begin)), done);
    if (token.rstrip) end += leading_whitespace(part(end, size));
    if (done < begin) segments.push_back({done, begin, -1});
    // The previous token may have consumed all of this one as whitespace.
    if (begin < end) segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < size) segments.push_back({done, size, -1});
  return segments;
}

const AddedToken* AddedTokens::by_id(int32_t id) const {
  const auto found = by_id_.find(id);
  return found == by_id_.end() ? nullptr : &tokens_[found->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto found = by_content_.find(std::string(content));
  return found == by_content_.end() ? nullptr : &tokens_[found->second];
}

}  // namespace tessera
