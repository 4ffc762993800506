// The store's part in a stall report: what the agents of the nodes hand in after the verdict, and how long
// each of them has been silent. Used only on the store's thread.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/store/store_values.h"

namespace tessera {

class NodeReports {
 public:
  explicit NodeReports(StoreValues::SendReply send_reply) : send_reply_(std::move(send_reply)) {}

  // The node's agent has joined or sent something.
  void heard(int node) { heard_[node] = Clock::now(); }
  // Seconds since the node's agent was last heard from; nullopt if it never joined.
  std::optional<double> silence_s(int node) const {
    const auto heard = heard_.find(node);
    if (heard == heard_.end()) return std::nullopt;
    return std::chrono::duration<double>(Clock::now() - heard->second).count();
  }

  // The reporter is answered once the place is known.
  void take(int node, std::string report, const StoreValues::Waiter& reporter) {
    reports_[node] = std::move(report);
    reporters_.push_back(reporter);
    if (place_) answer_all();
  }
  bool has(int node) const { return reports_.contains(node); }
  const std::map<int, std::string>& all() const { return reports_; }
  // `place` is where the report on all nodes is stored.
  void set_place(const std::string& place) {
    place_ = place;
    answer_all();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void answer_all() {
    for (const StoreValues::Waiter& reporter : reporters_) send_reply_(reporter, *place_);
    reporters_.clear();
  }

  StoreValues::SendReply send_reply_;
  std::map<int, Clock::time_point> heard_;
  std::map<int, std::string> reports_;
  std::vector<StoreValues::Waiter> reporters_;  // not answered yet
  std::optional<std::string> place_;
};

}  // namespace tessera
