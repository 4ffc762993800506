#include "launch/meeting/meeting.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace tessera {

void Meeting::advance(Duration elapsed) {
  elapsed_ += elapsed;
  enough_for_ = is_enough() ? enough_for_ + elapsed : Duration(0);
}

bool Meeting::is_complete() const {
  return num_present() == terms_.max_nodes || (is_enough() && enough_for_ >= terms_.last_call);
}

bool Meeting::has_failed() const { return !is_enough() && elapsed_ >= terms_.timeout; }

std::vector<uint64_t> Meeting::order() const {
  const auto or_last = [](int rank) { return rank < 0 ? std::numeric_limits<int>::max() : rank; };
  const auto place = [&](uint64_t number) {
    const Attendee& attendee = attendees_.at(number);
    return std::tuple(or_last(attendee.wanted_rank), or_last(attendee.former_rank), number);
  };
  std::vector<uint64_t> numbers;
  for (const auto& [number, attendee] : attendees_) numbers.push_back(number);
  std::ranges::sort(numbers, {}, place);
  return numbers;
}

}  // namespace tessera
