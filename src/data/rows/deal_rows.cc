#include "data/rows/deal_rows.h"

#include <algorithm>
#include <numeric>

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {

RowDealer::RowDealer(Dealing dealing, int64_t world_size, int64_t micro_batches_per_pass)
    : dealing_(dealing), world_size_(world_size), micro_batches_per_pass_(micro_batches_per_pass) {
  TESSERA_CHECK(world_size >= 1 && micro_batches_per_pass >= 1, "world_size={} micro_batches_per_pass={}",
                world_size, micro_batches_per_pass);
}

void RowDealer::deal(const RowLists& micro_batches, const RowCost& cost, RowLists* passes) {
  TESSERA_CHECK(micro_batches.size() % world_size_ == 0, "{} micro-batches of {} ranks", micro_batches.size(),
                world_size_);
  take_in_order(micro_batches, cost);
  if (dealing_ == Dealing::kByCost) {
    const int64_t costliest_given = costliest_pile();
    deal_costliest_first();
    if (costliest_pile() > costliest_given) {  // rare
      put_back_in_order();
      even_out();
    }
    give_piles_to_ranks();
  }
  write(passes);
}

void RowDealer::take_in_order(const RowLists& micro_batches, const RowCost& cost) {
  const int64_t per_rank = micro_batches.size() / world_size_;
  const int64_t passes_per_rank = divide_up(per_rank, micro_batches_per_pass_);
  items_.clear();
  given_piles_.clear();
  piles_.resize(static_cast<size_t>(passes_per_rank * world_size_));
  pass_of_pile_.resize(piles_.size());
  std::iota(pass_of_pile_.begin(), pass_of_pile_.end(), 0);
  for (size_t i = 0; i < piles_.size(); ++i) piles_[i] = {0, static_cast<int64_t>(i)};
  for (int64_t number = 0; number < micro_batches.size(); ++number) {
    const int64_t pass = number / world_size_ / micro_batches_per_pass_;
    const int64_t pile = pass * world_size_ + number % world_size_;
    for (const int64_t row : micro_batches[number]) {
      const int64_t row_cost = dealing_ == Dealing::kByCost ? cost(row) : 0;
      TESSERA_CHECK(row_cost >= 0, "row {}: cost {}", row, row_cost);
      items_.push_back({row, row_cost, pile});
      given_piles_.push_back(pile);
      piles_[static_cast<size_t>(pile)].cost += row_cost;
    }
  }
}

// The costliest remaining row goes to the cheapest pile (Graham, Bounds on Multiprocessing Timing Anomalies,
// 1969). Rows are always added to the minimum, so the spread of the piles never exceeds the costliest row.
void RowDealer::deal_costliest_first() {
  by_cost_.resize(items_.size());
  std::iota(by_cost_.begin(), by_cost_.end(), 0);
  std::sort(by_cost_.begin(), by_cost_.end(), [this](int64_t a, int64_t b) {
    const int64_t cost_a = items_[static_cast<size_t>(a)].cost;
    const int64_t cost_b = items_[static_cast<size_t>(b)].cost;
    return cost_a != cost_b ? cost_a > cost_b : a < b;
  });
  // A heap with the cheapest pile at the front, the first one among equals.
  const auto later = [](const Pile& a, const Pile& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.index > b.index;
  };
  for (Pile& pile : piles_) pile.cost = 0;  // equal costs with ascending indices are a heap
  for (const int64_t index : by_cost_) {
    Item& item = items_[static_cast<size_t>(index)];
    std::pop_heap(piles_.begin(), piles_.end(), later);
    piles_.back().cost += item.cost;
    item.pile = piles_.back().index;
    std::push_heap(piles_.begin(), piles_.end(), later);
  }
  std::sort(piles_.begin(), piles_.end(), [](const Pile& a, const Pile& b) { return a.index < b.index; });
}

void RowDealer::put_back_in_order() {
  for (Pile& pile : piles_) pile.cost = 0;
  for (size_t i = 0; i < items_.size(); ++i) {
    items_[i].pile = given_piles_[i];
    piles_[static_cast<size_t>(given_piles_[i])].cost += items_[i].cost;
  }
}

// Moves rows from the costliest pile to the cheapest until they differ by no more than the costliest row.
// Every row moved costs less than the difference, so no pile ever exceeds the initially costliest one.
void RowDealer::even_out() {
  const auto cheaper = [](const auto& a, const auto& b) { return a.cost < b.cost; };
  const int64_t longest = std::max_element(items_.begin(), items_.end(), cheaper)->cost;
  while (true) {
    const auto [low, high] = std::minmax_element(piles_.begin(), piles_.end(), cheaper);
    if (high->cost - low->cost <= longest) return;
    Item* moved = nullptr;
    for (Item& item : items_) {
      const bool candidate = item.pile == high->index && item.cost > 0;
      if (candidate && (moved == nullptr || item.cost < moved->cost)) moved = &item;
    }
    moved->pile = low->index;
    low->cost += moved->cost;
    high->cost -= moved->cost;
  }
}

// Pass p takes the p-th group of world_size piles in order of cost; the costliest of them goes to the rank
// with the least so far. Two ranks then differ by at most the larger of their difference before and the
// spread of the pass.
void RowDealer::give_piles_to_ranks() {
  const auto costliest_first = [](const Pile& a, const Pile& b) {
    return a.cost != b.cost ? a.cost > b.cost : a.index < b.index;
  };
  const auto cheapest_first = [](const Pile& a, const Pile& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.index < b.index;
  };
  std::sort(piles_.begin(), piles_.end(), costliest_first);
  ranks_.resize(static_cast<size_t>(world_size_));
  for (size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank] = {0, static_cast<int64_t>(rank)};
  for (size_t first = 0; first < piles_.size(); first += ranks_.size()) {
    std::sort(ranks_.begin(), ranks_.end(), cheapest_first);
    for (size_t i = 0; i < ranks_.size(); ++i) {
      const Pile& pile = piles_[first + i];
      ranks_[i].cost += pile.cost;
      pass_of_pile_[static_cast<size_t>(pile.index)] = static_cast<int64_t>(first) + ranks_[i].index;
    }
  }
}

void RowDealer::write(RowLists* passes) {
  const auto pass_of = [this](const Item& item) {
    return static_cast<size_t>(pass_of_pile_[static_cast<size_t>(item.pile)]);
  };
  pass_ends_.assign(piles_.size() + 1, 0);
  for (const Item& item : items_) ++pass_ends_[pass_of(item) + 1];
  std::partial_sum(pass_ends_.begin(), pass_ends_.end(), pass_ends_.begin());
  rows_.resize(items_.size());
  for (const Item& item : items_) rows_[static_cast<size_t>(pass_ends_[pass_of(item)]++)] = item.row;
  passes->clear();
  int64_t begin = 0;
  for (size_t pass = 0; pass < piles_.size(); ++pass) {  // pass_ends_[pass] is now the pass's own end
    for (; begin < pass_ends_[pass]; ++begin) passes->push_back(rows_[static_cast<size_t>(begin)]);
    passes->end_list();
  }
}

int64_t RowDealer::costliest_pile() const {
  int64_t costliest = 0;
  for (const Pile& pile : piles_) costliest = std::max(costliest, pile.cost);
  return costliest;
}

}  // namespace tessera
