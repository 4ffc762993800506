// Decides which nodes take part in the next start of a job whose number of nodes may change, and in which
// order. Knows nothing of sockets: arrive() and leave() tell it who is present, advance() tells it the time.
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
  Duration last_call{0};  // wait for more nodes once min_nodes are present
  Duration timeout{0};    // wait for min_nodes
};

struct Attendee {
  int wanted_rank = -1;  // --node_rank; -1: none
  int former_rank = -1;  // in the previous start; -1: none
};

class Meeting {
 public:
  using Duration = MeetingTerms::Duration;

  // The node that hosts the meeting is present as node 0.
  explicit Meeting(const MeetingTerms& terms) : terms_(terms) {}

  void arrive(uint64_t number, const Attendee& attendee) { attendees_[number] = attendee; }
  void leave(uint64_t number) { attendees_.erase(number); }
  void advance(Duration elapsed);

  int num_present() const { return static_cast<int>(attendees_.size()) + 1; }
  // max_nodes are present, or at least min_nodes and the last call has expired.
  bool is_complete() const;
  // Fewer than min_nodes have come in time.
  bool has_failed() const;
  // The numbers of nodes 1, 2, ...: sorted by wanted rank, then by previous rank, then by arrival.
  std::vector<uint64_t> order() const;

 private:
  bool is_enough() const { return num_present() >= terms_.min_nodes; }

  const MeetingTerms terms_;
  std::map<uint64_t, Attendee> attendees_;
  Duration elapsed_{0};
  Duration enough_for_{0};
};

}  // namespace tessera
