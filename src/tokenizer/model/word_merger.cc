#include <algorithm>
#include <functional>
#include <limits>

#include "base/error.h"
#include "tokenizer/model/word_merger.h"

namespace tessera {
namespace {

constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();

}  // namespace

void WordMerger::run(const MergeTable& merges, std::vector<int32_t>* symbols) {
  if (symbols->size() < 2) return;
  if (symbols->size() <= kShortWord) {
    run_short(merges, symbols);
  } else {
    run_long(merges, symbols);
  }
}

void WordMerger::run_short(const MergeTable& merges, std::vector<int32_t>* symbols) {
  int32_t* const ids = symbols->data();
  size_t size = symbols->size();
  ranks_.resize(size);
  uint32_t* const ranks = ranks_.data();  // ranks[i]: of the pair (i, i + 1)
  for (size_t i = 0; i + 1 < size; ++i) ranks[i] = merges.find(ids[i], ids[i + 1]).rank;
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNoRank) break;
    ids[best] = merges.find(ids[best], ids[best + 1]).id;
    std::copy(ids + best + 2, ids + size, ids + best + 1);
    std::copy(ranks + best + 1, ranks + size - 1, ranks + best);
    --size;
    if (best > 0) ranks[best - 1] = merges.find(ids[best - 1], ids[best]).rank;
    if (best + 1 < size) ranks[best] = merges.find(ids[best], ids[best + 1]).rank;
  }
  symbols->resize(size);
}

void WordMerger::Waiting::push(uint32_t position) {
  if (ascending.empty() || position > ascending.back()) {
    ascending.push_back(position);
  } else {
    late.push_back(position);
    std::push_heap(late.begin(), late.end(), std::greater<>());
  }
}

uint32_t WordMerger::Waiting::pop() {
  if (late.empty() || (next < ascending.size() && ascending[next] < late.front())) {
    const uint32_t position = ascending[next++];
    if (next == ascending.size()) {
      ascending.clear();
      next = 0;
    }
    return position;
  }
  std::pop_heap(late.begin(), late.end(), std::greater<>());
  const uint32_t position = late.back();
  late.pop_back();
  return position;
}

// Records the rank of the pair that starts at `position` and queues its merge.
void WordMerger::rank_pair(const MergeTable& merges, uint32_t position) {
  Symbol& symbol = symbols_[position];
  symbol.rank =
      symbol.next == kNone ? MergeTable::kNoRank : merges.find(symbol.id, symbols_[symbol.next].id).rank;
  if (symbol.rank == MergeTable::kNoRank) return;
  Waiting& waiting = waiting_[symbol.rank];
  if (waiting.empty()) {
    rank_heap_.push_back(symbol.rank);
    std::push_heap(rank_heap_.begin(), rank_heap_.end(), std::greater<>());
  }
  waiting.push(position);
}

// O(n log n) for n symbols; close to linear if positions arrive in order.
void WordMerger::run_long(const MergeTable& merges, std::vector<int32_t>* symbols) {
  if (symbols->size() >= kNone)
    fail(ExitCode::kBadData, "a word of {} bytes is too long to encode; split the text", symbols->size());
  const auto size = static_cast<uint32_t>(symbols->size());
  symbols_.resize(size);
  for (uint32_t i = 0; i < size; ++i)
    symbols_[i] = {(*symbols)[i], i == 0 ? kNone : i - 1, i + 1 == size ? kNone : i + 1, MergeTable::kNoRank};
  for (uint32_t i = 0; i < size; ++i) rank_pair(merges, i);
  while (!rank_heap_.empty()) {
    const uint32_t rank = rank_heap_.front();
    Waiting& waiting = waiting_[rank];
    const uint32_t position = waiting.pop();
    if (waiting.empty()) {
      std::pop_heap(rank_heap_.begin(), rank_heap_.end(), std::greater<>());
      rank_heap_.pop_back();
    }
    Symbol& left = symbols_[position];
    if (left.rank != rank) continue;  // the pair is gone
    Symbol& right = symbols_[left.next];
    left.id = merges.find(left.id, right.id).id;
    left.next = right.next;
    right.rank = MergeTable::kNoRank;
    if (left.next != kNone) symbols_[left.next].former = position;
    if (left.former != kNone) rank_pair(merges, left.former);
    rank_pair(merges, position);
  }
  symbols->clear();
  for (uint32_t at = 0; at != kNone; at = symbols_[at].next) symbols->push_back(symbols_[at].id);
  waiting_.clear();
  if (symbols_.capacity() > size_t{1} << 20) symbols_ = {};  // a giant word leaves no giant buffer allocated
}

}  // namespace tessera
