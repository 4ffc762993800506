// Which nodes take part in the next start of a job whose number of nodes may change, and in which order.
// Knows no sockets: who is there is told by arrive() and leave(), time by advance().
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <vector>

namespace tessera {

struct MeetingTerms {
  using Duration = std::chrono::duration<double>;
  int min_nodes = 1;
  int max_nodes = 1;
  Duration last_call{0};  // for more nodes, once the fewest are there
  Duration timeout{0};    // for the fewest
};

struct Attendee {
  int wanted_rank = -1;  // --node_rank; -1: none
  int former_rank = -1;  // in the start before
};

class Meeting {
 public:
  using Duration = MeetingTerms::Duration;

  // The node that holds the meeting is there, as node 0.
  explicit Meeting(const MeetingTerms& terms) : terms_(terms) {}

  void arrive(uint64_t number, const Attendee& attendee) { attendees_[number] = attendee; }
  void leave(uint64_t number) { attendees_.erase(number); }
  void advance(Duration elapsed);

  int num_present() const { return static_cast<int>(attendees_.size()) + 1; }
  // All nodes are there, or enough and none has come for the time of the last call.
  bool is_complete() const;
  // The fewest have not come in time.
  bool has_failed() const;
  // The numbers of nodes 1, 2, ...: by their wanted ranks, then by those that they had, then as they came.
  std::vector<uint64_t> order() const;

 private:
  bool is_enough() const { return num_present() >= terms_.min_nodes; }

  const MeetingTerms terms_;
  std::map<uint64_t, Attendee> attendees_;
  Duration elapsed_{0};
  Duration enough_for_{0};
};

}  // namespace tessera
