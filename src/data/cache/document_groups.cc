#include "data/cache/document_groups.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>

namespace tessera {

std::vector<DocumentGroup> best_fit_decreasing(std::span<const int64_t> lengths, int64_t capacity) {
  const auto length_of = [&](int64_t document) { return lengths[static_cast<size_t>(document)]; };
  std::vector<int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::ranges::greater(), length_of);
  std::vector<DocumentGroup> rows;
  std::map<int64_t, std::deque<size_t>> rows_by_room;  // rows without room are left out
  for (const int64_t document : order) {
    const auto fit = rows_by_room.lower_bound(length_of(document));
    int64_t room = capacity;
    size_t row = rows.size();
    if (fit == rows_by_room.end()) {
      rows.emplace_back();
    } else {
      room = fit->first;
      row = fit->second.front();
      fit->second.pop_front();
      if (fit->second.empty()) rows_by_room.erase(fit);
    }
    rows[row].push_back(document);
    room -= length_of(document);
    if (room > 0) rows_by_room[room].push_back(row);
  }
  return rows;
}

std::vector<DocumentGroup> greedy_knapsack(std::span<const int64_t> lengths, int64_t capacity) {
  std::map<int64_t, DocumentGroup> left;  // by length
  for (int64_t document = 0; document < std::ssize(lengths); ++document)
    left[lengths[static_cast<size_t>(document)]].push_back(document);
  std::vector<DocumentGroup> rows;
  while (!left.empty()) {
    rows.emplace_back();
    for (int64_t room = capacity;;) {
      auto fit = left.upper_bound(room);
      if (fit == left.begin()) break;
      --fit;
      room -= fit->first;
      rows.back().push_back(fit->second.back());
      fit->second.pop_back();
      if (fit->second.empty()) left.erase(fit);
    }
  }
  return rows;
}

}  // namespace tessera
