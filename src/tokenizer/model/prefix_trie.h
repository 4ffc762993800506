// A vocabulary as a trie over bytes, to find the tokens that begin at a place in a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tokenizer/model/model_tables.h"

namespace tessera {

// A double array (Aoe, 1989): a node's child for byte c is at base + c if that slot names the node as its
// parent. 12 bytes a slot; XLM-RoBERTa's 250,002 tokens take 10 MB.
class PrefixTrie {
 public:
  static constexpr uint32_t kNone = 0;  // no child: the root is nobody's
  static constexpr uint32_t kRoot = 0;

  // The tokens with their ids; an empty one is left out, of repeated ones the first id stays.
  explicit PrefixTrie(const ModelTables& tables);

  uint32_t child(uint32_t node, char c) const {
    const uint32_t at = slots_[node].base + static_cast<unsigned char>(c);
    return slots_[at].parent == node ? at : kNone;
  }
  // The node that `prefix` leads to; kNone if no token begins with it, kRoot if it is empty.
  uint32_t descend(std::string_view prefix) const;
  // The id of the token that ends at a node, or -1.
  int32_t id(uint32_t node) const { return slots_[node].id; }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  struct Slot {
    uint32_t base = 0;
    uint32_t parent = kFree;
    int32_t id = -1;
  };
  class Builder;

  std::vector<Slot> slots_;
};

}  // namespace tessera
