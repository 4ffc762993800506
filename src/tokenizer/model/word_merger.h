// Merges of a BPE, applied to a word.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

namespace tessera {

// (left id, right id) -> rank and id of the merged token.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;
    int32_t id = -1;
  };

  explicit MergeTable(int64_t num_merges = 0);
  // For a repeated pair the later rank wins, as in Hugging Face.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = key_of(left, right);
    for (uint64_t at = key * kMultiplier >> shift_;; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.key == key) return slot.merge;
      if (slot.key == kFree) return {};
    }
  }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15u;
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }

  std::vector<Slot> slots_;
  uint64_t mask_;
  int shift_;
};

// Applies merges to a word: always the lowest rank, leftmost among equals, until none applies. Keeps its
// memory between words; not thread-safe.
class WordMerger {
 public:
  // Rewrites `symbols` in place.
  void run(const MergeTable& merges, std::vector<int32_t>* symbols);

 private:
  // Up to this many symbols a linear search for the lowest rank beats any queue.
  static constexpr size_t kShortWord = 40;
  // Pending merges of one rank, lowest position first. Positions nearly always arrive in ascending order.
  struct Waiting {
    std::vector<uint32_t> ascending;
    size_t next = 0;
    std::vector<uint32_t> late;  // a heap of those that arrived out of order

    bool empty() const { return next == ascending.size() && late.empty(); }
    void push(uint32_t position);
    uint32_t pop();
  };
  struct Symbol {
    int32_t id;
    uint32_t former;
    uint32_t next;
    uint32_t rank;  // of the merge with the next symbol
  };

  void run_short(const MergeTable& merges, std::vector<int32_t>* symbols);
  void run_long(const MergeTable& merges, std::vector<int32_t>* symbols);
  void rank_pair(const MergeTable& merges, uint32_t position);

  std::vector<uint32_t> ranks_;
  std::vector<Symbol> symbols_;
  std::unordered_map<uint32_t, Waiting> waiting_;  // by rank
  std::vector<uint32_t> rank_heap_;                // ranks with pending merges, each once
};

}  // namespace tessera
