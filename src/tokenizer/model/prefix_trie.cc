#include "tokenizer/model/prefix_trie.h"

#include <algorithm>
#include <string>
#include <utility>

namespace tessera {

class PrefixTrie::Builder {
 public:
  Builder(const ModelTables& tables, std::vector<Slot>* slots) : slots_(*slots) {
    for (const ModelTables::Token& token : tables.tokens) {
      if (token.size_bytes > 0) tokens_.emplace_back(tables.token(token), token.id);
    }
    std::ranges::sort(tokens_);
    const auto is_same = [](const auto& a, const auto& b) { return a.first == b.first; };
    tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), is_same), tokens_.end());
    // Every base is above 0, and base + 255 is a slot.
    grow(2 * kBlock);
    slots_[kRoot].parent = kRoot - 2;  // taken
    std::vector<Range> open = {{0, tokens_.size(), 0, kRoot}};
    while (!open.empty()) {
      const Range range = open.back();
      open.pop_back();
      place_children(range, &open);
    }
  }

 private:
  static constexpr uint32_t kBlock = 256;
  // Slots tried for a node before it goes to the end of the array.
  static constexpr int kMaxTries = 64;

  // Tokens that share their first `depth` bytes, which lead to `node`.
  struct Range {
    size_t begin, end, depth;
    uint32_t node;
  };

  // Adds free slots, linked in ascending order.
  void grow(size_t size) {
    const size_t former = slots_.size();
    if (size <= former) return;
    slots_.resize(size);
    next_.resize(size, kEnd);
    previous_.resize(size, kEnd);
    for (size_t at = std::max<size_t>(former, kBlock); at < size; ++at) {
      previous_[at] = last_;
      (last_ == kEnd ? first_ : next_[last_]) = static_cast<uint32_t>(at);
      last_ = static_cast<uint32_t>(at);
    }
  }

  void take(uint32_t at, uint32_t parent) {
    slots_[at].parent = parent;
    (previous_[at] == kEnd ? first_ : next_[previous_[at]]) = next_[at];
    (next_[at] == kEnd ? last_ : previous_[next_[at]]) = previous_[at];
  }

  bool fits(uint32_t base) {
    grow(size_t{base} + kBlock);
    return std::ranges::all_of(labels_, [&](uint32_t label) { return slots_[base + label].parent == kFree; });
  }

  uint32_t find_base() {
    int tries = 0;
    for (uint32_t at = first_; at != kEnd && tries < kMaxTries; at = next_[at], ++tries) {
      if (const uint32_t base = at - labels_.front(); fits(base)) return base;
    }
    return static_cast<uint32_t>(slots_.size());
  }

  void place_children(const Range& range, std::vector<Range>* open) {
    labels_.clear();
    std::vector<size_t> starts;
    size_t begin = range.begin;
    if (begin < range.end && tokens_[begin].first.size() == range.depth) {
      slots_[range.node].id = tokens_[begin].second;
      ++begin;
    }
    for (size_t i = begin; i < range.end; ++i) {
      const auto label = static_cast<uint32_t>(static_cast<unsigned char>(tokens_[i].first[range.depth]));
      if (!labels_.empty() && labels_.back() == label) continue;
      labels_.push_back(label);
      starts.push_back(i);
    }
    if (labels_.empty()) return;
    starts.push_back(range.end);
    const uint32_t base = find_base();
    grow(size_t{base} + kBlock);
    slots_[range.node].base = base;
    for (size_t i = 0; i < labels_.size(); ++i) {
      take(base + labels_[i], range.node);
      open->push_back({starts[i], starts[i + 1], range.depth + 1, base + labels_[i]});
    }
  }

  static constexpr uint32_t kEnd = UINT32_MAX;

  std::vector<Slot>& slots_;
  std::vector<std::pair<std::string_view, int32_t>> tokens_;
  std::vector<uint32_t> next_, previous_;  // the free slots
  uint32_t first_ = kEnd, last_ = kEnd;
  std::vector<uint32_t> labels_;  // of the children of the node at hand, ascending
};

PrefixTrie::PrefixTrie(const ModelTables& tables) { Builder(tables, &slots_); }

uint32_t PrefixTrie::descend(std::string_view prefix) const {
  uint32_t node = kRoot;
  for (const char c : prefix) {
    node = child(node, c);
    if (node == kNone) break;
  }
  return node;
}

}  // namespace tessera
